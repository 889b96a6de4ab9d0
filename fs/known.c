#include "known.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "inode.h"

struct known_attr {
    struct wire_attr attr;
    bool right;
    struct inode *directory; /* pinned; NULL: it is none, or not kept */
};

struct known_link {
    uint64_t ino, generation;
    size_t len;
    uint8_t text[];
};

void known_start(struct inode_table *t)
{
    t->known.wanted = true;
}

/* --- attributes ------------------------------------------------------------------------- */

static struct known_attr *find_attr(const struct inode_table *t, const struct inode *i)
{
    return t->known.attrs.count ? table_get(&t->known.attrs, i->id) : NULL;
}

void known_note_attr(struct inode_table *t, struct inode *i, const struct wire_attr *attr)
{
    struct known_files *k = &t->known;
    if (!k->wanted)
        return;
    struct known_attr *a = find_attr(t, i);
    if (!a) {
        a = calloc(1, sizeof *a);
        if (!a || table_put(&k->attrs, i->id, a, NULL) < 0) {
            free(a);
            return;
        }
        if (i->type == S_IFDIR && k->directories < KNOWN_DIRECTORIES_MAX) {
            k->directories++;
            a->directory = inode_pin(i);
        }
    }
    a->attr = *attr;
    a->right = true;
}

const struct wire_attr *known_attr(const struct inode_table *t, const struct inode *i)
{
    const struct known_attr *a = find_attr(t, i);
    return a && a->right ? &a->attr : NULL;
}

struct inode *known_named(struct inode_table *t, const struct inode *parent, struct bytes name)
{
    struct inode *i = inode_named(t, parent, name);
    while (i && (!known_attr(t, i) || inode_is_displaced(i)))
        i = inode_named_after(t, i, parent, name);
    return i;
}

void known_changed(struct inode_table *t, const struct inode *i)
{
    struct known_attr *a = find_attr(t, i);
    if (a)
        a->right = false;
}

void known_name_changed(struct inode_table *t, const struct inode *parent, struct bytes name)
{
    const struct inode *i = t->known.attrs.count ? inode_named(t, parent, name) : NULL;
    for (; i; i = inode_named_after(t, i, parent, name))
        known_changed(t, i);
}

void known_gone(struct inode_table *t, const struct inode *i)
{
    if (t->known.attrs.count)
        free(table_take(&t->known.attrs, i->id));
}

static void forget(struct inode_table *t, bool unpin)
{
    /* The table must not change while one goes through it. */
    struct table attrs = t->known.attrs;
    struct known_attr *a;
    size_t cursor = 0;
    t->known.attrs = (struct table){0};
    t->known.directories = 0;
    while ((a = table_next(&attrs, &cursor))) {
        if (unpin)
            inode_unpin(t, a->directory);
        free(a);
    }
    table_release(&attrs);
}

void known_forget(struct inode_table *t)
{
    forget(t, true);
}

/* --- links -------------------------------------------------------------------------------- */

static uint64_t link_key(const struct inode_table *t, const struct inode *i)
{
    return table_hash_pair(i->ino ^ t->seed, i->generation);
}

static const struct known_link *find_link(const struct inode_table *t, const struct inode *i)
{
    const struct known_link *l = table_get(&t->known.links, link_key(t, i));
    return l && l->ino == i->ino && l->generation == i->generation ? l : NULL;
}

void known_note_link(struct inode_table *t, const struct inode *i, struct bytes text)
{
    struct known_files *k = &t->known;
    size_t size = sizeof(struct known_link) + text.len;
    if (!k->wanted || find_link(t, i) || k->link_bytes + size > KNOWN_LINKS_MAX)
        return;
    struct known_link *l = malloc(size);
    void *old = NULL;
    if (!l)
        return;
    *l = (struct known_link){.ino = i->ino, .generation = i->generation, .len = text.len};
    if (text.len)
        memcpy(l->text, text.data, text.len);
    if (table_put(&k->links, link_key(t, i), l, &old) < 0) {
        free(l);
        return;
    }
    k->link_bytes += size;
    if (old) /* another link of the same hash */
        k->link_bytes -= sizeof *l + ((const struct known_link *)old)->len;
    free(old);
}

struct bytes known_link(const struct inode_table *t, const struct inode *i)
{
    const struct known_link *l = find_link(t, i);
    return l ? bytes_of(l->text, l->len) : (struct bytes){0};
}

void known_release(struct inode_table *t)
{
    size_t cursor = 0;
    void *l;
    forget(t, false); /* the inodes are gone */
    while ((l = table_next(&t->known.links, &cursor)))
        free(l);
    table_release(&t->known.links);
    t->known = (struct known_files){0};
}
