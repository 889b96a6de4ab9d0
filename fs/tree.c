#include "tree.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "inode.h"
#include "listing.h"

#define FIRST_CAPACITY 1024

struct tree_directory {
    struct tree_directory *newer, *older;
    uint64_t node;
    struct wire_attr attr; /* its own */
    uint8_t *data;         /* DIRENT elements, each behind its length */
    uint32_t *names;       /* chains: index + 1 of the first, or 0; NULL: not needed yet */
    uint32_t size;         /* of data */
    uint32_t count;
    uint32_t capacity; /* of names: a power of two */
    uint32_t stale;
    bool fresh;    /* attr is right */
    bool end;      /* data ends with the directory's last entry */
    bool unlisted; /* rules left something out */
    struct tree_entry entries[];
};

/* --- entries ------------------------------------------------------------------------- */

static void decode(const struct tree_directory *d, const struct tree_entry *e,
                   struct wire_message *ret)
{
    const struct wire_list list = {.data = d->data, .len = d->size};
    uint32_t offset = e->offset;
    struct bytes element;
    bool ok =
        wire_list_next(&list, &offset, &element) && wire_decode(WIRE_DIRENT, element, ret) == 0;
    assert(ok); /* as it was when it was taken */
    (void)ok;
}

void tree_read(const struct tree_directory *directory, size_t index, struct wire_dirent *ret)
{
    const struct tree_entry *e = &directory->entries[index];
    struct wire_message m;
    decode(directory, e, &m);
    if (!e->fresh)
        m.dirent.node = 0;
    *ret = m.dirent;
}

size_t tree_count(const struct tree_directory *directory)
{
    return directory->count;
}

static uint64_t cookie_of(const struct tree_directory *d, size_t index)
{
    struct wire_message m;
    decode(d, &d->entries[index], &m);
    return m.dirent.cookie;
}

ssize_t tree_index(const struct tree_directory *directory, uint64_t cookie, size_t near)
{
    if (cookie == 0)
        return 0;
    if (near > 0 && near <= directory->count && cookie_of(directory, near - 1) == cookie)
        return (ssize_t)near;
    for (size_t i = 0; i < directory->count; i++)
        if (cookie_of(directory, i) == cookie)
            return (ssize_t)i + 1;
    return -ENOENT;
}

/* --- by identity ----------------------------------------------------------------------- */

static uint64_t identity_key(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    return table_hash_pair(ino ^ t->seed, generation);
}

static struct tree_entry **chain_of(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    return &t->tree.files[identity_key(t, ino, generation) & (t->tree.capacity - 1)];
}

static struct tree_entry **chain_of_entry(const struct inode_table *t, const struct tree_entry *e)
{
    struct wire_message m;
    decode(e->directory, e, &m);
    return chain_of(t, m.dirent.attr.ino, m.dirent.attr.generation);
}

/* Makes room for `more` entries. */
static int files_reserve(struct inode_table *t, size_t more)
{
    struct tree_store *tree = &t->tree;
    size_t capacity = tree->capacity ? tree->capacity : FIRST_CAPACITY;
    while (capacity < tree->count + more)
        capacity *= 2;
    if (capacity == tree->capacity)
        return 0;
    struct tree_entry **old = tree->files, *next;
    struct tree_entry **files = calloc(capacity, sizeof(struct tree_entry *));
    if (!files)
        return -ENOMEM;
    size_t old_capacity = tree->capacity;
    tree->files = files;
    tree->capacity = capacity;
    for (size_t slot = 0; slot < old_capacity; slot++)
        for (struct tree_entry *e = old[slot]; e; e = next) {
            next = e->same;
            struct tree_entry **chain = chain_of_entry(t, e);
            e->same = *chain;
            *chain = e;
        }
    free(old);
    return 0;
}

static struct tree_directory *find(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    struct tree_directory *d = table_get(&t->tree.directories, identity_key(t, ino, generation));
    return d && d->attr.ino == ino && d->attr.generation == generation ? d : NULL;
}

/* --- the order of use ------------------------------------------------------------------ */

static void order_remove(struct tree_store *tree, struct tree_directory *d)
{
    *(d->newer ? &d->newer->older : &tree->newest) = d->older;
    *(d->older ? &d->older->newer : &tree->oldest) = d->newer;
    d->newer = d->older = NULL;
}

static void order_add(struct tree_store *tree, struct tree_directory *d)
{
    d->older = tree->newest;
    *(tree->newest ? &tree->newest->newer : &tree->oldest) = d;
    tree->newest = d;
}

/* --- dropping --------------------------------------------------------------------------- */

static size_t memory_of(const struct tree_directory *d)
{
    return sizeof *d + d->count * sizeof d->entries[0] + d->size + d->capacity * sizeof *d->names;
}

static void directory_free(struct tree_directory *d)
{
    free(d->names);
    free(d->data);
    free(d);
}

/* Gives back or away all its references; it is in no chain. */
static void pass_references(struct inode_table *t, const struct tree_directory *d)
{
    for (size_t i = 0; i < d->count; i++) {
        struct wire_message m;
        decode(d, &d->entries[i], &m);
        if (!d->entries[i].held)
            continue;
        inode_lent_back(t, m.dirent.node, m.dirent.attr.ino, m.dirent.attr.generation);
        content_unreferenced(t, m.dirent.attr.ino, m.dirent.attr.generation);
    }
    inode_give_back(t, d->node, 1);
}

static void drop(struct inode_table *t, struct tree_directory *d)
{
    struct tree_store *tree = &t->tree;
    for (size_t i = 0; i < d->count; i++) {
        struct tree_entry **link = chain_of_entry(t, &d->entries[i]);
        while (*link != &d->entries[i])
            link = &(*link)->same;
        *link = d->entries[i].same;
    }
    tree->count -= d->count;
    tree->bytes -= memory_of(d);
    (void)table_take(&tree->directories, identity_key(t, d->attr.ino, d->attr.generation));
    order_remove(tree, d);
    pass_references(t, d);
    directory_free(d);
}

/* --- changes ---------------------------------------------------------------------------- */

static void take_away(struct inode_table *t, uint64_t ino, uint64_t generation, bool names)
{
    struct tree_directory *d = find(t, ino, generation);
    if (d && names)
        drop(t, d);
    else if (d)
        d->fresh = false;
    if (!t->tree.count)
        return;
    for (struct tree_entry *e = *chain_of(t, ino, generation); e; e = e->same) {
        struct wire_message m;
        if (!e->fresh)
            continue;
        decode(e->directory, e, &m);
        if (m.dirent.attr.ino == ino && m.dirent.attr.generation == generation) {
            e->fresh = false;
            e->directory->stale++;
        }
    }
}

void tree_changed(struct inode_table *t, uint64_t ino, uint64_t generation, bool names)
{
    struct tree_store *tree = &t->tree;
    take_away(t, ino, generation, names);
    if (!names)
        content_changed(t, ino, generation);
    if (!tree->asked)
        return;
    uint64_t stamp = ++t->stamp;
    if (tree->recent_count < TREE_RECENT_MAX)
        tree->recent[tree->recent_count++] = (struct tree_change){
            .ino = ino, .generation = generation, .stamp = stamp, .names = names};
    else
        tree->lost_stamp = stamp;
}

/* --- taking ------------------------------------------------------------------------------ */

int tree_asked(struct inode_table *t)
{
    struct tree_store *tree = &t->tree;
    if (!tree->recent) {
        tree->recent = calloc(TREE_RECENT_MAX, sizeof *tree->recent);
        if (!tree->recent)
            return -ENOMEM;
    }
    if (tree->asked++ == 0)
        tree->recent_count = 0;
    return 0;
}

void tree_answered(struct inode_table *t)
{
    t->tree.asked--;
}

static void give_back_all(struct inode_table *t, const struct wire_tree_directory *from)
{
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    while (wire_list_next(&from->entries, &offset, &element))
        if (wire_decode(WIRE_DIRENT, element, &m) == 0 && m.dirent.node)
            inode_give_back(t, m.dirent.node, 1);
    inode_give_back(t, from->node, 1);
}

/* A file with more names than one can be changed by another of them, without our knowing that it is
 * this one. */
static bool stays_right(const struct wire_dirent *entry)
{
    const struct wire_attr *attr = &entry->attr;
    return entry->node && (attr->flags & WIRE_ATTR_COVERED) && entry->ino == attr->ino &&
           (S_ISDIR(attr->mode) || attr->nlink <= 1);
}

static void add_entries(struct inode_table *t, struct tree_directory *d)
{
    const struct wire_list list = {.data = d->data, .len = d->size};
    uint32_t offset = 0, at = 0;
    struct bytes element;
    for (; wire_list_next(&list, &offset, &element); at = offset) {
        struct wire_message m;
        if (wire_decode(WIRE_DIRENT, element, &m) < 0)
            continue;
        if (!listing_name_fits(m.dirent.name)) {
            if (m.dirent.node)
                inode_give_back(t, m.dirent.node, 1);
            continue;
        }
        struct tree_entry *e = &d->entries[d->count++];
        *e = (struct tree_entry){.directory = d,
                                 .offset = at,
                                 .held = m.dirent.node != 0,
                                 .fresh = stays_right(&m.dirent)};
        struct tree_entry **chain = chain_of(t, m.dirent.attr.ino, m.dirent.attr.generation);
        e->same = *chain;
        *chain = e;
    }
}

/* -ENOMEM: nothing was taken. */
static int add(struct inode_table *t, const struct wire_tree_directory *from)
{
    struct tree_store *tree = &t->tree;
    const struct wire_list *list = &from->entries;
    struct tree_directory *d = calloc(1, sizeof *d + list->count * sizeof d->entries[0]);
    uint8_t *data = malloc(list->len ? list->len : 1);
    int r = d && data ? files_reserve(t, list->count) : -ENOMEM;
    if (r == 0) {
        struct tree_directory *old = find(t, from->attr.ino, from->attr.generation);
        if (old)
            drop(t, old);
        struct tree_directory *other =
            table_get(&tree->directories, identity_key(t, from->attr.ino, from->attr.generation));
        if (other)
            drop(t, other);
        r = table_put(&tree->directories, identity_key(t, from->attr.ino, from->attr.generation), d,
                      NULL);
    }
    if (r < 0) {
        free(data);
        free(d);
        return r;
    }
    memcpy(data, list->data, list->len);
    d->node = from->node;
    d->attr = from->attr;
    d->fresh = true;
    d->data = data;
    d->size = list->len;
    d->end = from->end;
    d->unlisted = from->unlisted > 0;
    add_entries(t, d);
    tree->count += d->count;
    tree->bytes += memory_of(d);
    order_add(tree, d);
    while (tree->bytes > TREE_MEMORY_MAX && tree->oldest != tree->newest)
        drop(t, tree->oldest);
    return 0;
}

static void replay(struct inode_table *t, uint64_t stamp)
{
    const struct tree_store *tree = &t->tree;
    for (size_t i = 0; i < tree->recent_count; i++)
        if (tree->recent[i].stamp > stamp)
            take_away(t, tree->recent[i].ino, tree->recent[i].generation, tree->recent[i].names);
}

void tree_take(struct inode_table *t, const struct wire_tree *reply, uint64_t stamp, bool keep)
{
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    keep = keep && stamp >= t->tree.lost_stamp;
    while (wire_list_next(&reply->directories, &offset, &element)) {
        if (wire_decode(WIRE_TREE_DIRECTORY, element, &m) < 0)
            continue;
        const struct wire_tree_directory *from = &m.tree_directory;
        t->tree.unlisted += from->unlisted;
        t->tree.hidden += from->hidden;
        if (!keep || !(from->attr.flags & WIRE_ATTR_COVERED) || add(t, from) < 0)
            give_back_all(t, from);
    }
    replay(t, stamp);
}

void tree_forget(struct inode_table *t)
{
    while (t->tree.oldest)
        drop(t, t->tree.oldest);
    t->tree.lost_stamp = ++t->stamp;
}

void tree_release(struct inode_table *t)
{
    struct tree_store *tree = &t->tree;
    struct tree_directory *newer;
    for (struct tree_directory *d = tree->oldest; d; d = newer) {
        newer = d->newer;
        directory_free(d);
    }
    table_release(&tree->directories);
    free(tree->files);
    free(tree->recent);
    *tree = (struct tree_store){0};
}

/* --- using -------------------------------------------------------------------------------- */

struct tree_directory *tree_find(struct inode_table *t, const struct inode *directory)
{
    struct tree_directory *d = find(t, directory->ino, directory->generation);
    if (d) {
        order_remove(&t->tree, d);
        order_add(&t->tree, d);
    }
    return d;
}

struct tree_directory *tree_identified(const struct inode_table *t, uint64_t ino,
                                       uint64_t generation)
{
    return find(t, ino, generation);
}

static const struct tree_entry *find_file(const struct inode_table *t, uint64_t ino,
                                          uint64_t generation, bool fresh, struct wire_message *ret)
{
    const struct tree_entry *e = t->tree.count ? *chain_of(t, ino, generation) : NULL;
    for (; e; e = e->same) {
        decode(e->directory, e, ret);
        if ((fresh ? e->fresh : e->held) && ret->dirent.attr.ino == ino &&
            ret->dirent.attr.generation == generation)
            break;
    }
    return e;
}

bool tree_file_attr(const struct inode_table *t, uint64_t ino, uint64_t generation,
                    struct wire_attr *ret)
{
    struct wire_message m;
    if (!find_file(t, ino, generation, true, &m))
        return false;
    *ret = m.dirent.attr;
    return true;
}

bool tree_has_file(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    struct wire_message m;
    return find_file(t, ino, generation, false, &m);
}

const struct wire_attr *tree_attr(const struct tree_directory *directory)
{
    return directory->fresh ? &directory->attr : NULL;
}

bool tree_is_complete(const struct tree_directory *directory)
{
    return directory->end;
}

bool tree_has_all_names(const struct tree_directory *directory)
{
    return directory->end && !directory->unlisted;
}

bool tree_is_stale(const struct tree_directory *directory)
{
    return directory->stale > TREE_STALE_MAX;
}

static uint32_t *name_chain(const struct inode_table *t, const struct tree_directory *d,
                            struct bytes name)
{
    return &d->names[inode_hash_name(t, name) & (d->capacity - 1)];
}

static int index_names(struct inode_table *t, struct tree_directory *d)
{
    uint32_t capacity = 4;
    while (capacity < d->count)
        capacity *= 2;
    d->names = calloc(capacity, sizeof *d->names);
    if (!d->names)
        return -ENOMEM;
    d->capacity = capacity;
    t->tree.bytes += capacity * sizeof *d->names;
    for (uint32_t i = 0; i < d->count; i++) {
        struct wire_message m;
        decode(d, &d->entries[i], &m);
        uint32_t *chain = name_chain(t, d, m.dirent.name);
        d->entries[i].next_name = *chain;
        *chain = i + 1;
    }
    return 0;
}

ssize_t tree_named(struct inode_table *t, struct tree_directory *directory, struct bytes name)
{
    int r = directory->names ? 0 : index_names(t, directory);
    if (r < 0)
        return r;
    for (uint32_t at = *name_chain(t, directory, name); at;
         at = directory->entries[at - 1].next_name) {
        struct wire_message m;
        decode(directory, &directory->entries[at - 1], &m);
        if (bytes_equal(m.dirent.name, name))
            return (ssize_t)at - 1;
    }
    return -ENOENT;
}
