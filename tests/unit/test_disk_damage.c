/* Contents on disk whose files were damaged: they come back unchanged or not at all. */
#include "disk_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

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
    int count = rounds ? atoi(rounds) : 80;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_flipped_bytes),
        TEST(test_swapped),
        TEST(test_cut_off),
        TEST(test_random_damage),
        TEST(test_other_things_in_the_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
