/* Contents on disk: what was put in comes back unchanged or not at all, whatever happens to the
 * files, the processes, the disk and the directory. */
#include "unit.h"

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
#include "cache/cache.h"
#include "disk.h"

#define URL "unix:/run/test.sock"

struct place {
    char base[64]; /* $XDG_CACHE_HOME */
    char path[96]; /* the cache */
    struct event_base *loop;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    if (!p)
        return -1;
    (void)snprintf(p->base, sizeof p->base, "/tmp/berth-disk-XXXXXX");
    assert_non_null(mkdtemp(p->base));
    (void)snprintf(p->path, sizeof p->path, "%s/berth", p->base);
    assert_int_equal(setenv("XDG_CACHE_HOME", p->base, 1), 0);
    p->loop = event_base_new();
    assert_non_null(p->loop);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct place *p = *state;
    event_base_free(p->loop);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", p->base);
    int r = system(command); /* NOLINT: the name is ours */
    free(p);
    return r;
}

static struct disk *open_sized(const struct place *p, uint64_t size_max)
{
    const struct disk_options options = {
        .service_id = "0123456789abcde", .url = URL, .size_max = size_max};
    struct disk *d = NULL;
    struct failure f;
    if (disk_open(&options, p->loop, &d, &f) < 0)
        fail_msg("%s", f.text);
    return d;
}

static struct disk *open_disk(const struct place *p)
{
    return open_sized(p, DISK_SIZE_DEFAULT);
}

/* A file's state and content, made from a number. */
static struct disk_key key_of(uint64_t n, size_t size)
{
    const struct wire_attr attr = {.ino = n + 1,
                                   .generation = 7,
                                   .size = size,
                                   .mtime = {.sec = 1000 + (int64_t)n, .nsec = 1},
                                   .ctime = {.sec = 2000, .nsec = (uint32_t)n % 1000}};
    return disk_key_of(&attr);
}

static uint8_t content[SEGMENT_CONTENT_MAX];

static struct bytes content_of(uint64_t n, size_t size)
{
    uint64_t x = n * 2654435761 + size + 1;
    for (size_t i = 0; i < size; i++) {
        x = x * 6364136223846793005 + 1442695040888963407;
        content[i] = (uint8_t)(x >> 56);
    }
    return bytes_of(content, size);
}

static void put(struct disk *d, uint64_t n, size_t size)
{
    const struct disk_key key = key_of(n, size);
    disk_put(d, &key, content_of(n, size));
}

struct answer {
    bool called;
    bool found;
    size_t len;
    uint8_t data[SEGMENT_CONTENT_MAX];
};

static void on_answer(void *context, const struct bytes *found)
{
    struct answer *a = context;
    a->called = true;
    a->found = found;
    if (found) {
        a->len = found->len;
        memcpy(a->data, found->data, found->len);
    }
}

static struct answer answer;

/* True: it was there, and is right. A wrong content fails the test, or ends the child. */
static bool has(const struct place *p, struct disk *d, uint64_t n, size_t size)
{
    const struct disk_key key = key_of(n, size);
    answer.called = false;
    bool known = disk_has(d, &key);
    int r = disk_get(d, &key, on_answer, &answer);
    assert_int_equal(known, r == 0);
    if (r < 0) {
        assert_int_equal(r, -ENOENT);
        return false;
    }
    while (!answer.called)
        assert_int_equal(event_base_loop(p->loop, EVLOOP_ONCE), 0);
    if (answer.found) {
        assert_int_equal(answer.len, size);
        assert_memory_equal(answer.data, content_of(n, size).data, size);
    }
    return answer.found;
}

/* At the end, a mount gives the disk only so much time. */
static void close_disk(struct disk *d)
{
    while (disk_stats(d).pending)
        (void)usleep(1000);
    assert_false(disk_free(d));
}

static struct cache_list list_of(void)
{
    struct failure f;
    struct cache_list list = {0};
    _cleanup_close_ int dir = -1;
    assert_int_equal(cache_open(false, &dir, NULL, &f), 0);
    assert_int_equal(cache_list(dir, &list), 0);
    return list;
}

static void only_file(const struct place *p, char ret[160])
{
    _cleanup_cache_list_ struct cache_list list = list_of();
    assert_int_equal(list.count, 1);
    (void)snprintf(ret, 160, "%s/%s", p->path, list.segments[0].name);
}

static size_t size_of_number(uint64_t n)
{
    static const size_t sizes[] = {0, 1, 31, 991, 992, 993, 4096, 70000, SEGMENT_CONTENT_MAX};
    return sizes[n % ARRAY_SIZE(sizes)];
}

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

/* --- damage ------------------------------------------------------------------------------ */

#define FILES 12 /* of sizes of about 100 bytes */

static size_t small_size(uint64_t n)
{
    return 90 + n;
}

static void make_small(const struct place *p, char file[160])
{
    struct disk *d = open_disk(p);
    for (uint64_t n = 0; n < FILES; n++)
        put(d, n, small_size(n));
    close_disk(d);
    only_file(p, file);
}

static size_t count_right(const struct place *p, struct disk *d)
{
    size_t right = 0;
    for (uint64_t n = 0; n < FILES; n++)
        right += has(p, d, n, small_size(n));
    return right;
}

static void flip(const char *file, off_t at)
{
    _cleanup_close_ int fd = open(file, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    uint8_t byte = 0;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= (uint8_t)(1 << (at % 8));
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static void test_flipped_bytes(void **state)
{
    const struct place *p = *state;
    char file[160];
    make_small(p, file);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    const off_t data = 4096 + 16384 * 16;
    size_t lost = 0;
    /* The header, the slots in use and a little more, and all data: digests, contents, gaps. */
    for (off_t at = 0; at < st.st_size; at++) {
        if (at == 60)
            at = 4096; /* the name is for people */
        if (at == 4096 + (FILES + 1) * 16)
            at = data;
        if (at >= data && (at - data) % 1024 >= 200 && (at - data) % 1024 < 900)
            at += 100; /* of gaps, some are enough */
        if (at >= st.st_size)
            break;
        flip(file, at);
        struct disk *d = open_disk(p);
        size_t right = count_right(p, d);
        struct disk_stats stats = disk_stats(d);
        off_t in = (at - data) % 1024;
        if (at >= data) {
            off_t n = (at - data) / 1024;
            bool used = in < 32 + (off_t)small_size((uint64_t)n);
            assert_int_equal(right, used ? FILES - 1 : FILES);
            assert_int_equal(stats.of[DISK_CONTENT].damaged, used);
            lost += used;
            if (used && in % 16 == 0) {
                /* It is fetched again, and kept again. */
                put(d, (uint64_t)n, small_size((uint64_t)n));
                close_disk(d);
                d = open_disk(p);
                assert_int_equal(count_right(p, d), FILES);
                close_disk(d);
                assert_int_equal(truncate(file, st.st_size), 0);
                flip(file, at);
                static const struct segment_slot none;
                _cleanup_close_ int fd = open(file, O_RDWR | O_CLOEXEC);
                assert_int_equal(pwrite(fd, &none, sizeof none, 4096 + FILES * 16), sizeof none);
                continue;
            }
        }
        close_disk(d);
        flip(file, at);
    }
    assert_int_equal(lost, FILES * 32 + FILES * 90 + FILES * (FILES - 1) / 2);
}

/* Slots are not trusted: each content is whole, but it is another key's, of the same size. */
static void test_swapped(void **state)
{
    const struct place *p = *state;
    struct disk *d = open_disk(p);
    put(d, 0, 700);
    put(d, 1, 700);
    put(d, 2, 700);
    close_disk(d);
    char file[160];
    only_file(p, file);
    _cleanup_close_ int fd = open(file, O_RDWR | O_CLOEXEC);
    struct segment_slot slots[2];
    assert_int_equal(pread(fd, slots, sizeof slots, 4096), sizeof slots);
    uint32_t unit = slots[0].unit;
    slots[0].unit = slots[1].unit;
    slots[1].unit = unit;
    assert_int_equal(pwrite(fd, slots, sizeof slots, 4096), sizeof slots);
    d = open_disk(p);
    assert_false(has(p, d, 0, 700));
    assert_false(has(p, d, 1, 700));
    assert_true(has(p, d, 2, 700));
    assert_int_equal(disk_stats(d).of[DISK_CONTENT].damaged, 2);
    close_disk(d);
}

static void test_cut_off(void **state)
{
    const struct place *p = *state;
    char file[160];
    make_small(p, file);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    _cleanup_close_ int fd = open(file, O_RDONLY | O_CLOEXEC);
    _cleanup_free_ uint8_t *whole = malloc((size_t)st.st_size);
    assert_non_null(whole);
    assert_int_equal(pread(fd, whole, (size_t)st.st_size, 0), st.st_size);
    size_t last = FILES;
    for (off_t len = st.st_size; len >= 0; len -= len % 7 + 40) {
        if (len < 4096 + 16384 * 16 - 1000 && len > 4096 + 1000)
            len = 4096 + 1000;
        _cleanup_close_ int out = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        assert_int_equal(write(out, whole, (size_t)len), len);
        struct disk *d = open_disk(p);
        size_t right = count_right(p, d);
        assert_true(right <= last);
        last = right;
        /* What follows is written to what is left, and is right. */
        for (uint64_t n = 0; n < FILES; n++)
            put(d, n, small_size(n));
        close_disk(d);
        d = open_disk(p);
        assert_int_equal(count_right(p, d), FILES);
        close_disk(d);
        char command[200];
        (void)snprintf(command, sizeof command, "rm -f %s/*", p->path);
        assert_int_equal(system(command), 0); /* NOLINT */
    }
    assert_int_equal(last, 0);
}

static uint64_t random_state = 88172645463325252;

static uint64_t random_number(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

/* Slots that are possible are the more interesting damage. */
static void damage(int fd, off_t size)
{
    uint8_t junk[600];
    for (size_t i = 0; i < sizeof junk; i++)
        junk[i] = (uint8_t)random_number(256);
    off_t at = (off_t)random_number((uint64_t)size);
    switch (random_number(6)) {
    case 0:
        assert_true(pwrite(fd, junk, random_number(sizeof junk), at) >= 0);
        break;
    case 1:
        assert_true(pwrite(fd, junk, random_number(64), 4096 + (off_t)random_number(400)) >= 0);
        break;
    case 2: { /* a slot that leads to another's content, of any size */
        struct segment_slot slot;
        off_t where = 4096 + (off_t)random_number(FILES) * 16;
        if (pread(fd, &slot, sizeof slot, where) == sizeof slot) {
            slot.unit = (uint32_t)(260 + random_number(FILES));
            slot.size = (uint32_t)(random_number(2) ? 90 + random_number(FILES)
                                                    : random_number(UINT32_MAX));
            assert_true(pwrite(fd, &slot, sizeof slot, where) >= 0);
        }
        break;
    }
    case 3: /* what another process that writes to it as well would do */
        (void)memset(junk, 0, sizeof junk);
        assert_true(pwrite(fd, junk, sizeof junk, at) >= 0);
        break;
    case 4:
        assert_int_equal(ftruncate(fd, at), 0);
        break;
    default:
        assert_int_equal(ftruncate(fd, (off_t)random_number(UINT64_C(1) << 34)), 0);
        break;
    }
}

static void test_random_damage(void **state)
{
    const struct place *p = *state;
    char command[256];
    size_t right = 0, lost = 0;
    const char *seed = getenv("BERTH_DISK_SEED"), *rounds = getenv("BERTH_DISK_ROUNDS");
    if (seed)
        random_state ^= strtoull(seed, NULL, 10) << 8;
    int count = rounds ? atoi(rounds) : 400;
    for (int round = 0; round < count; round++) {
        struct disk *d = open_disk(p);
        for (uint64_t n = 0; n < FILES; n++)
            put(d, n, small_size(n));
        close_disk(d);
        _cleanup_cache_list_ struct cache_list list = list_of();
        for (size_t i = 0; i < list.count; i++) {
            char file[160];
            (void)snprintf(file, sizeof file, "%s/%s", p->path, list.segments[i].name);
            _cleanup_close_ int fd = open(file, O_RDWR | O_CLOEXEC);
            struct stat st;
            assert_int_equal(fstat(fd, &st), 0);
            for (uint64_t k = random_number(3) + 1; k && fd >= 0; k--)
                damage(fd, st.st_size ? st.st_size : 1);
        }
        d = open_disk(p);
        size_t found = count_right(p, d);
        right += found;
        lost += FILES - found;
        close_disk(d);
        if (round % 8 == 0) {
            (void)snprintf(command, sizeof command, "rm -rf %s/*", p->path);
            assert_int_equal(system(command), 0); /* NOLINT */
        }
    }
    assert_true(right > (size_t)count && lost > (size_t)count);
}

static void test_other_things_in_the_directory(void **state)
{
    const struct place *p = *state;
    char file[160];
    make_small(p, file);
    char command[1024];
    (void)snprintf(command, sizeof command,
                   "cd %s && mkdir d.segment x && mkfifo p.segment && touch e.segment note && "
                   "ln -s /etc/passwd l.segment && ln -s missing m.segment && "
                   "head -c 300000 /dev/urandom >g.segment && truncate -s 1T big.segment && "
                   "touch -hd yesterday *.segment && touch young.segment",
                   p->path);
    assert_int_equal(system(command), 0); /* NOLINT */
    struct disk *d = open_disk(p);
    assert_int_equal(count_right(p, d), FILES);
    put(d, 50, 1000);
    close_disk(d);
    d = open_disk(p);
    assert_true(has(p, d, 50, 1000));
    close_disk(d);
    /* What only looks like ours is gone, what does not is left alone, and no link was followed. */
    (void)snprintf(command, sizeof command,
                   "cd %s && test -f young.segment && test -d d.segment && test -d x && test -f "
                   "note && test -s /etc/passwd "
                   "&& ! ls e.segment p.segment l.segment m.segment g.segment big.segment 2>&1 "
                   "| grep -v 'No such'",
                   p->path);
    assert_int_equal(system(command), 0); /* NOLINT */
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
    const char *rounds = getenv("BERTH_DISK_ROUNDS");
    size_t right = 0;
    for (int round = 0; round < (rounds ? atoi(rounds) : 60); round++) {
        /* From any moment of making files to any of filling them. */
        pid_t pid = start_child(p, (uint64_t)round * 1000, 300, true);
        (void)usleep((useconds_t)random_number(15000));
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
    assert_true(list.count < 30); /* each went on with what the one before had left */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_survives),
        TEST(test_another_state_of_the_file),
        TEST(test_another_service),
        TEST(test_flipped_bytes),
        TEST(test_swapped),
        TEST(test_cut_off),
        TEST(test_random_damage),
        TEST(test_other_things_in_the_directory),
        TEST(test_two_at_once),
        TEST(test_killed),
        TEST(test_limit),
        TEST(test_cleared_in_use),
        TEST(test_private),
        TEST(test_under_the_mountpoint),
        TEST(test_no_place),
        TEST(test_full_disk),
        TEST(test_disk_that_does_not_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
