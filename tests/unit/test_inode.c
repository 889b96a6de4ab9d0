/* The driver's table of inodes: counts, identity, hints, places. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <sys/stat.h>

#include "base/clock.h"
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

#define NOW (5 * NSEC_PER_SEC)

static void rename_done(struct inode_table *t, struct inode *from, const char *name,
                        struct inode *to, const char *new_name, bool exchange)
{
    struct bytes old = bytes_of_string(name), new = bytes_of_string(new_name);
    inode_rename_begin(t, from, old, to, new, exchange);
    inode_rename_end(t, from, old, to, new, true, exchange, NOW);
}

static void inode_settled(struct inode_table *t)
{
    const struct inode *workspace;
    (void)inode_depth(t, t->root, UINT64_MAX, &workspace);
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
    rename_done(&t, d, "f", t.root, "moved", false);
    inode_settled(&t);
    assert_null(inode_get(&t, id));
    assert_ptr_equal(inode_named(&t, t.root, bytes_of_string("moved")), g);
    inode_table_release(&t);
}

/* Past what it can count a reference is never the last. */
static void test_more_references_than_can_be_counted(void **state)
{
    struct inode_table t;
    setup(&t);
    struct inode *i = enter(&t, 1, 5, S_IFREG, t.root, "a");
    i->nlookup = UINT32_MAX - 1;
    uint64_t id = i->id;
    inode_looked_up(i);
    inode_looked_up(i);
    inode_forget(&t, i, UINT32_MAX);
    inode_forget(&t, i, UINT64_C(1) << 40);
    assert_ptr_equal(inode_get(&t, id), i);
    assert_int_equal(i->nlookup, UINT32_MAX);
    inode_table_release(&t);
}

/* An inode has the room that its first name needs; others may be longer. */
static void test_names_of_any_length(void **state)
{
    struct inode_table t;
    setup(&t);
    char name[WIRE_NAME_MAX + 1], other[WIRE_NAME_MAX + 1];
    for (size_t first = 1; first <= WIRE_NAME_MAX; first += first < 40 ? 1 : 43) {
        memset(name, 'n', first);
        name[first] = '\0';
        struct inode *directory = enter(&t, first, first, S_IFDIR, t.root, name);
        inode_looked_up(directory);
        struct inode *file = enter(&t, 1000 + first, 1000 + first, S_IFREG, directory, name);
        inode_looked_up(file);
        for (size_t len = WIRE_NAME_MAX; len; len -= len > 40 ? 43 : 1) {
            memset(other, 'o', len);
            other[len] = '\0';
            rename_done(&t, t.root, name, t.root, other, false);
            rename_done(&t, directory, name, directory, other, false);
            assert_string_equal(inode_name(directory), other);
            assert_string_equal(inode_name(file), other);
            assert_ptr_equal(inode_named(&t, t.root, bytes_of_string(other)), directory);
            assert_ptr_equal(inode_named(&t, directory, bytes_of_string(other)), file);
            rename_done(&t, directory, other, directory, name, false);
            rename_done(&t, t.root, other, t.root, name, false);
        }
        inode_removed(&t, directory, bytes_of_string(name));
        assert_null(inode_name(file));
        assert_int_equal(inode_name_bytes(file).len, 0);
        inode_forget(&t, file, 1);
        inode_forget(&t, directory, 1);
    }
    assert_int_equal(t.count, 1);
    inode_table_release(&t);
}

static struct inode *known(struct inode_table *t, uint64_t ino, uint32_t type, struct inode *parent,
                           const char *name)
{
    struct inode *i = enter(t, ino, ino, type, parent, name);
    inode_looked_up(i);
    return i;
}

static int depth(struct inode_table *t, const struct inode *i)
{
    const struct inode *workspace;
    return inode_depth(t, i, NOW, &workspace);
}

/* A workspace with a/b/c/d, of which the kernel knows all. */
struct tree {
    struct inode_table t;
    struct inode *workspace, *a, *b, *c, *d;
};

static void setup_tree(struct tree *s)
{
    setup(&s->t);
    const struct wire_attr attr = {.ino = 100, .generation = 7, .mode = S_IFDIR | 0755};
    assert_int_equal(inode_enter(&s->t, 100, &attr, INODE_WORKSPACE, s->t.root,
                                 bytes_of_string("demo"), &s->workspace),
                     0);
    inode_looked_up(s->workspace);
    s->a = known(&s->t, 1, S_IFDIR, s->workspace, "a");
    s->b = known(&s->t, 2, S_IFDIR, s->a, "b");
    s->c = known(&s->t, 3, S_IFDIR, s->b, "c");
    s->d = known(&s->t, 4, S_IFDIR, s->c, "d");
    assert_int_equal(depth(&s->t, s->d), 4);
}

static void release_tree(struct tree *s)
{
    inode_settled(&s->t);
    struct inode *all[] = {s->d, s->c, s->b, s->a, s->workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        inode_forget(&s->t, all[i], 1);
    assert_int_equal(s->t.count, 1);
    inode_table_release(&s->t);
}

/* What others move is new to the kernel, which goes on at the old place with what it has. */
static void test_a_directory_moved_by_others_is_another(void **state)
{
    struct tree s;
    setup_tree(&s);
    struct inode *moved = known(&s.t, 4, S_IFDIR, s.workspace, "d");
    assert_ptr_not_equal(moved, s.d);
    assert_int_not_equal(moved->id, s.d->id);
    assert_int_equal(depth(&s.t, moved), 1);
    assert_int_equal(depth(&s.t, s.d), 4);
    struct inode *renamed = known(&s.t, 4, S_IFDIR, s.c, "e");
    assert_true(renamed != s.d && renamed != moved);
    /* Back again, it is the one the kernel had. */
    assert_ptr_equal(enter(&s.t, 4, 4, S_IFDIR, s.c, "d"), s.d);
    assert_ptr_equal(enter(&s.t, 4, 4, S_IFDIR, s.workspace, "d"), moved);
    /* The same place with another identity is another. */
    struct inode *other = known(&s.t, 5, S_IFDIR, s.c, "d");
    assert_true(other != s.d);
    assert_ptr_equal(inode_named(&s.t, s.c, bytes_of_string("d")), other);
    assert_ptr_equal(enter(&s.t, 4, 4, S_IFDIR, s.c, "d"), s.d);
    assert_ptr_equal(inode_named(&s.t, s.c, bytes_of_string("d")), s.d);
    /* Removed, its place stays: somebody may be in it. */
    inode_removed(&s.t, s.c, bytes_of_string("d"));
    assert_int_equal(depth(&s.t, s.d), 4);
    inode_forget(&s.t, moved, 1);
    inode_forget(&s.t, renamed, 1);
    inode_forget(&s.t, other, 1);
    release_tree(&s);
}

/* Which of two at one place the kernel was told last is known, however many files come to be. */
static void test_the_newest_at_a_place_stays_the_first(void **state)
{
    struct tree s;
    setup_tree(&s);
    struct inode *first = known(&s.t, 5, S_IFLNK, s.c, "f");
    struct inode *second = known(&s.t, 6, S_IFDIR, s.c, "f");
    char name[16];
    for (uint64_t n = 0; n < 5000; n++) {
        (void)snprintf(name, sizeof name, "n%d", (int)n);
        (void)known(&s.t, 100 + n, S_IFREG, s.c, name);
        assert_ptr_equal(inode_named(&s.t, s.c, bytes_of_string("f")), second);
        assert_ptr_equal(inode_named_after(&s.t, second, s.c, bytes_of_string("f")), first);
    }
    for (uint64_t n = 0; n < 5000; n++) {
        (void)snprintf(name, sizeof name, "n%d", (int)n);
        inode_forget(&s.t, inode_named(&s.t, s.c, bytes_of_string(name)), 1);
    }
    inode_forget(&s.t, first, 1);
    inode_forget(&s.t, second, 1);
    release_tree(&s);
}

/* A link and a file at one name: which is which, and that the file has had another. */
static void test_a_file_at_the_place_of_a_link(void **state)
{
    struct tree s;
    setup_tree(&s);
    struct inode *file = known(&s.t, 5, S_IFREG, s.c, "f");
    struct inode *link = known(&s.t, 6, S_IFLNK, s.c, "f");
    assert_ptr_equal(inode_file_named(&s.t, s.c, bytes_of_string("f")), NULL);
    assert_false(file->flags & INODE_LINKED);
    assert_ptr_equal(enter(&s.t, 5, 5, S_IFREG, s.c, "f"), file);
    assert_false(file->flags & INODE_LINKED);
    assert_ptr_equal(inode_file_named(&s.t, s.c, bytes_of_string("f")), file);
    rename_done(&s.t, s.c, "f", s.c, "g", false);
    assert_ptr_equal(inode_file_named(&s.t, s.c, bytes_of_string("g")), file);
    assert_false(file->flags & INODE_LINKED);
    assert_ptr_equal(enter(&s.t, 5, 5, S_IFREG, s.workspace, "other"), file);
    assert_true(file->flags & INODE_LINKED);
    inode_forget(&s.t, file, 1);
    inode_forget(&s.t, link, 1);
    release_tree(&s);
}

/* READLINK has no more than a node ID: it must tell from where the link is followed. */
static void test_a_link_has_a_node_for_each_place(void **state)
{
    struct tree s;
    setup_tree(&s);
    struct inode *deep = known(&s.t, 9, S_IFLNK, s.d, "link");
    struct inode *flat = known(&s.t, 9, S_IFLNK, s.workspace, "link");
    assert_ptr_not_equal(deep, flat);
    assert_ptr_equal(deep->parent, s.d);
    assert_ptr_equal(flat->parent, s.workspace);
    assert_ptr_equal(enter(&s.t, 9, 9, S_IFLNK, s.d, "link"), deep);
    /* Renamed, it is looked up once more at its new place, and has another node there; who holds
     * the old one found it at the old place. */
    rename_done(&s.t, s.workspace, "link", s.c, "moved", false);
    assert_ptr_equal(flat->parent, s.workspace);
    struct inode *moved = known(&s.t, 9, S_IFLNK, s.c, "moved");
    assert_true(moved != flat && moved != deep && moved->parent == s.c);
    assert_true(inode_is_displaced(flat) && !inode_is_displaced(moved));
    rename_done(&s.t, s.c, "moved", s.workspace, "link", false);
    struct inode *back = known(&s.t, 9, S_IFLNK, s.workspace, "link");
    assert_true(back != flat && !inode_is_displaced(back));
    inode_forget(&s.t, back, 1);
    inode_forget(&s.t, deep, 1);
    inode_forget(&s.t, flat, 1);
    inode_forget(&s.t, moved, 1);
    release_tree(&s);
}

static void test_renames_here_move_directories(void **state)
{
    struct tree s;
    setup_tree(&s);
    struct inode *e = known(&s.t, 5, S_IFDIR, s.workspace, "e");
    /* Upwards: both places count from the request on, the new one alone when it is done. */
    inode_rename_begin(&s.t, s.b, bytes_of_string("c"), s.workspace, bytes_of_string("C"), false);
    assert_int_equal(depth(&s.t, s.d), 2);
    assert_int_equal(depth(&s.t, s.c), 1);
    assert_int_equal(depth(&s.t, s.b), 2);
    assert_true(inode_rename_climbs(&s.t));
    assert_true(inode_below_named(s.d, s.b, bytes_of_string("c")));
    assert_true(inode_below_named(s.c, s.b, bytes_of_string("c")));
    assert_false(inode_below_named(s.b, s.b, bytes_of_string("c")));
    inode_rename_end(&s.t, s.b, bytes_of_string("c"), s.workspace, bytes_of_string("C"), true,
                     false, NOW);
    assert_ptr_equal(s.c->parent, s.workspace);
    assert_int_equal(depth(&s.t, s.d), 2);
    assert_ptr_equal(enter(&s.t, 3, 3, S_IFDIR, s.workspace, "C"), s.c);
    /* Downwards: the kernel may do it some time after our answer. */
    rename_done(&s.t, s.workspace, "C", s.b, "c", false);
    assert_ptr_equal(s.c->parent, s.b);
    assert_int_equal(depth(&s.t, s.d), 2);
    inode_asked(&s.t, s.b, bytes_of_string("other"));
    inode_asked(&s.t, s.workspace, bytes_of_string("c"));
    assert_int_equal(depth(&s.t, s.d), 2);
    inode_asked(&s.t, s.b, bytes_of_string("c"));
    assert_int_equal(depth(&s.t, s.d), 4);
    /* One that failed has moved nothing. */
    inode_rename_begin(&s.t, s.b, bytes_of_string("c"), s.workspace, bytes_of_string("C"), false);
    inode_rename_end(&s.t, s.b, bytes_of_string("c"), s.workspace, bytes_of_string("C"), false,
                     false, NOW);
    assert_int_equal(depth(&s.t, s.d), 4);
    /* Exchanged; time alone settles it too, and so does the next. */
    rename_done(&s.t, s.b, "c", s.workspace, "e", true);
    assert_true(s.c->parent == s.workspace && e->parent == s.b);
    assert_int_equal(depth(&s.t, e), 1);
    const struct inode *workspace;
    assert_int_equal(inode_depth(&s.t, e, NOW + 2 * NSEC_PER_SEC, &workspace), 3);
    rename_done(&s.t, s.workspace, "e", s.b, "c", true);
    inode_rename_begin(&s.t, s.a, bytes_of_string("x"), s.b, bytes_of_string("x"), false);
    assert_int_equal(depth(&s.t, s.d), 4);
    inode_rename_end(&s.t, s.a, bytes_of_string("x"), s.b, bytes_of_string("x"), true, false, NOW);
    /* In one directory, nothing changes its depth. */
    rename_done(&s.t, s.b, "c", s.b, "z", false);
    assert_int_equal(depth(&s.t, s.d), 4);
    assert_ptr_equal(enter(&s.t, 3, 3, S_IFDIR, s.b, "z"), s.c);
    inode_forget(&s.t, e, 1);
    release_tree(&s);
}

/* Where something is to be replaced the kernel may ask meanwhile, which then proves nothing. */
static void test_a_question_about_what_is_replaced_settles_nothing(void **state)
{
    struct tree s;
    setup_tree(&s);
    struct inode *e = known(&s.t, 5, S_IFDIR, s.c, "e");
    struct inode *f = known(&s.t, 6, S_IFDIR, s.workspace, "f");
    rename_done(&s.t, s.workspace, "f", s.c, "e", false);
    inode_asked(&s.t, s.c, bytes_of_string("e"));
    assert_ptr_equal(f->parent, s.c);
    assert_int_equal(depth(&s.t, f), 1);
    inode_settled(&s.t);
    assert_int_equal(depth(&s.t, f), 4);
    inode_forget(&s.t, e, 1);
    inode_forget(&s.t, f, 1);
    release_tree(&s);
}

/* Two were told at one place; the kernel has moved one of them, and only it knows which. */
static void test_of_two_at_one_place_the_shallower_is_believed(void **state)
{
    struct tree s;
    setup_tree(&s);
    struct inode *other = known(&s.t, 5, S_IFDIR, s.c, "d");
    rename_done(&s.t, s.c, "d", s.workspace, "d", false);
    inode_settled(&s.t);
    assert_int_equal(depth(&s.t, other), 1);
    assert_int_equal(depth(&s.t, s.d), 1);
    rename_done(&s.t, s.workspace, "d", s.c, "d", false);
    inode_settled(&s.t);
    assert_int_equal(depth(&s.t, other), 4);
    assert_int_equal(depth(&s.t, s.d), 1);
    inode_forget(&s.t, other, 1);
    release_tree(&s);
}

/* A service that lies most boldly: places are new ones, and no rename goes below itself. */
static void test_parents_never_form_a_circle(void **state)
{
    struct tree s;
    setup_tree(&s);
    struct inode *below = known(&s.t, 1, S_IFDIR, s.c, "a");
    assert_ptr_not_equal(below, s.a);
    assert_int_equal(depth(&s.t, below), 4);
    struct inode *self = known(&s.t, 1, S_IFDIR, s.a, "a");
    assert_int_equal(depth(&s.t, self), 2);
    rename_done(&s.t, s.workspace, "a", s.d, "a", false);
    rename_done(&s.t, s.workspace, "a", s.a, "a", false);
    assert_ptr_equal(s.a->parent, s.workspace);
    assert_int_equal(depth(&s.t, s.d), 4);
    inode_forget(&s.t, below, 1);
    inode_forget(&s.t, self, 1);
    release_tree(&s);
}

static void test_the_root_is_in_no_workspace(void **state)
{
    struct inode_table t;
    setup(&t);
    assert_int_equal(depth(&t, t.root), -1);
    inode_table_release(&t);
    assert_int_equal(inode_table_init(&t, INODE_WORKSPACE), 0);
    assert_int_equal(depth(&t, t.root), 0);
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
    /* 100,000 known files are to fit in 20 MB, with what was read ahead of them. */
    assert_true(sizeof(struct inode) <= 104);
    inode_table_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_hints),
        cmocka_unit_test(test_more_references_than_can_be_counted),
        cmocka_unit_test(test_names_of_any_length),
        cmocka_unit_test(test_a_directory_moved_by_others_is_another),
        cmocka_unit_test(test_a_link_has_a_node_for_each_place),
        cmocka_unit_test(test_renames_here_move_directories),
        cmocka_unit_test(test_the_newest_at_a_place_stays_the_first),
        cmocka_unit_test(test_a_file_at_the_place_of_a_link),
        cmocka_unit_test(test_a_question_about_what_is_replaced_settles_nothing),
        cmocka_unit_test(test_of_two_at_one_place_the_shallower_is_believed),
        cmocka_unit_test(test_parents_never_form_a_circle),
        cmocka_unit_test(test_the_root_is_in_no_workspace),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
