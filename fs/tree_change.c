/* What takes away from listings: changes by others, and names that this mount changes. */
#include "tree_private.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "inode.h"
#include "listing.h"

/* --- changes ---------------------------------------------------------------------------- */

/* The attributes of a file, wherever they are told. */
static void take_attr_away(struct inode_table *t, uint64_t ino, uint64_t generation)
{
    struct tree_directory *d = tree_find_directory(t, ino, generation);
    if (d)
        d->fresh = false;
    attrs_changed(t, ino, generation);
    if (!t->tree.count)
        return;
    for (struct tree_entry *e = *tree_chain_of(t, ino, generation); e; e = e->same)
        if (e->fresh && tree_is_file(e, ino, generation)) {
            e->fresh = false;
            tree_part_of(e)->directory->stale += !e->linked;
        }
}

void tree_take_away(struct inode_table *t, uint64_t ino, uint64_t generation, bool names)
{
    struct tree_directory *d = names ? tree_find_directory(t, ino, generation) : NULL;
    if (d)
        tree_drop(t, d);
    take_attr_away(t, ino, generation);
}

/* For the answers that are under way. */
static void note_change(struct inode_table *t, uint64_t ino, uint64_t generation, bool names)
{
    struct tree_store *tree = &t->tree;
    if (!tree->asked)
        return;
    uint64_t stamp = ++t->stamp;
    if (tree->recent_count < TREE_RECENT_MAX)
        tree->recent[tree->recent_count++] = (struct tree_change){
            .ino = ino, .generation = generation, .stamp = stamp, .names = names};
    else
        tree->lost_stamp = stamp;
}

void tree_changed(struct inode_table *t, uint64_t ino, uint64_t generation, bool names)
{
    tree_take_away(t, ino, generation, names);
    if (!names)
        content_changed(t, ino, generation);
    note_change(t, ino, generation, names);
}
/* --- names that this mount changes ---------------------------------------------------------- */

static void remove_entry(struct inode_table *t, struct tree_entry *e)
{
    tree_remove_from_chain(t, e);
    e->gone = true;
    e->fresh = false;
    tree_pass_reference(t, e);
    e->held = false;
}

static void forget_made(struct inode_table *t, struct tree_directory *d, struct bytes name)
{
    t->tree.bytes -= tree_names_memory(d);
    free(table_take(&d->made, inode_hash_name(t, name)));
    t->tree.bytes += tree_names_memory(d);
}

/* The name is not noted yet. -ENOMEM */
static int note_made(struct inode_table *t, struct tree_directory *d, struct bytes name,
                     const struct wire_attr *file)
{
    struct made_name *m = d->made.count < TREE_MADE_MAX ? calloc(1, sizeof *m) : NULL, *old;
    if (!m)
        return -ENOMEM;
    if (file)
        *m = (struct made_name){.ino = file->ino, .generation = file->generation};
    t->tree.bytes -= tree_names_memory(d);
    int r = table_put(&d->made, inode_hash_name(t, name), m, (void **)&old);
    free(r < 0 ? m : old);
    t->tree.bytes += tree_names_memory(d);
    return r;
}

/* 1: the name is there, and leads to that file; 0: it is not there, any more. -ENOMEM */
static int clear_name(struct inode_table *t, struct tree_directory *d, struct bytes name,
                      const struct wire_attr *file)
{
    ssize_t index = tree_named(t, d, name);
    struct tree_entry *e = index >= 0 ? tree_entry_at(d, (size_t)index) : NULL;
    struct wire_dirent entry;
    if (e && file) {
        tree_unpack(e, &entry);
        if (e->held && entry.attr.ino == file->ino && entry.attr.generation == file->generation)
            return 1;
    }
    if (e)
        remove_entry(t, e);
    else if (index == -ENOENT)
        forget_made(t, d, name);
    return index == -ENOMEM ? -ENOMEM : 0;
}

void tree_name_made(struct inode_table *t, const struct inode *directory, struct bytes name,
                    const struct wire_attr *file)
{
    struct tree_directory *d = tree_find_directory(t, directory->ino, directory->generation);
    if (d) {
        int r = clear_name(t, d, name, file);
        if (r == 0)
            r = note_made(t, d, name, file);
        if (r < 0)
            tree_drop(t, d);
    }
    take_attr_away(t, directory->ino, directory->generation);
    note_change(t, directory->ino, directory->generation, true);
}

void tree_name_removed(struct inode_table *t, const struct inode *directory, struct bytes name)
{
    struct tree_directory *d = tree_find_directory(t, directory->ino, directory->generation);
    if (d && clear_name(t, d, name, NULL) < 0)
        tree_drop(t, d);
    take_attr_away(t, directory->ino, directory->generation);
    note_change(t, directory->ino, directory->generation, true);
}

bool tree_add_empty(struct inode_table *t, uint64_t node, const struct wire_attr *attr)
{
    const struct wire_tree_directory empty = {.node = node, .attr = *attr, .end = true};
    return tree_add(t, &empty) == 0;
}
