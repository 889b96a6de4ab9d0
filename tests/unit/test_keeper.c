/* What the keeper of commands has on the disk: spools keep the ends of a stream and count the
 * middle, whatever the disk does; a record that is not whole is no record. */
#include "unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "keeper/expired.h"
#include "keeper/record.h"

static int new_directory(void)
{
    char path[] = "/tmp/berth-keeper-XXXXXX";
    assert_non_null(mkdtemp(path));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void remove_directory(int fd)
{
    char link[64];
    char path[256];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = 0;
    DIR *d = fdopendir(fd);
    struct dirent *entry;
    while ((entry = readdir(d)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(dirfd(d), entry->d_name, 0);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(closedir(d), 0);
}

static uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)(hash_end(offset + 1) >> 13);
}

static void append(struct spool *s, size_t len)
{
    uint64_t end = spool_geometry(s).end;
    uint8_t *data = malloc(len);
    assert_non_null(data);
    for (size_t i = 0; i < len; i++)
        data[i] = byte_at(end + i);
    spool_append(s, bytes_of(data, len));
    free(data);
}

/* Reads all that is kept, at most `step` a time; how much that is. */
static uint64_t read_all(const struct spool *s, size_t step, uint64_t *ret_first_gap)
{
    uint64_t at = 0, total = 0;
    uint8_t *data = malloc(step);
    assert_non_null(data);
    *ret_first_gap = UINT64_MAX;
    for (;;) {
        uint64_t next = spool_next(s, at);
        assert_true(next >= at);
        if (next > at && *ret_first_gap == UINT64_MAX)
            *ret_first_gap = at;
        size_t len;
        assert_int_equal(spool_read(s, next, data, step, &len), 0);
        if (len == 0)
            break;
        for (size_t i = 0; i < len; i++)
            assert_int_equal(data[i], byte_at(next + i));
        total += len;
        at = next + len;
    }
    free(data);
    return total;
}

static void check(const struct spool *s)
{
    uint64_t gap;
    uint64_t end = spool_geometry(s).end;
    assert_true(read_all(s, 777, &gap) + spool_dropped(s) == end);
    assert_true(read_all(s, 100000, &gap) + spool_dropped(s) == end);
    assert_true((gap == UINT64_MAX) == (spool_dropped(s) == 0));
}

static void spool_keeps_both_ends(void **state)
{
    int directory = new_directory();
    struct spool *s;
    const uint64_t keep = 100000;
    assert_int_equal(spool_new(directory, RECORD_STDOUT, keep, &s), 0);
    check(s);
    for (size_t i = 0; i < 400; i++) {
        append(s, 1 + i * 31 % 20000);
        if (i % 40 == 0)
            check(s);
    }
    uint64_t gap;
    (void)read_all(s, 5000, &gap);
    assert_true(gap == keep / 2);
    struct spool_geometry g = spool_geometry(s);
    uint64_t kept = g.end - spool_dropped(s);
    assert_true(kept >= keep && kept <= keep + SPOOL_SLACK);
    spool_free(s);

    assert_int_equal(spool_open(directory, RECORD_STDOUT, &g, &s), 0);
    check(s);
    assert_true(g.end - spool_dropped(s) == kept);
    spool_free(s);
    remove_directory(directory);
}

/* Who is sent everything as it comes loses nothing, nor does one that lacks the last SPOOL_SLACK.
 */
static void spool_has_room_for_who_holds_it(void **state)
{
    int directory = new_directory();
    struct spool *s;
    assert_int_equal(spool_new(directory, RECORD_STDOUT, SPOOL_KEEP_MIN, &s), 0);
    uint64_t sent = 0;
    for (size_t i = 0; i < 300; i++) {
        uint64_t room = spool_room(s, sent);
        assert_true(room > 0);
        append(s, (size_t)(room < 30000 ? room : 30000));
        uint64_t lacks = sent > SPOOL_SLACK ? sent - SPOOL_SLACK : 0;
        assert_true(spool_next(s, lacks) == lacks);
        if (i % 3)
            sent = spool_geometry(s).end;
    }
    assert_true(spool_dropped(s) > 0);
    /* One that takes nothing more has it stop. */
    for (uint64_t room; (room = spool_room(s, sent)) > 0;)
        append(s, (size_t)(room < 30000 ? room : 30000));
    assert_true(spool_next(s, sent) == sent);
    spool_free(s);
    remove_directory(directory);
}

static void spool_goes_on_when_the_disk_is_full(void **state)
{
    int directory = new_directory();
    struct spool *s;
    struct rlimit before, small = {.rlim_cur = 50000};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(spool_new(directory, RECORD_STDOUT, SPOOL_KEEP_DEFAULT, &s), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (size_t i = 0; i < 100; i++) {
        append(s, 7001);
        check(s);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    struct spool_geometry g = spool_geometry(s);
    assert_true(g.stored == 50000 && g.end == 700100);
    assert_true(spool_dropped(s) == g.end - g.stored - SPOOL_MEMORY_MAX);
    for (uint64_t room; (room = spool_room(s, g.end)) > 0;) /* a holder stops it here, too */
        append(s, (size_t)room);
    assert_true(spool_next(s, g.end) == g.end);
    spool_free(s);
    /* What was in memory is gone with the keeper, and is counted. */
    assert_int_equal(spool_open(directory, RECORD_STDOUT, &g, &s), 0);
    check(s);
    assert_true(spool_dropped(s) == g.end - 50000);
    spool_free(s);
    remove_directory(directory);
}

static void spool_refuses_what_is_none(void **state)
{
    static const struct spool_geometry bad[] = {
        {.keep = 0}, {.keep = UINT64_MAX}, {.keep = SPOOL_KEEP_MIN, .end = 1, .stored = 2}};
    struct spool *s;
    int directory = new_directory();
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(spool_open(directory, RECORD_STDOUT, &bad[i], &s), -EINVAL);
    /* A file that is shorter than it says. */
    const struct spool_geometry missing = {.keep = SPOOL_KEEP_MIN, .end = 100, .stored = 100};
    uint8_t data[100];
    size_t len;
    assert_int_equal(spool_open(directory, RECORD_STDOUT, &missing, &s), 0);
    assert_int_equal(spool_read(s, 0, data, sizeof data, &len), -ENOENT);
    int fd = openat(directory, RECORD_STDOUT, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(file_write_all(fd, "short", 5), 0);
    (void)close(fd);
    assert_int_equal(spool_read(s, 0, data, sizeof data, &len), -EIO);
    spool_free(s);
    remove_directory(directory);
}

static struct record a_record(void)
{
    return (struct record){
        .slot = 9,
        .spools = {{.keep = 70000, .end = 5, .stored = 4}, {.keep = 80000}},
        .command = {.serial = 7,
                    .verdict = WIRE_VERDICT_EXITED,
                    .workspace = bytes_of_string("work"),
                    .id = bytes_of_string("id"),
                    .argv = bytes_of("true\0", 5),
                    .text = bytes_of_string("text")},
    };
}

static void record_comes_back(void **state)
{
    int directory = new_directory();
    _cleanup_buffer_ struct buffer storage = {0};
    struct record r = a_record(), got;
    assert_int_equal(record_read(directory, &storage, &got), -ENOENT);
    for (int i = 0; i < 3; i++) {
        r.command.serial++;
        assert_int_equal(record_write(directory, &r), 0);
        assert_int_equal(record_read(directory, &storage, &got), 0);
        assert_true(got.command.serial == r.command.serial && got.slot == 9 &&
                    got.spools[1].keep == 80000);
        assert_true(bytes_equal(got.command.id, r.command.id) && got.spools[0].stored == 4);
    }
    remove_directory(directory);
}

/* The last one counts; one of which only a part is there makes the whole a damaged one, and is gone
 * with the next that is written. */
static void part_of_a_record_is_damage(void **state)
{
    int directory = new_directory();
    _cleanup_buffer_ struct buffer storage = {0};
    struct record first = a_record(), second, got;
    assert_int_equal(record_write(directory, &first), 0);
    second = first;
    second.command.serial = 8;
    assert_int_equal(record_write(directory, &second), 0);
    int fd = openat(directory, "record", O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    for (uint64_t len = first.end + 1; len < second.end; len++) {
        struct record again = second;
        again.end = first.end;
        assert_int_equal(ftruncate(fd, (off_t)len), 0);
        assert_int_equal(record_read(directory, &storage, &got), -EBADMSG);
        assert_int_equal(record_write(directory, &again), 0);
        assert_int_equal(record_read(directory, &storage, &got), 0);
        assert_true(got.command.serial == 8 && got.end == second.end);
    }
    assert_int_equal(ftruncate(fd, (off_t)first.end), 0);
    assert_int_equal(record_read(directory, &storage, &got), 0);
    assert_true(got.command.serial == 7 && got.end == first.end);
    (void)close(fd);
    remove_directory(directory);
}

static void write_file(int directory, const void *data, size_t len)
{
    int fd = openat(directory, "record", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(file_write_all(fd, data, len), 0);
    (void)close(fd);
}

/* Every bit, every length, and what has a right sum but is wrong. */
static void damaged_record_is_none(void **state)
{
    int directory = new_directory();
    _cleanup_buffer_ struct buffer whole = {0}, storage = {0};
    struct record r = a_record(), got;
    assert_int_equal(record_write(directory, &r), 0);
    assert_int_equal(record_read(directory, &whole, &got), 0);
    for (size_t i = 0; i < 8 * whole.len; i++) {
        whole.data[i / 8] ^= (uint8_t)(1 << i % 8);
        write_file(directory, whole.data, whole.len);
        assert_int_equal(record_read(directory, &storage, &got), -EBADMSG);
        whole.data[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    for (size_t len = 0; len < whole.len; len++) {
        write_file(directory, whole.data, len);
        assert_int_equal(record_read(directory, &storage, &got), -EBADMSG);
    }
    size_t end = whole.len - 8;
    for (size_t i = 8; i < end; i++) {
        uint8_t before = whole.data[i];
        whole.data[i] = 0xff;
        uint64_t sum = hash_end(hash_bytes(HASH_START, whole.data, end));
        for (size_t k = 0; k < 8; k++)
            whole.data[end + k] = (uint8_t)(sum >> 8 * k);
        write_file(directory, whole.data, whole.len);
        int e = record_read(directory, &storage, &got);
        assert_true(e == 0 || e == -EBADMSG);
        whole.data[i] = before;
    }
    remove_directory(directory);
}

/* --- those that have expired ----------------------------------------------------------------- */

static void test_expired_are_known_to_the_next(void **state)
{
    struct expired e;
    int directory = new_directory();
    expired_open(directory, &e);
    assert_false(expired_has(&e, 7));
    for (uint64_t i = 1; i <= EXPIRED_MAX + 3; i++)
        expired_add(&e, i);
    for (int again = 0; again < 2; again++) {
        assert_false(expired_has(&e, 3)); /* the oldest made room */
        assert_true(expired_has(&e, 4) && expired_has(&e, EXPIRED_MAX + 3));
        expired_release(&e);
        expired_open(directory, &e);
    }
    expired_add(&e, 1);
    assert_true(expired_has(&e, 1) && !expired_has(&e, 4) && expired_has(&e, 5));
    expired_release(&e);
    struct stat st;
    assert_int_equal(fstatat(directory, ".expired", &st, 0), 0);
    assert_int_equal(st.st_size, (EXPIRED_MAX + 1) * 8);
    remove_directory(directory);
}

static void test_expired_without_a_file(void **state)
{
    struct expired e;
    int directory = new_directory();
    assert_int_equal(symlinkat("elsewhere", directory, ".expired"), 0);
    expired_open(directory, &e);
    expired_add(&e, 5);
    assert_true(expired_has(&e, 5) && !expired_has(&e, 6));
    expired_release(&e);
    remove_directory(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spool_keeps_both_ends),
        cmocka_unit_test(spool_has_room_for_who_holds_it),
        cmocka_unit_test(spool_goes_on_when_the_disk_is_full),
        cmocka_unit_test(spool_refuses_what_is_none),
        cmocka_unit_test(record_comes_back),
        cmocka_unit_test(part_of_a_record_is_damage),
        cmocka_unit_test(damaged_record_is_none),
        cmocka_unit_test(test_expired_are_known_to_the_next),
        cmocka_unit_test(test_expired_without_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
