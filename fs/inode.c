#include "inode.h"

#include <assert.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/table.h"

#define ROOT_ID 1 /* FUSE_ROOT_ID */
#define FIRST_CAPACITY 256

static uint64_t hash_name(const struct inode_table *t, const struct inode *parent,
                          struct bytes name)
{
    uint64_t h = t->seed;
    size_t i = 0;
    for (; i + 8 <= name.len; i += 8) {
        uint64_t part;
        memcpy(&part, name.data + i, sizeof part);
        h = table_hash_pair(h, part);
    }
    uint64_t rest = 0;
    if (name.len > i)
        memcpy(&rest, name.data + i, name.len - i);
    return table_hash_pair(table_hash_pair(h, rest ^ name.len), parent->id);
}

static uint64_t hash_identity(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    return table_hash_pair(ino ^ t->seed, generation);
}

static uint64_t hash_of(const struct inode_table *t, const struct inode *i, enum inode_index index)
{
    switch (index) {
    case INODE_BY_ID:
        return table_hash_pair(i->id, t->seed);
    case INODE_BY_IDENTITY:
        return hash_identity(t, i->ino, i->generation);
    case INODE_BY_NAME:
        return hash_name(t, i->parent, bytes_of(i->name, i->name_len));
    case INODE_INDEX_COUNT:
        break;
    }
    assert(false);
    return 0;
}

static struct inode **chain_head(const struct inode_table *t, enum inode_index index, uint64_t hash)
{
    const struct inode_chains *c = &t->chains[index];
    return &c->heads[hash & (c->capacity - 1)];
}

/* Doubles an index. Without memory the chains only get longer, so failure is no error. */
static void chains_grow(struct inode_table *t, enum inode_index index)
{
    struct inode_chains old = t->chains[index];
    struct inode **heads = calloc(old.capacity * 2, sizeof *heads);
    if (!heads)
        return;
    t->chains[index] = (struct inode_chains){.heads = heads, .capacity = old.capacity * 2};
    for (size_t slot = 0; slot < old.capacity; slot++) {
        struct inode *next;
        for (struct inode *i = old.heads[slot]; i; i = next) {
            next = i->next[index];
            struct inode **head = chain_head(t, index, hash_of(t, i, index));
            i->next[index] = *head;
            *head = i;
        }
    }
    free(old.heads);
}

static void chains_add(struct inode_table *t, struct inode *i, enum inode_index index)
{
    if (t->count > t->chains[index].capacity)
        chains_grow(t, index);
    struct inode **head = chain_head(t, index, hash_of(t, i, index));
    i->next[index] = *head;
    *head = i;
}

static void chains_remove(struct inode_table *t, struct inode *i, enum inode_index index)
{
    struct inode **link = chain_head(t, index, hash_of(t, i, index));
    while (*link && *link != i)
        link = &(*link)->next[index];
    if (*link)
        *link = i->next[index];
    i->next[index] = NULL;
}

int inode_table_init(struct inode_table *t, uint8_t root_flags)
{
    *t = (struct inode_table){.last_id = ROOT_ID};
    if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) != sizeof t->seed)
        t->seed = (uint64_t)(uintptr_t)t;
    for (enum inode_index index = 0; index < INODE_INDEX_COUNT; index++) {
        t->chains[index].heads = calloc(FIRST_CAPACITY, sizeof *t->chains[index].heads);
        t->chains[index].capacity = FIRST_CAPACITY;
        if (!t->chains[index].heads) {
            inode_table_release(t);
            return -ENOMEM;
        }
    }
    t->root = calloc(1, sizeof *t->root);
    if (!t->root) {
        inode_table_release(t);
        return -ENOMEM;
    }
    t->root->id = ROOT_ID;
    t->root->ino = ROOT_ID;
    t->root->type = S_IFDIR;
    t->root->flags = root_flags;
    t->root->pins = 1;
    /* Not by identity: an entry that claims to be the root would make the kernel fail. */
    t->count = 1;
    chains_add(t, t->root, INODE_BY_ID);
    return 0;
}

void inode_table_release(struct inode_table *t)
{
    struct inode_chains *all = &t->chains[INODE_BY_ID];
    for (size_t slot = 0; all->heads && slot < all->capacity; slot++) {
        struct inode *next;
        for (struct inode *i = all->heads[slot]; i; i = next) {
            next = i->next[INODE_BY_ID];
            free(i->name);
            free(i);
        }
    }
    for (enum inode_index index = 0; index < INODE_INDEX_COUNT; index++)
        free(t->chains[index].heads);
    buffer_release(&t->forgets);
    *t = (struct inode_table){0};
}

struct inode *inode_get(struct inode_table *t, uint64_t id)
{
    if (id == ROOT_ID)
        return t->root;
    struct inode *i = *chain_head(t, INODE_BY_ID, table_hash_pair(id, t->seed));
    while (i && i->id != id)
        i = i->next[INODE_BY_ID];
    return i;
}

struct inode *inode_named(struct inode_table *t, const struct inode *parent, struct bytes name)
{
    struct inode *i = *chain_head(t, INODE_BY_NAME, hash_name(t, parent, name));
    while (i && !(i->parent == parent && bytes_equal(bytes_of(i->name, i->name_len), name)))
        i = i->next[INODE_BY_NAME];
    return i;
}

bool inode_is(const struct inode *i, const struct wire_attr *attr)
{
    return i->ino == attr->ino && i->generation == attr->generation &&
           i->type == (attr->mode & S_IFMT);
}

static struct inode *find_identity(struct inode_table *t, const struct wire_attr *attr)
{
    struct inode *i =
        *chain_head(t, INODE_BY_IDENTITY, hash_identity(t, attr->ino, attr->generation));
    while (i && !inode_is(i, attr))
        i = i->next[INODE_BY_IDENTITY];
    return i;
}

void inode_give_back(struct inode_table *t, uint64_t node, uint64_t count)
{
    size_t len = t->forgets.len;
    if (buffer_append_u64(&t->forgets, node) < 0 || buffer_append_u64(&t->forgets, count) < 0)
        t->forgets.len = len;
}

void inode_adopt(struct inode_table *t, struct inode *i, uint64_t node)
{
    if (i->connection != t->connection) {
        /* What the old connection had counted went with it. */
        i->connection = t->connection;
        i->node = node;
        i->wire_refs = 1;
    } else if (i->node == node && i->wire_refs < UINT32_MAX) {
        i->wire_refs++;
    } else {
        /* Requests in flight may use the node we have: keep it. */
        inode_give_back(t, node, 1);
    }
}

void inode_unname(struct inode_table *t, struct inode *i)
{
    struct inode *parent = i->parent;
    if (!parent)
        return;
    chains_remove(t, i, INODE_BY_NAME);
    i->parent = NULL;
    i->name_len = 0;
    free(take_ptr(i->name));
    inode_unpin(t, parent);
}

static int set_name(struct inode *i, struct bytes name)
{
    char *copy = malloc(name.len + 1);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, name.data, name.len);
    copy[name.len] = '\0';
    i->name = copy;
    i->name_len = (uint8_t)name.len;
    return 0;
}

int inode_set_root(struct inode_table *t, uint64_t node, const struct wire_attr *attr,
                   struct bytes name)
{
    int r = set_name(t->root, name);
    if (r < 0)
        return r;
    t->root->ino = attr->ino;
    t->root->generation = attr->generation;
    t->connection = 1;
    t->root->connection = t->connection;
    t->root->node = node;
    t->root->wire_refs = 1;
    return 0;
}

int inode_rename(struct inode_table *t, struct inode *i, struct inode *parent, struct bytes name)
{
    if (i == t->root)
        return 0;
    if (i->parent == parent && bytes_equal(bytes_of(i->name, i->name_len), name))
        return 0;
    /* Pinned first: unnaming i may drop the last pin of the old parent's chain. */
    (void)inode_pin(parent);
    /* Another file had this name: it is not there any more. */
    struct inode *old = inode_named(t, parent, name);
    if (old && old != i)
        inode_unname(t, old);
    inode_unname(t, i);
    if (i->type == S_IFDIR) {
        /* Renames by others can make stale hints of directories point in a circle, which
         * would never be freed and never end: the staler hint goes. */
        for (struct inode *up = parent; up; up = up->parent)
            if (up->parent == i || up == i) {
                if (up != i)
                    inode_unname(t, up);
                break;
            }
    }
    if (parent == i) {
        inode_unpin(t, parent);
        return 0;
    }
    int r = set_name(i, name);
    if (r < 0) {
        inode_unpin(t, parent);
        return r;
    }
    i->parent = parent;
    chains_add(t, i, INODE_BY_NAME);
    return 0;
}

int inode_enter(struct inode_table *t, uint64_t node, const struct wire_attr *attr, uint8_t flags,
                struct inode *parent, struct bytes name, struct inode **ret)
{
    struct inode *i = find_identity(t, attr);
    if (i) {
        inode_adopt(t, i, node);
    } else {
        i = calloc(1, sizeof *i);
        if (!i) {
            inode_give_back(t, node, 1);
            return -ENOMEM;
        }
        i->id = ++t->last_id;
        i->ino = attr->ino;
        i->generation = attr->generation;
        i->type = attr->mode & S_IFMT;
        i->flags = flags;
        i->node = node;
        i->wire_refs = 1;
        i->connection = t->connection;
        t->count++;
        chains_add(t, i, INODE_BY_ID);
        chains_add(t, i, INODE_BY_IDENTITY);
    }
    (void)inode_pin(i);
    /* Only a hint: without memory the file is merely not found again later. */
    (void)inode_rename(t, i, parent, name);
    i->pins--;
    *ret = i;
    return 0;
}

void inode_drop(struct inode_table *t, struct inode *i)
{
    /* A loop, not recursion: a parent may be freed with its last child, up to the root. */
    while (i && i != t->root && i->nlookup == 0 && i->pins == 0) {
        struct inode *parent = i->parent;
        if (parent) {
            chains_remove(t, i, INODE_BY_NAME);
            parent->pins--;
        }
        chains_remove(t, i, INODE_BY_ID);
        chains_remove(t, i, INODE_BY_IDENTITY);
        t->count--;
        if (i->connection == t->connection && i->wire_refs)
            inode_give_back(t, i->node, i->wire_refs);
        free(i->name);
        free(i);
        i = parent;
    }
}

void inode_unpin(struct inode_table *t, struct inode *i)
{
    if (!i)
        return;
    assert(i->pins > 0);
    i->pins--;
    inode_drop(t, i);
}

void inode_forget(struct inode_table *t, struct inode *i, uint64_t n)
{
    if (i == t->root)
        return;
    assert(n <= i->nlookup);
    i->nlookup -= n;
    inode_drop(t, i);
}

int inode_depth(const struct inode *directory, const struct inode **ret_workspace)
{
    int depth = 0;
    for (const struct inode *i = directory; i; i = i->parent, depth++)
        if (i->flags & INODE_WORKSPACE) {
            *ret_workspace = i;
            return depth;
        }
    return -1;
}
