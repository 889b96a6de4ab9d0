/* Entries in few bytes: what comes out is what went in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/stat.h>

#include "tree_entry.h"

static uint64_t state = 88172645463325252;

static uint64_t random_number(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Numbers of any size, and the extremes. */
static uint64_t any(void)
{
    uint64_t n = random_number();
    switch (n % 8) {
    case 0:
        return 0;
    case 1:
        return UINT64_MAX;
    case 2:
        return UINT64_C(1) << 63;
    default:
        return random_number() >> (n / 8 % 64);
    }
}

static struct wire_time any_time(void)
{
    return (struct wire_time){.sec = (int64_t)any(), .nsec = (uint32_t)(any() % 1000000000)};
}

static struct wire_attr any_attr(void)
{
    struct wire_attr a = {.ino = any(),
                          .generation = any(),
                          .version = any(),
                          .size = any(),
                          .blocks = any(),
                          .mode = (uint32_t)any(),
                          .nlink = (uint32_t)any(),
                          .uid = (uint32_t)any(),
                          .gid = (uint32_t)any(),
                          .rdev = (uint32_t)any(),
                          .blksize = (uint32_t)any(),
                          .atime = any_time(),
                          .mtime = any_time(),
                          .ctime = any_time(),
                          .flags = any()};
    uint64_t usual = random_number();
    if (usual & 1)
        a.mtime = a.ctime;
    if (usual & 2)
        a.atime = a.mtime;
    if (usual & 4)
        a.mode = S_IFREG | 0644;
    if (usual & 8)
        a.nlink = 1;
    return a;
}

static void assert_same(const struct wire_dirent *one, const struct wire_dirent *two)
{
    struct buffer a = {0}, b = {0};
    assert_int_equal(wire_encode(&a, &(struct wire_message){.type = WIRE_DIRENT, .dirent = *one}),
                     0);
    assert_int_equal(wire_encode(&b, &(struct wire_message){.type = WIRE_DIRENT, .dirent = *two}),
                     0);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    buffer_release(&a);
    buffer_release(&b);
}

static size_t round_trip(const struct wire_dirent *entry, uint64_t node,
                         const struct wire_attr *base)
{
    uint8_t data[TREE_ENTRY_MAX + 1];
    data[TREE_ENTRY_MAX] = 0x5a;
    size_t len = tree_entry_pack(entry, node, base, data);
    assert_true(len <= TREE_ENTRY_MAX && data[TREE_ENTRY_MAX] == 0x5a);
    struct wire_dirent out;
    tree_entry_unpack(data, node, base, &out);
    assert_same(entry, &out);
    assert_true(tree_entry_cookie(data) == entry->cookie);
    assert_true(bytes_equal(tree_entry_name(data), entry->name));
    return len;
}

static void test_anything_comes_back(void **unused)
{
    uint8_t name[WIRE_NAME_MAX];
    size_t longest = 0;
    for (int n = 0; n < 200000; n++) {
        struct wire_attr base = any_attr();
        struct wire_dirent entry = {.cookie = any(),
                                    .node = any(),
                                    .ino = any(),
                                    .type = (uint32_t)any(),
                                    .attr = any_attr()};
        size_t name_len = 1 + random_number() % WIRE_NAME_MAX;
        for (size_t i = 0; i < name_len; i++)
            name[i] = (uint8_t)random_number();
        entry.name = bytes_of(name, name_len);
        uint64_t like = random_number();
        if (like & 1)
            entry.ino = entry.attr.ino;
        if (like & 2)
            entry.type = entry.attr.mode & S_IFMT;
        if (like & 4) {
            entry.attr.uid = base.uid;
            entry.attr.gid = base.gid;
            entry.attr.rdev = base.rdev;
            entry.attr.blksize = base.blksize;
            entry.attr.flags = base.flags;
        }
        if (!entry.node)
            entry.attr = (struct wire_attr){0}; /* as on the wire */
        size_t len = round_trip(&entry, any(), &base);
        longest = len > longest ? len : longest;
    }
    print_message("at most %zu bytes\n", longest);
}

/* As files are: this is what the memory of a listing rests on. */
static void test_a_usual_file_is_small(void **unused)
{
    const struct wire_time now = {.sec = 1700000000, .nsec = 123456789},
                           later = {.sec = 1700086400, .nsec = 987654321};
    const struct wire_attr base = {.ino = (UINT64_C(5) << 40) | 1000000,
                                   .mode = S_IFDIR | 0755,
                                   .nlink = 2,
                                   .blksize = 4096,
                                   .ctime = now,
                                   .flags = 1};
    const struct wire_attr attr = {.ino = (UINT64_C(5) << 40) | 1000400,
                                   .generation = UINT64_C(0xfedcba9876543210),
                                   .version = UINT64_C(0xfedcba9876543210),
                                   .size = 9000,
                                   .blocks = 24,
                                   .mode = S_IFREG | 0644,
                                   .nlink = 1,
                                   .blksize = 4096,
                                   .ctime = later,
                                   .mtime = now,
                                   .atime = later,
                                   .flags = 1};
    const struct wire_dirent entry = {.cookie = UINT64_C(0x7edcba9876543210),
                                      .node = 5000,
                                      .ino = attr.ino,
                                      .type = S_IFREG,
                                      .name = bytes_of_string("a-file-name.c"),
                                      .attr = attr};
    size_t len = round_trip(&entry, 4000, &base);
    print_message("%zu bytes and %zu of the name\n", len - entry.name.len, entry.name.len);
    assert_true(len - entry.name.len < 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_anything_comes_back),
        cmocka_unit_test(test_a_usual_file_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
