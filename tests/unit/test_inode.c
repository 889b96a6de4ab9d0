/* The driver's table of inodes: counts, identity, hints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <sys/stat.h>

#include "inode.h"

static struct wire_attr attr(uint64_t ino, uint32_t type)
{
    return (struct wire_attr){.ino = ino, .generation = 7, .mode = type | 0644};
}

static struct inode *enter(struct inode_table *t, uint64_t node, uint64_t ino, uint32_t type,
                           struct inode *parent, const char *name)
{
    struct wire_attr a = attr(ino, type);
    struct inode *i;
    assert_int_equal(inode_enter(t, node, &a, 0, parent, bytes_of_string(name), &i), 0);
    return i;
}

static void assert_forgets(struct inode_table *t, const uint64_t *pairs, size_t count)
{
    struct buffer expected = {0};
    for (size_t i = 0; i < count; i++)
        assert_int_equal(buffer_append_u64(&expected, pairs[i]), 0);
    assert_int_equal(t->forgets.len, expected.len);
    if (expected.len)
        assert_memory_equal(t->forgets.data, expected.data, expected.len);
    buffer_release(&expected);
    t->forgets.len = 0;
}

static void setup(struct inode_table *t)
{
    assert_int_equal(inode_table_init(t, INODE_LOCAL), 0);
    t->connection = 1;
}

static void test_counts(void **state)
{
    struct inode_table t;
    setup(&t);
    struct inode *i = enter(&t, 100, 5, S_IFREG, t.root, "a");
    inode_looked_up(i);
    assert_ptr_equal(enter(&t, 100, 5, S_IFREG, t.root, "a"), i);
    inode_looked_up(i);
    uint64_t id = i->id;
    assert_int_not_equal(id, 1);
    assert_ptr_equal(inode_get(&t, id), i);
    inode_forget(&t, i, 1);
    assert_ptr_equal(inode_get(&t, id), i);
    assert_forgets(&t, NULL, 0);
    inode_pin(i);
    inode_forget(&t, i, 1);
    assert_ptr_equal(inode_get(&t, id), i); /* a request is still in flight */
    inode_unpin(&t, i);
    assert_null(inode_get(&t, id));
    assert_forgets(&t, (uint64_t[]){100, 2}, 2);
    /* The number does not come back, though the file does. */
    i = enter(&t, 101, 5, S_IFREG, t.root, "a");
    assert_true(i->id > id);
    inode_drop(&t, i);
    assert_forgets(&t, (uint64_t[]){101, 1}, 2);
    assert_int_equal(t.count, 1);
    inode_table_release(&t);
}

static void test_identity(void **state)
{
    struct inode_table t;
    setup(&t);
    struct inode *i = enter(&t, 1, 5, S_IFREG, t.root, "a");
    inode_looked_up(i);
    /* Another type or generation is another file, whatever its number. */
    struct inode *other = enter(&t, 2, 5, S_IFDIR, t.root, "b");
    assert_ptr_not_equal(other, i);
    inode_looked_up(other);
    struct wire_attr a = attr(5, S_IFREG);
    a.generation++;
    struct inode *third;
    assert_int_equal(inode_enter(&t, 3, &a, 0, t.root, bytes_of_string("c"), &third), 0);
    assert_ptr_not_equal(third, i);
    inode_looked_up(third);
    /* A second node of the server for the same file is given back at once. */
    assert_ptr_equal(enter(&t, 9, 5, S_IFREG, t.root, "a"), i);
    assert_int_equal(i->node, 1);
    assert_forgets(&t, (uint64_t[]){9, 1}, 2);
    /* On a new connection the new node replaces the old, which is not given back to anybody. */
    t.connection = 2;
    assert_ptr_equal(enter(&t, 4, 5, S_IFREG, t.root, "a"), i);
    assert_int_equal(i->node, 4);
    inode_forget(&t, other, 1);
    assert_forgets(&t, NULL, 0);
    inode_forget(&t, i, 1);
    assert_forgets(&t, (uint64_t[]){4, 1}, 2);
    inode_table_release(&t);
}

static void test_hints(void **state)
{
    struct inode_table t;
    setup(&t);
    struct inode *d = enter(&t, 1, 1, S_IFDIR, t.root, "d");
    inode_looked_up(d);
    struct inode *f = enter(&t, 2, 2, S_IFREG, d, "f");
    inode_looked_up(f);
    assert_ptr_equal(inode_named(&t, d, bytes_of_string("f")), f);
    /* A child keeps its directory, so that it can be found again through it. */
    uint64_t id = d->id;
    inode_forget(&t, d, 1);
    assert_ptr_equal(inode_get(&t, id), d);
    /* A new file of the name takes it from the old. */
    struct inode *g = enter(&t, 3, 3, S_IFREG, d, "f");
    inode_looked_up(g);
    assert_ptr_equal(inode_named(&t, d, bytes_of_string("f")), g);
    assert_null(f->parent);
    assert_int_equal(inode_rename(&t, g, t.root, bytes_of_string("moved")), 0);
    assert_null(inode_get(&t, id));
    assert_ptr_equal(inode_named(&t, t.root, bytes_of_string("moved")), g);
    inode_table_release(&t);
}

static void test_hints_never_form_a_circle(void **state)
{
    struct inode_table t;
    setup(&t);
    struct inode *a = enter(&t, 1, 1, S_IFDIR, t.root, "a");
    inode_looked_up(a);
    struct inode *b = enter(&t, 2, 2, S_IFDIR, a, "b");
    inode_looked_up(b);
    struct inode *c = enter(&t, 3, 3, S_IFDIR, b, "c");
    inode_looked_up(c);
    /* Somebody turned the tree upside down: a is now below c. */
    assert_ptr_equal(enter(&t, 1, 1, S_IFDIR, c, "a"), a);
    size_t steps = 0;
    for (struct inode *up = a; up; up = up->parent)
        assert_true(steps++ < 4);
    /* And a server that lies most boldly. */
    assert_ptr_equal(enter(&t, 1, 1, S_IFDIR, a, "self"), a);
    for (struct inode *up = a; up; up = up->parent)
        assert_true(steps++ < 8);
    inode_forget(&t, a, 1);
    inode_forget(&t, b, 1);
    inode_forget(&t, c, 1);
    assert_int_equal(t.count, 1);
    inode_table_release(&t);
}

static void test_many(void **state)
{
    struct inode_table t;
    setup(&t);
    enum { COUNT = 20000 };
    char name[16];
    for (uint64_t n = 0; n < COUNT; n++) {
        (void)snprintf(name, sizeof name, "%llu", (unsigned long long)n);
        inode_looked_up(enter(&t, n + 1, n + 1, S_IFREG, t.root, name));
    }
    assert_int_equal(t.count, COUNT + 1);
    for (uint64_t n = 0; n < COUNT; n++) {
        (void)snprintf(name, sizeof name, "%llu", (unsigned long long)n);
        struct inode *i = inode_named(&t, t.root, bytes_of_string(name));
        assert_non_null(i);
        assert_ptr_equal(inode_get(&t, i->id), i);
        inode_forget(&t, i, 1);
    }
    assert_int_equal(t.count, 1);
    assert_int_equal(t.forgets.len, COUNT * 16);
    /* 100,000 known files are to fit in 25 MB: inode, name, and three chain heads. */
    assert_true(sizeof(struct inode) <= 112);
    inode_table_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts), cmocka_unit_test(test_identity),
        cmocka_unit_test(test_hints),  cmocka_unit_test(test_hints_never_form_a_circle),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
