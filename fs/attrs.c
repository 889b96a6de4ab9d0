#include "attrs.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "base/table.h"
#include "inode.h"

static size_t place_of(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    return table_hash_pair(ino ^ t->seed, generation) % ATTRS_MAX;
}

static struct wire_attr *find(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    struct wire_attr *attr = t->attrs ? &t->attrs[place_of(t, ino, generation)] : NULL;
    return attr && attr->ino == ino && attr->generation == generation ? attr : NULL;
}

void attrs_note(struct inode_table *t, const struct wire_attr *attr)
{
    if (!t->attrs)
        t->attrs = calloc(ATTRS_MAX, sizeof *t->attrs);
    if (t->attrs) /* without memory the service is asked */
        t->attrs[place_of(t, attr->ino, attr->generation)] = *attr;
}

const struct wire_attr *attrs_get(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    return ino ? find(t, ino, generation) : NULL;
}

bool attrs_are_sure(const struct inode *i, const struct wire_attr *attr)
{
    return i->type == S_IFDIR || (attr->nlink <= 1 && i->parent && !(i->flags & INODE_LINKED));
}

void attrs_changed(struct inode_table *t, uint64_t ino, uint64_t generation)
{
    struct wire_attr *attr = find(t, ino, generation);
    if (attr)
        *attr = (struct wire_attr){0};
}

void attrs_forget(struct inode_table *t)
{
    free(take_ptr(t->attrs));
}
