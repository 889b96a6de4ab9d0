/* Contents on disk: what was put in comes back unchanged or not at all, whatever happens to the
 * files, the processes, the disk and the directory. */
#include "disk_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

/* --- what it is for --------------------------------------------------------------------- */

static void test_survives(void **state)
{
    const struct place *p = *state;
    struct disk *d = open_disk(p);
    assert_false(has(p, d, 0, 0));
    for (uint64_t n = 0; n < 200; n++)
        put(d, n, size_of_number(n));
    close_disk(d); /* writes the rest */
    for (int round = 0; round < 3; round++) {
        d = open_disk(p);
        assert_int_equal(disk_stats(d).entries, 200);
        for (uint64_t n = 0; n < 200; n++)
            assert_true(has(p, d, n, size_of_number(n)));
        assert_int_equal(disk_stats(d).of[DISK_CONTENT].read, 200);
        put(d, 5, size_of_number(5)); /* is there already */
        close_disk(d);
    }
    /* A mount that follows goes on with the file of the one before. */
    d = open_disk(p);
    put(d, 300, 1000);
    close_disk(d);
    char file[160];
    only_file(p, file);
    d = open_disk(p);
    assert_true(has(p, d, 300, 1000));
    assert_true(has(p, d, 3, size_of_number(3)));
    close_disk(d);
}

static void test_another_state_of_the_file(void **state)
{
    const struct place *p = *state;
    struct disk *d = open_disk(p);
    put(d, 1, 500);
    close_disk(d);
    d = open_disk(p);
    const struct disk_key right = key_of(1, 500);
    struct disk_key others[8];
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        others[i] = right;
        if (i < ARRAY_SIZE(right.words))
            others[i].words[i]++; /* inode number, generation, both times */
    }
    others[6].size++;
    others[7].kind = DISK_PART;
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        assert_false(disk_has(d, &others[i]));
        assert_int_equal(disk_get(d, &others[i], on_answer, &answer), -ENOENT);
    }
    assert_true(disk_has(d, &right));
    close_disk(d);
}

static void test_another_service(void **state)
{
    const struct place *p = *state;
    struct disk *d = open_disk(p);
    put(d, 1, 500);
    close_disk(d);
    /* One that claims the ID of another, and one that took its place. */
    const struct disk_options others[] = {
        {.service_id = "0123456789abcde", .url = "https://evil:1", .size_max = DISK_SIZE_DEFAULT},
        {.service_id = "another service", .url = URL, .size_max = DISK_SIZE_DEFAULT}};
    const struct disk_key key = key_of(1, 500);
    struct failure f;
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        assert_int_equal(disk_open(&others[i], p->loop, &d, &f), 0);
        assert_false(disk_has(d, &key));
        disk_put(d, &key, content_of(99, 500));
        close_disk(d);
    }
    d = open_disk(p);
    assert_true(has(p, d, 1, 500));
    close_disk(d);
}

/* --- processes --------------------------------------------------------------------------- */

/* In a child, where assertions do not end the test: an abort does. */
static pid_t start_child(const struct place *p, uint64_t from, uint64_t count, bool forever)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    (void)alarm(60);
    struct place mine = *p;
    mine.loop = event_base_new();
    do {
        struct disk *d = open_disk(&mine);
        for (uint64_t n = from; n < from + count; n++)
            put(d, n, 90 + n * 7 % 20000);
        while (disk_stats(d).pending)
            (void)usleep(1000);
        if (disk_free(d))
            abort();
        from += count;
    } while (forever);
    _exit(0);
}

static void test_two_at_once(void **state)
{
    const struct place *p = *state;
    /* Some are of both, some of one; and a third reads. There is a segment that one can go on with.
     */
    struct disk *first = open_disk(p);
    put(first, 5000, 100);
    close_disk(first);
    const pid_t a = start_child(p, 0, 600, false), b = start_child(p, 300, 600, false);
    int status;
    for (int running = 2; running;) {
        struct disk *d = open_disk(p);
        for (uint64_t n = 0; n < 900; n += 10)
            (void)has(p, d, n, 90 + n * 7 % 20000);
        assert_int_equal(disk_stats(d).of[DISK_CONTENT].damaged, 0);
        close_disk(d);
        pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended > 0) {
            assert_true(ended == a || ended == b);
            assert_int_equal(status, 0);
            running--;
        }
    }
    struct disk *d = open_disk(p);
    for (uint64_t n = 0; n < 900; n++)
        assert_true(has(p, d, n, 90 + n * 7 % 20000));
    close_disk(d);
}

static void test_killed(void **state)
{
    const struct place *p = *state;
    const char *asked = getenv("BERTH_DISK_ROUNDS");
    int rounds = asked ? atoi(asked) : 12;
    size_t right = 0;
    for (int round = 0; round < rounds; round++) {
        /* From any moment of making files to any of filling them. */
        pid_t pid = start_child(p, (uint64_t)round * 1000, 300, true);
        (void)usleep((useconds_t)random_number(round % 2 ? 100000 : 15000));
        assert_int_equal(kill(pid, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        struct disk *d = open_disk(p);
        for (uint64_t n = (uint64_t)round * 1000; n < (uint64_t)(round + 1) * 1000; n++)
            right += has(p, d, n, 90 + n * 7 % 20000);
        assert_int_equal(disk_stats(d).of[DISK_CONTENT].damaged, 0);
        close_disk(d);
    }
    /* Hundreds; fewer where a process takes as long to begin as it lives. */
    assert_true(right > 10);
    _cleanup_cache_list_ struct cache_list list = list_of();
    assert_true(list.count <
                (size_t)rounds / 2); /* each went on with what the one before had left */
}

/* --- bounds ------------------------------------------------------------------------------ */

static void age(const struct place *p, const char *name, time_t seconds)
{
    char file[160];
    (void)snprintf(file, sizeof file, "%s/%s", p->path, name);
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - seconds}};
    assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
}

static void test_limit(void **state)
{
    const struct place *p = *state;
    const uint64_t limit = 8 << 20;
    const size_t size = 100000;
    for (uint64_t n = 0; n < 300; n += 20) {
        struct disk *d = open_sized(p, limit);
        for (uint64_t i = n; i < n + 20; i++)
            put(d, i, size);
        close_disk(d);
        _cleanup_cache_list_ struct cache_list list = list_of();
        assert_true(list.bytes <= limit);
        if (n >= 100)
            assert_true(list.bytes > limit / 2);
    }
    struct disk *d = open_sized(p, limit);
    assert_true(has(p, d, 299, size));
    assert_false(has(p, d, 0, size));
    close_disk(d);

    /* The one used longest ago goes: all are old, the first of them is read. */
    _cleanup_cache_list_ struct cache_list list = list_of();
    uint64_t oldest = 0;
    d = open_sized(p, limit);
    while (!has(p, d, oldest, size))
        oldest++;
    close_disk(d);
    for (size_t i = 0; i < list.count; i++)
        age(p, list.segments[i].name, 10000 - (time_t)i * 100);
    d = open_sized(p, limit);
    assert_true(has(p, d, oldest, size));
    for (uint64_t n = 1000; n < 1025; n++)
        put(d, n, size);
    close_disk(d);
    d = open_sized(p, limit);
    assert_true(has(p, d, oldest, size));
    assert_false(has(p, d, oldest + 21, size)); /* of the segment that followed it */
    assert_true(has(p, d, 1024, size));
    close_disk(d);
}

static void test_cleared_in_use(void **state)
{
    const struct place *p = *state;
    struct disk *d = open_disk(p);
    for (uint64_t n = 0; n < 50; n++)
        put(d, n, 5000);
    close_disk(d);
    d = open_disk(p);
    put(d, 50, 5000);
    assert_true(has(p, d, 7, 5000));
    while (disk_stats(d).of[DISK_CONTENT].written == 0)
        (void)usleep(1000);
    struct failure f;
    _cleanup_close_ int dir = -1;
    assert_int_equal(cache_open(false, &dir, NULL, &f), 0);
    assert_int_equal(cache_clear(dir), 0);
    _cleanup_cache_list_ struct cache_list list = list_of();
    assert_int_equal(list.count, 0);
    assert_false(has(p, d, 7, 5000));
    assert_false(has(p, d, 50, 5000));
    /* The mount goes on keeping. */
    put(d, 51, 5000);
    put(d, 7, 5000);
    close_disk(d);
    d = open_disk(p);
    assert_int_equal(disk_stats(d).entries, 2);
    assert_true(has(p, d, 51, 5000));
    assert_true(has(p, d, 7, 5000));
    close_disk(d);
}

/* --- the directory ------------------------------------------------------------------------- */

static void expect_refused(const struct place *p, int error, const char *text)
{
    const struct disk_options options = {
        .url = URL, .size_max = DISK_SIZE_DEFAULT, .mountpoint = "/nowhere"};
    struct disk *d = NULL;
    struct failure f;
    assert_int_equal(disk_open(&options, p->loop, &d, &f), error);
    assert_null(d);
    assert_non_null(strstr(f.text, text));
    assert_non_null(strstr(f.text, p->path));
}

static void test_private(void **state)
{
    const struct place *p = *state;
    struct stat st;
    mode_t old = umask(0);
    struct disk *d = open_disk(p);
    put(d, 1, 100);
    close_disk(d);
    (void)umask(old);
    assert_int_equal(lstat(p->path, &st), 0);
    assert_int_equal(st.st_mode, S_IFDIR | 0700);
    char file[160];
    only_file(p, file);
    assert_int_equal(lstat(file, &st), 0);
    assert_int_equal(st.st_mode, S_IFREG | 0600);

    assert_int_equal(chmod(p->path, 0750), 0);
    expect_refused(p, -EPERM, "mode 0700");
    assert_int_equal(chmod(p->path, 0700), 0);
    char elsewhere[96];
    (void)snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", p->base);
    assert_int_equal(rename(p->path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, p->path), 0);
    expect_refused(p, -EPERM, "not a link");
    assert_int_equal(unlink(p->path), 0);
    int fd = open(p->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close_fd(&fd);
    expect_refused(p, -EPERM, "must be a directory");
    assert_int_equal(unlink(p->path), 0);
    if (geteuid() == 0) {
        assert_int_equal(rename(elsewhere, p->path), 0);
        assert_int_equal(chown(p->path, 65534, 65534), 0);
        expect_refused(p, -EPERM, "belongs to you");
    }
}

static void test_under_the_mountpoint(void **state)
{
    const struct place *p = *state;
    struct disk_options options = {.url = URL, .size_max = DISK_SIZE_DEFAULT};
    struct disk *d = NULL;
    struct failure f;
    const char *inside[] = {p->base, p->path, "/tmp", "/"};
    for (size_t i = 0; i < ARRAY_SIZE(inside); i++) {
        options.mountpoint = inside[i];
        assert_int_equal(disk_open(&options, p->loop, &d, &f), -ELOOP);
    }
    char beside[70];
    (void)snprintf(beside, sizeof beside, "%.*s", (int)strlen(p->base) - 1, p->base);
    options.mountpoint = beside;
    assert_int_equal(disk_open(&options, p->loop, &d, &f), 0);
    close_disk(d);
}

static void test_no_place(void **state)
{
    const struct place *p = *state;
    (void)setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
    const struct disk_options options = {.url = URL, .size_max = DISK_SIZE_DEFAULT};
    struct disk *d = NULL;
    struct failure f;
    assert_int_equal(disk_open(&options, p->loop, &d, &f), -ENOENT);
    /* The driver goes on with none. */
    const struct disk_key key = key_of(1, 10);
    disk_put(d, &key, content_of(1, 10));
    assert_false(disk_has(d, &key));
    assert_int_equal(disk_get(d, &key, on_answer, &answer), -ENOENT);
    assert_int_equal(disk_stats(d).entries, 0);
    assert_false(disk_free(d));
}

/* --- the disk ------------------------------------------------------------------------------ */

static void test_full_disk(void **state)
{
    const struct place *p = *state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(mount("tmpfs", p->base, "tmpfs", 0, "size=12m"), 0);
    char filler[96];
    (void)snprintf(filler, sizeof filler, "%s/filler", p->base);
    struct disk *d = open_sized(p, DISK_SIZE_MIN);
    for (uint64_t n = 0; n < 10; n++)
        put(d, n, 50000);
    close_disk(d);
    /* It fills up at once, in the middle of a segment. */
    char command[200];
    (void)snprintf(command, sizeof command, "cat /dev/zero >%s 2>&1 | true", filler);
    (void)!system(command); /* NOLINT */
    d = open_sized(p, DISK_SIZE_MIN);
    for (uint64_t n = 10; n < 60; n++)
        put(d, n, 50000);
    for (uint64_t n = 0; n < 10; n++)
        assert_true(has(p, d, n, 50000));
    close_disk(d);
    /* A new segment is not begun: what was there makes room. */
    assert_int_equal(unlink(filler), 0);
    d = open_sized(p, DISK_SIZE_MIN);
    for (uint64_t n = 60; n < 100; n++)
        put(d, n, 50000);
    close_disk(d);
    d = open_sized(p, DISK_SIZE_MIN);
    assert_true(has(p, d, 99, 50000));
    close_disk(d);
    /* Nothing can be written at all; what is there is read. */
    assert_int_equal(mount(NULL, p->base, NULL, MS_REMOUNT | MS_RDONLY, "size=12m"), 0);
    d = open_sized(p, DISK_SIZE_MIN);
    put(d, 500, 5000);
    assert_true(has(p, d, 99, 50000));
    while (disk_stats(d).unwritten == 0)
        (void)usleep(1000);
    assert_false(has(p, d, 500, 5000));
    close_disk(d);
    assert_int_equal(umount2(p->base, MNT_DETACH), 0);
}

/* The thread that stays behind has this. */
static struct disk *left;

static void test_disk_that_does_not_answer(void **state)
{
    const struct place *p = *state;
    if (geteuid() != 0)
        skip();
    char file[160], options[96];
    make_small(p, file);
    struct disk *d = open_disk(p);
    assert_true(has(p, d, 1, small_size(1)));
    /* A filesystem without a driver behind it, on the file itself. */
    _cleanup_close_ int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    assert_true(fuse >= 0);
    (void)snprintf(options, sizeof options, "fd=%d,rootmode=100000,user_id=0,group_id=0", fuse);
    assert_int_equal(mount("silent", file, "fuse", 0, options), 0);
    uint64_t before = clock_monotonic_ns();
    assert_false(has(p, d, 2, small_size(2)));
    assert_true(clock_monotonic_ns() - before >= DISK_TIMEOUT_MS * NSEC_PER_MSEC);
    /* From then on it is not asked. */
    const struct disk_key key = key_of(3, small_size(3));
    assert_false(disk_has(d, &key));
    assert_int_equal(disk_get(d, &key, on_answer, &answer), -ENOENT);
    put(d, 100, 1000);
    left = d;
    assert_true(disk_free(d));
    assert_int_equal(umount2(file, MNT_DETACH), 0);
}

/* It is opened beside the loop, which goes on without it. */
static void test_directory_that_does_not_answer(void **state)
{
    const struct place *p = *state;
    char options[128];
    struct failure f = {0};
    struct disk *d;
    if (geteuid() != 0 || access("/dev/fuse", R_OK | W_OK) < 0)
        skip();
    const struct disk_options o = {.url = URL, .size_max = DISK_SIZE_DEFAULT};
    assert_int_equal(disk_begin(&o, &d), 0);
    assert_true(disk_wait(d, 10000, &f));
    assert_int_equal(f.error, 0);
    assert_int_equal(disk_attach(d, p->loop), 0);
    put(d, 1, 100);
    close_disk(d);

    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    assert_true(fuse >= 0);
    (void)snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    assert_int_equal(mount("silent", p->path, "fuse", 0, options), 0);
    uint64_t before = clock_monotonic_ns();
    assert_int_equal(disk_begin(&o, &d), 0);
    assert_false(disk_wait(d, 50, &f));
    assert_int_equal(disk_attach(d, p->loop), 0);
    const struct disk_key key = key_of(1, 100);
    assert_int_equal(disk_get(d, &key, on_answer, &answer), -ENOENT);
    assert_int_equal(disk_age_ms(d), -1);
    put(d, 2, 100);
    assert_int_equal(disk_stats(d).entries, 0);
    disk_leave(d);
    assert_true(clock_monotonic_ns() - before < DISK_TIMEOUT_MS * NSEC_PER_MSEC);
    /* The thread ends when the filesystem does, and frees what it has. */
    assert_int_equal(umount2(p->path, MNT_DETACH), 0);
    close_fd(&fuse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_survives),
        TEST(test_another_state_of_the_file),
        TEST(test_another_service),
        TEST(test_two_at_once),
        TEST(test_killed),
        TEST(test_limit),
        TEST(test_cleared_in_use),
        TEST(test_private),
        TEST(test_under_the_mountpoint),
        TEST(test_no_place),
        TEST(test_full_disk),
        TEST(test_disk_that_does_not_answer),
        TEST(test_directory_that_does_not_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
