/* What the driver has read ahead: references, names, what changes take away. */
#include "tree_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* --- tests -------------------------------------------------------------------------------- */

static void test_names_and_cookies(void **state)
{
    struct world *w = *state;
    assert_null(root_listing(w));
    take_sample(w);
    struct tree_directory *d = root_listing(w);
    assert_int_equal(tree_count(d), 11);
    assert_true(tree_is_complete(d) && tree_has_all_names(d));
    assert_int_equal(named(w, "f13").node, 13);
    assert_int_equal(named(w, "d").attr.ino, 20);
    assert_int_equal(tree_named(&w->t, d, bytes_of_string("f21")), -ENOENT);
    assert_int_equal(tree_named(&w->t, d, bytes_of_string("f1")), -ENOENT);
    assert_int_equal(tree_index(d, 0, 5), 0);
    assert_int_equal(tree_index(d, 120, 3), 3);
    assert_int_equal(tree_index(d, 120, 9), 3);
    assert_int_equal(tree_index(d, 200, 0), 11);
    assert_int_equal(tree_index(d, 121, 0), -ENOENT);
    assert_non_null(tree_attr(d));
    /* Of part of a directory, or one in which something is unlisted, not all names are known. */
    add_entry(w, 10, "f10", S_IFREG);
    end_directory_of(w, 1, false, 0, WIRE_ATTR_COVERED);
    take_now(w);
    assert_false(tree_is_complete(root_listing(w)));
    add_entry(w, 10, "f10", S_IFREG);
    end_directory_of(w, 1, true, 1, WIRE_ATTR_COVERED);
    take_now(w);
    d = root_listing(w);
    assert_true(tree_is_complete(d) && !tree_has_all_names(d));
    assert_int_equal(w->t.tree.unlisted, 1);
}

static void test_names_that_are_none(void **state)
{
    struct world *w = *state;
    static const char *const names[] = {".", "..", "a/b", "/"};
    for (size_t i = 0; i < 4; i++)
        add_entry(w, 10 + i, names[i], S_IFREG);
    add_entry(w, 14, "fine", S_IFREG);
    end_directory(w, 1);
    take_now(w);
    assert_int_equal(tree_count(root_listing(w)), 1);
    assert_int_equal(w->refs[10], 0);
    assert_int_equal(w->refs[14], 1);
}

static void test_what_is_not_kept(void **state)
{
    struct world *w = *state;
    add_entry(w, 10, "a", S_IFREG);
    end_directory(w, 1);
    take(w, w->t.stamp, false);
    assert_null(root_listing(w));
    add_entry(w, 10, "a", S_IFREG);
    end_directory_of(w, 1, true, 0, 0); /* its changes are not reported */
    take_now(w);
    assert_null(root_listing(w));
    assert_int_equal(w->refs[10], 0);
    assert_int_equal(w->refs[1], 1);
    /* Attributes: of a file with two names, of one that is not covered, and none. */
    struct wire_attr a = attr(11, S_IFREG);
    a.nlink = 2;
    add_entry_of(w, 11, "linked", a);
    a = attr(12, S_IFREG);
    a.flags = 0;
    add_entry_of(w, 12, "uncovered", a);
    add_entry(w, 13, "covered", S_IFREG);
    end_directory(w, 1);
    take_now(w);
    assert_int_equal(named(w, "linked").node, 0);
    assert_int_equal(named(w, "uncovered").node, 0);
    assert_int_equal(named(w, "covered").node, 13);
}

static void test_changes(void **state)
{
    struct world *w = *state;
    take_sample(w);
    tree_changed(&w->t, 13, 7, false);
    tree_changed(&w->t, 14, 8, false); /* another file that had the number */
    assert_int_equal(named(w, "f13").node, 0);
    assert_int_equal(named(w, "f14").node, 14);
    assert_int_equal(w->refs[13], 1); /* its changes are still reported */
    assert_false(tree_is_stale(root_listing(w)));
    /* A directory that is no inode. */
    assert_int_equal(w->t.tree.count, 20);
    tree_changed(&w->t, 20, 7, true);
    settle(w);
    assert_int_equal(w->t.tree.count, 11);
    assert_int_equal(named(w, "d").node, 0); /* its time of change has changed */
    assert_int_equal(w->refs[21], 0);
    assert_int_equal(w->refs[20], 1); /* by its entry */
    tree_changed(&w->t, 1, 7, false);
    assert_null(tree_attr(root_listing(w)));
    tree_changed(&w->t, 1, 7, true);
    settle(w);
    assert_null(root_listing(w));
}

/* --- names that this mount changes ------------------------------------------------------- */

static bool lacks(struct world *w, const char *name)
{
    return tree_lacks(&w->t, root_listing(w), bytes_of_string(name));
}

static void made(struct world *w, const char *name, uint64_t ino)
{
    const struct wire_attr a = attr(ino, S_IFREG);
    tree_name_made(&w->t, w->t.root, bytes_of_string(name), ino ? &a : NULL);
    settle(w);
}

static void removed(struct world *w, const char *name)
{
    tree_name_removed(&w->t, w->t.root, bytes_of_string(name));
    settle(w);
}

static void test_what_is_made_and_removed_is_known(void **state)
{
    struct world *w = *state;
    take_sample(w);
    struct wire_attr found;
    assert_true(lacks(w, "new") && !lacks(w, "f13"));
    made(w, "new", 50);
    assert_false(lacks(w, "new"));
    assert_true(tree_made(&w->t, root_listing(w), bytes_of_string("new"), &found));
    assert_true(found.ino == 50 && found.generation == 7);
    assert_int_equal(tree_named(&w->t, root_listing(w), bytes_of_string("new")), -ENOENT);
    assert_true(tree_was_added_to(root_listing(w)) && tree_is_stale(root_listing(w)));
    /* The directory's times have changed; all else is as it was. */
    assert_null(tree_attr(root_listing(w)));
    assert_int_equal(named(w, "f14").node, 14);
    removed(w, "new");
    assert_true(lacks(w, "new") && !tree_was_added_to(root_listing(w)));
    removed(w, "f13");
    assert_true(lacks(w, "f13"));
    assert_int_equal(w->refs[13], 0);
    removed(w, "f13"); /* nothing */
    removed(w, "never");
    assert_int_equal(w->refs[14], 1);
    made(w, "f13", 51);
    assert_false(lacks(w, "f13"));
    assert_int_equal(tree_named(&w->t, root_listing(w), bytes_of_string("f13")), -ENOENT);
}

static void test_what_is_replaced(void **state)
{
    struct world *w = *state;
    take_sample(w);
    struct wire_attr found;
    struct inode *i = lend(w, "f14");
    made(w, "f14", 14); /* opened: it was that file already */
    assert_int_equal(named(w, "f14").node, 14);
    assert_false(tree_was_added_to(root_listing(w)));
    made(w, "f14", 0);
    assert_true(tree_made(&w->t, root_listing(w), bytes_of_string("f14"), &found));
    assert_int_equal(found.ino, 0);
    /* The inode has the entry's reference now. */
    assert_int_equal(w->refs[14], 1);
    inode_forget(&w->t, i, 1);
    settle(w);
    assert_int_equal(w->refs[14], 0);
    made(w, "f14", 52); /* once more */
    assert_true(tree_made(&w->t, root_listing(w), bytes_of_string("f14"), &found));
    assert_int_equal(found.ino, 52);
}

static void test_readers_go_on_where_names_were_removed(void **state)
{
    struct world *w = *state;
    take_sample(w);
    removed(w, "f12");
    removed(w, "d");
    struct tree_directory *d = root_listing(w);
    assert_int_equal(tree_index(d, 120, 3), 3);
    assert_int_equal(tree_count(d), 11);
    struct wire_dirent entry;
    tree_read(d, 2, &entry);
    assert_true(entry.name.len == 0 && entry.node == 0 && entry.type == 0);
    tree_read(d, 3, &entry);
    assert_int_equal(entry.node, 13);
    uint64_t nodes[4];
    assert_int_equal(tree_unread(&w->t, d, 0, nodes, ARRAY_SIZE(nodes)), 0);
}

static void test_another_directory_that_was_added_to_is_unread(void **state)
{
    struct world *w = *state;
    take_sample(w);
    uint64_t nodes[4];
    assert_int_equal(tree_unread(&w->t, root_listing(w), 0, nodes, ARRAY_SIZE(nodes)), 0);
    const struct inode below = {.ino = 20, .generation = 7};
    tree_name_made(&w->t, &below, bytes_of_string("new"), NULL);
    assert_int_equal(tree_unread(&w->t, root_listing(w), 0, nodes, ARRAY_SIZE(nodes)), 1);
    assert_int_equal(nodes[0], 20);
    assert_int_equal(named(w, "d").node, 0); /* its time of change has changed */
}

static void test_an_answer_on_its_way_may_lack_what_was_made(void **state)
{
    struct world *w = *state;
    assert_int_equal(tree_asked(&w->t), 0);
    uint64_t stamp = w->t.stamp;
    made(w, "new", 50);
    add_entry(w, 13, "f13", S_IFREG);
    end_directory(w, 1);
    take(w, stamp, true);
    tree_answered(&w->t);
    assert_null(root_listing(w));
}

static void test_a_new_directory_is_known_to_be_empty(void **state)
{
    struct world *w = *state;
    const struct wire_attr a = attr(60, S_IFDIR);
    struct inode *i;
    w->refs[60] = 1;
    assert_int_equal(inode_enter(&w->t, 60, &a, 0, w->t.root, bytes_of_string("new"), &i), 0);
    inode_looked_up(i);
    assert_true(inode_lend_own(&w->t, i));
    assert_false(inode_lend_own(&w->t, i)); /* there is no other */
    assert_true(tree_add_empty(&w->t, 60, &a));
    struct tree_directory *d = tree_find(&w->t, i);
    assert_true(tree_lacks(&w->t, d, bytes_of_string("x")) && tree_is_complete(d));
    assert_int_equal(tree_count(d), 0);
    tree_name_made(&w->t, i, bytes_of_string("x"), NULL);
    assert_false(tree_lacks(&w->t, d, bytes_of_string("x")));
    /* The listing's end is not the inode's. */
    tree_changed(&w->t, 60, 7, true);
    settle(w);
    assert_int_equal(w->refs[60], 1);
    inode_forget(&w->t, i, 1);
    settle(w);
    assert_int_equal(w->refs[60], 0);
}

static void test_too_many_names_made(void **state)
{
    struct world *w = *state;
    char name[16];
    take_sample(w);
    for (unsigned i = 0; i < TREE_MADE_MAX; i++) {
        (void)snprintf(name, sizeof name, "new%u", i);
        made(w, name, 100 + i);
    }
    assert_false(lacks(w, "new7"));
    made(w, "one more", 1);
    assert_null(root_listing(w));
}

static void test_attributes_told_with_an_answer(void **state)
{
    struct world *w = *state;
    struct wire_attr a = attr(50, S_IFREG);
    assert_null(attrs_get(&w->t, 50, 7));
    attrs_note(&w->t, &a);
    assert_non_null(attrs_get(&w->t, 50, 7));
    assert_null(attrs_get(&w->t, 50, 8));
    assert_null(attrs_get(&w->t, 0, 0));
    tree_changed(&w->t, 50, 7, false);
    assert_null(attrs_get(&w->t, 50, 7));
    /* Of a directory, whichever way it changes. */
    a = attr(1, S_IFDIR);
    attrs_note(&w->t, &a);
    made(w, "new", 50);
    assert_null(attrs_get(&w->t, 1, 7));
    attrs_note(&w->t, &a);
    removed(w, "new");
    assert_null(attrs_get(&w->t, 1, 7));
    attrs_note(&w->t, &a);
    tree_changed(&w->t, 1, 7, true);
    assert_null(attrs_get(&w->t, 1, 7));
    /* With its last inode the reports end, and with the lease all. */
    struct inode *i;
    a = attr(50, S_IFREG);
    w->refs[50] = 1;
    assert_int_equal(inode_enter(&w->t, 50, &a, 0, w->t.root, bytes_of_string("file"), &i), 0);
    attrs_note(&w->t, &a);
    inode_drop(&w->t, i);
    settle(w);
    assert_null(attrs_get(&w->t, 50, 7));
    attrs_note(&w->t, &a);
    tree_forget(&w->t);
    assert_null(attrs_get(&w->t, 50, 7));
    /* Past their number one makes another go. */
    for (uint64_t n = 0; n < 4 * ATTRS_MAX; n++) {
        a = attr(100 + n, S_IFREG);
        attrs_note(&w->t, &a);
    }
    size_t kept = 0;
    for (uint64_t n = 0; n < 4 * ATTRS_MAX; n++)
        kept += attrs_get(&w->t, 100 + n, 7) != NULL;
    assert_true(kept > ATTRS_MAX / 2 && kept <= ATTRS_MAX);
}

static void test_a_listing_of_which_much_has_changed_is_stale(void **state)
{
    struct world *w = *state;
    char name[16];
    for (unsigned i = 10; i < 40; i++) {
        (void)snprintf(name, sizeof name, "f%u", i);
        add_entry(w, i, name, S_IFREG);
    }
    end_directory(w, 1);
    take_now(w);
    for (unsigned i = 10; i < 10 + TREE_STALE_MAX; i++)
        tree_changed(&w->t, i, 7, false);
    tree_changed(&w->t, 10, 7, false); /* counted once */
    assert_false(tree_is_stale(root_listing(w)));
    tree_changed(&w->t, 39, 7, false);
    assert_true(tree_is_stale(root_listing(w)));
}

static void test_changes_while_the_answer_is_on_its_way(void **state)
{
    struct world *w = *state;
    assert_int_equal(tree_asked(&w->t), 0);
    uint64_t stamp = w->t.stamp;
    tree_changed(&w->t, 13, 7, false);
    tree_changed(&w->t, 20, 7, true);
    assert_int_equal(tree_asked(&w->t), 0);
    uint64_t later = w->t.stamp;
    tree_changed(&w->t, 15, 7, false);
    add_entry(w, 13, "f13", S_IFREG);
    add_entry(w, 14, "f14", S_IFREG);
    add_entry(w, 15, "f15", S_IFREG);
    add_entry(w, 20, "d", S_IFDIR);
    end_directory(w, 1);
    add_entry(w, 21, "f21", S_IFREG);
    end_directory(w, 20);
    take(w, stamp, true);
    tree_answered(&w->t);
    assert_int_equal(named(w, "f13").node, 0);
    assert_int_equal(named(w, "f14").node, 14);
    assert_int_equal(w->t.tree.count, 4); /* not that of 20 */
    /* What was asked after the change knows it. */
    add_entry(w, 13, "f13", S_IFREG);
    add_entry(w, 15, "f15", S_IFREG);
    end_directory(w, 1);
    take(w, later, true);
    tree_answered(&w->t);
    assert_int_equal(named(w, "f13").node, 13);
    assert_int_equal(named(w, "f15").node, 0);
    /* More than can be noted: nothing of it is kept. */
    assert_int_equal(tree_asked(&w->t), 0);
    stamp = w->t.stamp;
    for (uint64_t i = 0; i <= TREE_RECENT_MAX; i++)
        tree_changed(&w->t, 100000 + i, 7, false);
    add_entry(w, 21, "f21", S_IFREG);
    end_directory(w, 20);
    take(w, stamp, true);
    tree_answered(&w->t);
    assert_int_equal(w->t.tree.count, 2);
    /* Nor of what was asked for before all was forgotten. */
    assert_int_equal(tree_asked(&w->t), 0);
    stamp = w->t.stamp;
    tree_forget(&w->t);
    settle(w);
    add_entry(w, 21, "f21", S_IFREG);
    end_directory(w, 1);
    take(w, stamp, true);
    tree_answered(&w->t);
    assert_null(root_listing(w));
}

static void test_inodes_live_by_what_was_lent(void **state)
{
    struct world *w = *state;
    take_sample(w);
    struct inode *kept = lend(w, "f13"), *forgotten = lend(w, "f14"), *dir = lend(w, "d");
    assert_int_equal(kept->wire_refs, 0);
    assert_ptr_equal(lend(w, "f13"), kept);
    assert_non_null(tree_find(&w->t, dir));
    /* The kernel forgets: the listing has it still, and gives it again. */
    inode_forget(&w->t, forgotten, 1);
    settle(w);
    assert_int_equal(w->refs[14], 1);
    forgotten = lend(w, "f14");
    inode_forget(&w->t, forgotten, 1);
    /* The listing goes: each reference to whoever lives by it, the others back. */
    tree_changed(&w->t, 1, 7, true);
    settle(w);
    assert_int_equal(kept->wire_refs, 1);
    assert_int_equal(dir->wire_refs, 1);
    assert_int_equal(w->refs[13], 1);
    assert_int_equal(w->refs[14], 0);
    /* Again, while the inode has one of its own. */
    take_sample(w);
    assert_ptr_equal(lend(w, "f13"), kept);
    assert_int_equal(kept->wire_refs, 1);
    assert_int_equal(w->refs[13], 2);
    inode_forget(&w->t, kept, 3);
    inode_forget(&w->t, dir, 1);
    settle(w);
    assert_int_equal(w->refs[13], 1);
}

static size_t given_back(struct world *w)
{
    size_t count = w->t.forgets.len / 16;
    take_back(w);
    return count;
}

/* What a portion is does not depend on how much there is; what is left tells nothing any more, but
 * what it holds is held. */
static void test_a_listing_goes_by_portions(void **state)
{
    struct world *w = *state;
    enum { FILES = 2000, FIRST = 100, PORTION = 64 };
    char name[16];
    for (unsigned i = FIRST; i < FIRST + FILES; i++) {
        (void)snprintf(name, sizeof name, "f%u", i);
        add_entry(w, i, name, S_IFREG);
    }
    end_directory(w, 1);
    take_now(w);
    struct inode *lent = lend(w, "f100");
    struct wire_attr a;
    size_t bytes = w->t.tree.bytes;
    assert_true(tree_file_attr(&w->t, 100, 7, &a));
    tree_changed(&w->t, 1, 7, true);
    assert_int_equal(given_back(w), 0);
    assert_int_equal(w->t.tree.dropping, FILES);
    assert_true(w->t.tree.bytes == 0 && bytes > 0);
    assert_null(root_listing(w));
    assert_false(tree_file_attr(&w->t, 100, 7, &a));
    assert_true(tree_has_file(&w->t, 100, 7));
    assert_true(tree_drop_some(&w->t, PORTION));
    assert_int_equal(given_back(w), PORTION);
    assert_int_equal(w->t.tree.dropping, FILES - PORTION);
    /* Changes of its files go where they are told now; the same directory anew has its own. */
    tree_changed(&w->t, 101, 7, false);
    add_entry(w, 100, "f100", S_IFREG);
    add_entry(w, 101, "f101", S_IFREG);
    end_directory(w, 1);
    take_only(w, w->t.stamp, true);
    assert_int_equal(given_back(w), 5); /* twice as many as came, and one */
    assert_int_equal(tree_count(root_listing(w)), 2);
    assert_int_equal(named(w, "f101").node, 101);
    assert_true(tree_file_attr(&w->t, 101, 7, &a));
    tree_changed(&w->t, 101, 7, false);
    assert_false(tree_file_attr(&w->t, 101, 7, &a));
    assert_int_equal(lent->wire_refs, 0);
    size_t portions = 0, most = 0;
    for (bool more = true; more; portions++) {
        more = tree_drop_some(&w->t, PORTION);
        size_t count = given_back(w);
        most = count > most ? count : most;
    }
    assert_int_equal(most, PORTION);
    assert_int_equal(portions, (FILES - PORTION - 5) / PORTION + 1);
    assert_int_equal(w->t.tree.count, 2);
    assert_false(tree_has_file(&w->t, 102, 7));
    assert_int_equal(named(w, "f100").node, 100);
    /* One of the references is the inode's. */
    assert_int_equal(lent->wire_refs, 1);
    assert_int_equal(w->refs[100], 2);
    inode_forget(&w->t, lent, 1);
    settle(w);
    assert_int_equal(w->refs[100], 1);
}

/* A directory or link is another inode at another place; one reference serves one of them. */
static void test_one_inode_lives_by_one_reference(void **state)
{
    struct world *w = *state;
    add_entry(w, 10, "one", S_IFDIR);
    add_entry(w, 11, "other", S_IFDIR);
    end_directory(w, 1);
    add_entry(w, 10, "moved", S_IFDIR);
    end_directory(w, 11);
    take_now(w);
    struct inode *one = lend(w, "one"), *other = lend(w, "other"), *moved;
    struct wire_attr a = attr(10, S_IFDIR);
    struct bytes name = bytes_of_string("moved");
    assert_int_equal(inode_lend(&w->t, 10, &a, other, name, &moved), -EEXIST);
    /* With one of its own it can be. */
    w->refs[10]++;
    assert_int_equal(inode_enter(&w->t, 10, &a, 0, other, name, &moved), 0);
    inode_looked_up(moved);
    assert_ptr_not_equal(moved, one);
    tree_forget(&w->t);
    settle(w);
    assert_int_equal(one->wire_refs, 1);
    assert_int_equal(moved->wire_refs, 1);
    assert_int_equal(w->refs[10], 2);
    inode_forget(&w->t, moved, 1);
    inode_forget(&w->t, one, 1);
    inode_forget(&w->t, other, 1);
}

static void test_another_node_of_the_same_file(void **state)
{
    struct world *w = *state;
    struct wire_attr a = attr(10, S_IFREG);
    struct inode *i, *same;
    w->refs[100]++;
    assert_int_equal(inode_enter(&w->t, 100, &a, 0, w->t.root, bytes_of_string("a"), &i), 0);
    inode_looked_up(i);
    add_entry(w, 10, "a", S_IFREG);
    end_directory(w, 1);
    take_now(w);
    assert_int_equal(inode_lend(&w->t, 10, &a, w->t.root, bytes_of_string("a"), &same), -EEXIST);
    tree_forget(&w->t);
    settle(w);
    assert_int_equal(w->refs[10], 0);
    assert_int_equal(w->refs[100], 1);
    inode_forget(&w->t, i, 1);
}

static void test_after_a_new_connection(void **state)
{
    struct world *w = *state;
    take_sample(w);
    struct inode *i = lend(w, "f13");
    tree_forget(&w->t);
    settle(w);
    w->t.connection++;
    w->t.forgets.len = 0;
    memset(w->refs, 0, sizeof w->refs);
    /* What the old connection lent is gone; the new one lends its own. */
    take_sample(w);
    assert_ptr_equal(lend(w, "f13"), i);
    assert_int_equal(i->connection, w->t.connection);
    assert_int_equal(i->wire_refs, 0);
    tree_changed(&w->t, 1, 7, true);
    settle(w);
    assert_int_equal(i->wire_refs, 1);
    assert_int_equal(w->refs[13], 1);
    inode_forget(&w->t, i, 2);
}

static void take_part(struct world *w, unsigned from, unsigned to, uint64_t cookie, bool end)
{
    char name[16];
    for (unsigned i = from; i < to; i++) {
        (void)snprintf(name, sizeof name, "f%u", i);
        add_entry(w, i, name, S_IFREG);
    }
    end_directory_of(w, 1, end, 0, WIRE_ATTR_COVERED);
    w->cookie = cookie;
    take_now(w);
}

/* A directory that comes in parts. */
static void test_going_on(void **state)
{
    struct world *w = *state;
    take_part(w, 10, 20, 0, false);
    struct tree_directory *d = root_listing(w);
    assert_true(tree_can_go_on(d) && !tree_is_complete(d));
    assert_int_equal(tree_cookie(d), 190);
    assert_int_equal(tree_named(&w->t, d, bytes_of_string("f25")), -ENOENT);
    /* Another answer to the same question, and one that goes on elsewhere, are given back. */
    take_part(w, 20, 30, 180, false);
    assert_int_equal(tree_count(root_listing(w)), 10);
    take_part(w, 20, 30, 190, false);
    assert_ptr_equal(root_listing(w), d);
    assert_int_equal(tree_count(d), 20);
    take_part(w, 20, 30, 190, false);
    assert_int_equal(tree_count(d), 20);
    assert_int_equal(named(w, "f25").node, 25);
    take_part(w, 30, 40, 290, true);
    assert_true(tree_is_complete(d) && tree_has_all_names(d) && !tree_can_go_on(d));
    for (unsigned i = 10; i < 40; i++) {
        struct wire_dirent entry;
        tree_read(d, i - 10, &entry);
        assert_int_equal(entry.node, i);
        assert_int_equal(tree_index(d, i * 10, i % 7), i - 10 + 1);
        assert_int_equal(w->refs[i], 1);
    }
    assert_int_equal(named(w, "f12").node, 12);
    assert_int_equal(named(w, "f39").node, 39);
    assert_int_equal(tree_named(&w->t, d, bytes_of_string("f40")), -ENOENT);
    /* A change in any part. */
    tree_changed(&w->t, 35, 7, false);
    assert_int_equal(named(w, "f35").node, 0);
    assert_int_equal(named(w, "f15").node, 15);
    /* An empty end, and one after the listing has gone. */
    tree_forget(&w->t);
    settle(w);
    take_part(w, 10, 20, 190, true);
    assert_null(root_listing(w));
    take_part(w, 10, 20, 0, false);
    take_part(w, 0, 0, 190, true);
    assert_true(tree_is_complete(root_listing(w)));
    assert_int_equal(w->refs[1], 2);
}

/* Somebody goes through all directories in one. */
static void test_walks(void **state)
{
    struct world *w = *state;
    char name[16];
    for (unsigned i = 10; i < 20; i++) {
        (void)snprintf(name, sizeof name, "d%u", i);
        add_entry(w, i, name, i % 2 ? S_IFREG : S_IFDIR);
    }
    end_directory(w, 1);
    end_directory(w, 14);
    take_now(w);
    struct tree_directory *d = root_listing(w);
    uint64_t nodes[8];
    assert_false(tree_walks(d, 0));
    assert_true(tree_walks(d, 2));
    assert_false(tree_walks(d, 0)); /* back */
    assert_true(tree_walks(d, 6));
    /* Directories, of those that are not here; 14 is. */
    assert_int_equal(tree_unread(&w->t, d, 0, nodes, ARRAY_SIZE(nodes)), 4);
    assert_int_equal(nodes[0], 10);
    assert_int_equal(nodes[2], 16);
    assert_int_equal(tree_unread(&w->t, d, 3, nodes, 1), 1);
    assert_int_equal(nodes[0], 16);
    assert_int_equal(tree_unread(&w->t, d, 9, nodes, ARRAY_SIZE(nodes)), 0);
}

/* More than it may hold: what was used longest ago makes room. */
static void test_memory_is_bounded(void **state)
{
    struct world *w = *state;
    const unsigned files = 1000;
    size_t directories = TREE_MEMORY_MAX / (files * 35) + 50;
    char name[WIRE_NAME_MAX + 1];
    for (size_t n = 0; n < directories; n++) {
        for (unsigned i = 0; i < files; i++) {
            (void)snprintf(name, sizeof name, "file-%u", i);
            struct wire_message m = {.type = WIRE_DIRENT,
                                     .dirent = {.cookie = i + 1,
                                                .ino = n * files + i,
                                                .type = S_IFREG,
                                                .name = bytes_of_string(name),
                                                .attr = attr(n * files + i, S_IFREG)}};
            append(&w->entries, &m);
            w->entry_count++;
        }
        end_directory(w, 10 + n);
        take_now(w);
        assert_true(w->t.tree.bytes <= TREE_MEMORY_MAX);
    }
    size_t each = w->t.tree.bytes / w->t.tree.count;
    size_t chains = w->t.tree.capacity * sizeof(void *) / w->t.tree.count;
    print_message("%zu entries, %zu bytes each and %zu of chains\n", w->t.tree.count, each, chains);
    assert_true(each + chains < 60);
    assert_int_equal(w->refs[10], 0);
    assert_int_equal(w->refs[10 + directories - 1], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_names_and_cookies),
        TEST(test_names_that_are_none),
        TEST(test_what_is_not_kept),
        TEST(test_changes),
        TEST(test_what_is_made_and_removed_is_known),
        TEST(test_what_is_replaced),
        TEST(test_readers_go_on_where_names_were_removed),
        TEST(test_another_directory_that_was_added_to_is_unread),
        TEST(test_an_answer_on_its_way_may_lack_what_was_made),
        TEST(test_a_new_directory_is_known_to_be_empty),
        TEST(test_too_many_names_made),
        TEST(test_attributes_told_with_an_answer),
        TEST(test_a_listing_of_which_much_has_changed_is_stale),
        TEST(test_changes_while_the_answer_is_on_its_way),
        TEST(test_a_listing_goes_by_portions),
        TEST(test_inodes_live_by_what_was_lent),
        TEST(test_one_inode_lives_by_one_reference),
        TEST(test_another_node_of_the_same_file),
        TEST(test_after_a_new_connection),
        TEST(test_going_on),
        TEST(test_walks),
        TEST(test_memory_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
