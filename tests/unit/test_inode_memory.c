/* What the driver holds for a file that the kernel knows, and for one that was read ahead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <sys/stat.h>

#include "failing_malloc.h"
#include "inode.h"

#define DIRECTORIES 200
#define FILES 100
#define ALL ((size_t)DIRECTORIES * FILES)

static struct wire_attr attr(uint64_t ino, uint32_t type)
{
    const uint32_t second = (uint32_t)(1700000000 + ino % 100000);
    struct wire_attr a = {.ino = (UINT64_C(3) << 40) | ino,
                          .generation = ino * UINT64_C(0x9e3779b97f4a7c15),
                          .size = ino % 50000,
                          .blocks = (ino % 50000 + 4095) / 4096 * 8,
                          .mode = type | (type == S_IFDIR ? 0755 : 0644),
                          .nlink = 1,
                          .blksize = 4096,
                          .ctime = {.sec = second, .nsec = 123456789},
                          .mtime = {.sec = second, .nsec = 123456789},
                          .atime = {.sec = second + 1000, .nsec = 3456789},
                          .flags = WIRE_ATTR_COVERED};
    a.version = wire_attr_version(&a); /* as the service does */
    return a;
}

static void append(struct buffer *list, const struct wire_message *m)
{
    struct buffer element = {0};
    assert_int_equal(wire_encode(&element, m), 0);
    assert_int_equal(wire_list_append(list, buffer_view(&element)), 0);
    buffer_release(&element);
}

static uint64_t number_of(size_t directory, size_t file)
{
    return 1000 + directory * FILES + file;
}

static void take_directory(struct inode_table *t, size_t directory)
{
    struct buffer entries = {0}, list = {0};
    for (size_t i = 0; i < FILES; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "file-name-%03zu", i);
        uint64_t n = number_of(directory, i);
        const struct wire_message m = {.type = WIRE_DIRENT,
                                       .dirent = {.cookie = n * UINT64_C(0x9e3779b97f4a7c1),
                                                  .node = n,
                                                  .ino = attr(n, S_IFREG).ino,
                                                  .type = S_IFREG,
                                                  .name = bytes_of_string(name),
                                                  .attr = attr(n, S_IFREG)}};
        append(&entries, &m);
    }
    const struct wire_message d = {.type = WIRE_TREE_DIRECTORY,
                                   .tree_directory = {.node = 100 + directory,
                                                      .end = 1,
                                                      .attr = attr(100 + directory, S_IFDIR),
                                                      .entries = wire_list_of(&entries, FILES)}};
    append(&list, &d);
    const struct wire_tree tree = {.directories = wire_list_of(&list, 1)};
    tree_take(t, &tree, 0, t->stamp, true);
    buffer_release(&entries);
    buffer_release(&list);
}

/* With what an allocator takes for itself: a word for each block, and rounding to two. */
static size_t held(size_t blocks, size_t bytes)
{
    return bytes + blocks * 16;
}

static void test_memory_of_a_file(void **unused)
{
    struct inode_table t;
    assert_int_equal(inode_table_init(&t, INODE_LOCAL), 0);
    t.connection = 1;
    size_t blocks = malloc_blocks(), bytes = malloc_bytes();
    for (size_t n = 0; n < DIRECTORIES; n++)
        take_directory(&t, n);
    size_t listed = held(malloc_blocks() - blocks, malloc_bytes() - bytes) / ALL;
    blocks = malloc_blocks();
    bytes = malloc_bytes();
    for (size_t n = 0; n < DIRECTORIES; n++) {
        const struct wire_attr a = attr(100 + n, S_IFDIR);
        struct inode *directory, *i;
        char name[32];
        (void)snprintf(name, sizeof name, "directory-%zu", n);
        assert_int_equal(inode_enter(&t, 100 + n, &a, 0, t.root, bytes_of_string(name), &directory),
                         0);
        inode_looked_up(directory);
        struct tree_directory *d = tree_find(&t, directory);
        assert_non_null(d);
        for (size_t file = 0; file < FILES; file++) {
            struct wire_dirent entry;
            tree_read(d, file, &entry);
            assert_int_equal(inode_lend(&t, entry.node, &entry.attr, directory, entry.name, &i), 0);
            inode_looked_up(i);
        }
    }
    size_t known = held(malloc_blocks() - blocks, malloc_bytes() - bytes) / ALL;
    print_message("%zu bytes for an inode, %zu for an entry that was read ahead\n", known, listed);
    assert_true(known + listed <= 215);
    t.connection++; /* what is left is not given back */
    inode_table_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory_of_a_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
