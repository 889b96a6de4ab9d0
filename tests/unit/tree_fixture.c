#include "tree_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

struct wire_attr attr(uint64_t ino, uint32_t type)
{
    return (struct wire_attr){
        .ino = ino, .generation = 7, .mode = type | 0644, .nlink = 1, .flags = WIRE_ATTR_COVERED};
}

int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    assert_int_equal(inode_table_init(&w->t, INODE_WORKSPACE), 0);
    const struct wire_attr a = attr(1, S_IFDIR);
    assert_int_equal(inode_set_root(&w->t, 1, &a, bytes_of_string("demo")), 0);
    w->refs[1] = 1;
    *state = w;
    return 0;
}

void take_back(struct world *w)
{
    const uint8_t *p = w->t.forgets.data;
    for (size_t at = 0; at < w->t.forgets.len; at += 16) {
        uint64_t node = 0, count = 0;
        for (int i = 7; i >= 0; i--) {
            node = node << 8 | p[at + (size_t)i];
            count = count << 8 | p[at + 8 + (size_t)i];
        }
        assert_true(node < NODES);
        assert_true(w->refs[node] >= count); /* never more than there are */
        w->refs[node] -= count;
    }
    w->t.forgets.len = 0;
}

void settle(struct world *w)
{
    assert_false(tree_drop_some(&w->t, SIZE_MAX));
    assert_int_equal(w->t.tree.dropping, 0);
    take_back(w);
}

int teardown(void **state)
{
    struct world *w = *state;
    tree_forget(&w->t);
    settle(w);
    /* All that nothing uses has been given back. */
    for (size_t i = 2; i < NODES; i++)
        assert_int_equal(w->refs[i], 0);
    assert_int_equal(w->t.tree.count, 0);
    assert_int_equal(w->t.tree.bytes, 0);
    inode_table_release(&w->t);
    buffer_release(&w->directories);
    buffer_release(&w->entries);
    free(w);
    return 0;
}

/* --- answers ---------------------------------------------------------------------------- */

void append(struct buffer *list, const struct wire_message *m)
{
    struct buffer element = {0};
    assert_int_equal(wire_encode(&element, m), 0);
    assert_int_equal(wire_list_append(list, buffer_view(&element)), 0);
    buffer_release(&element);
}

void add_entry_of(struct world *w, uint64_t node, const char *name, struct wire_attr a)
{
    struct wire_message m = {.type = WIRE_DIRENT,
                             .dirent = {.cookie = node * 10,
                                        .node = node,
                                        .ino = a.ino,
                                        .type = a.mode & S_IFMT,
                                        .name = bytes_of_string(name),
                                        .attr = a}};
    append(&w->entries, &m);
    w->entry_count++;
    w->refs[node]++;
}

void add_entry(struct world *w, uint64_t node, const char *name, uint32_t type)
{
    add_entry_of(w, node, name, attr(node, type));
}

void end_directory_of(struct world *w, uint64_t node, bool end, uint32_t unlisted, uint32_t flags)
{
    struct wire_message m = {
        .type = WIRE_TREE_DIRECTORY,
        .tree_directory = {.node = node,
                           .end = end,
                           .unlisted = unlisted,
                           .attr = attr(node, S_IFDIR),
                           .entries = wire_list_of(&w->entries, w->entry_count)}};
    m.tree_directory.attr.flags = flags;
    append(&w->directories, &m);
    w->directory_count++;
    w->entries.len = 0;
    w->entry_count = 0;
    w->refs[node]++;
}

void end_directory(struct world *w, uint64_t node)
{
    end_directory_of(w, node, true, 0, WIRE_ATTR_COVERED);
}

void take_only(struct world *w, uint64_t stamp, bool keep)
{
    const struct wire_tree tree = {.directories =
                                       wire_list_of(&w->directories, w->directory_count)};
    tree_take(&w->t, &tree, w->cookie, stamp, keep);
    w->cookie = 0;
    w->directories.len = 0;
    w->directory_count = 0;
}

void take(struct world *w, uint64_t stamp, bool keep)
{
    take_only(w, stamp, keep);
    settle(w);
}

void take_now(struct world *w)
{
    take(w, w->t.stamp, true);
}

void take_sample(struct world *w)
{
    char name[16];
    for (unsigned i = 10; i < 20; i++) {
        (void)snprintf(name, sizeof name, "f%u", i);
        add_entry(w, i, name, S_IFREG);
    }
    add_entry(w, 20, "d", S_IFDIR);
    end_directory(w, 1);
    for (unsigned i = 21; i < 30; i++) {
        (void)snprintf(name, sizeof name, "f%u", i);
        add_entry(w, i, name, S_IFREG);
    }
    end_directory(w, 20);
    take_now(w);
}

struct tree_directory *root_listing(struct world *w)
{
    return tree_find(&w->t, w->t.root);
}

struct wire_dirent named(struct world *w, const char *name)
{
    struct tree_directory *d = root_listing(w);
    assert_non_null(d);
    ssize_t index = tree_named(&w->t, d, bytes_of_string(name));
    assert_true(index >= 0);
    struct wire_dirent entry;
    tree_read(d, (size_t)index, &entry);
    return entry;
}

struct inode *lend(struct world *w, const char *name)
{
    struct wire_dirent entry = named(w, name);
    struct inode *i;
    assert_int_not_equal(entry.node, 0);
    assert_int_equal(inode_lend(&w->t, entry.node, &entry.attr, w->t.root, entry.name, &i), 0);
    inode_looked_up(i);
    return i;
}
