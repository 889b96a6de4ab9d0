#include "tree_private.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "inode.h"
#include "listing.h"
#include "tree_entry.h"
#define FIRST_CAPACITY 1024

/* What fits into the fields of an entry. What is more is not kept; an answer of TREE
 * brings a tenth. */
#define PART_ENTRIES_MAX (1U << 15)
#define PART_BYTES_MAX (1U << 21)
#define DIRECTORY_ENTRIES_MAX ((1U << 24) - 1)

/* --- entries ------------------------------------------------------------------------- */

const struct tree_part *tree_part_of(const struct tree_entry *e)
{
    const char *first = (const char *)(e - e->place);
    return (const void *)(first - offsetof(struct tree_part, entries));
}

static const uint8_t *data_of(const struct tree_entry *e)
{
    return tree_part_of(e)->data + e->offset;
}

void tree_unpack(const struct tree_entry *e, struct wire_dirent *ret)
{
    const struct tree_directory *d = tree_part_of(e)->directory;
    tree_entry_unpack(data_of(e), d->node, &d->attr, ret);
}

bool tree_is_file(const struct tree_entry *e, uint64_t ino, uint64_t generation)
{
    return tree_entry_is(data_of(e), &tree_part_of(e)->directory->attr, ino, generation);
}

/* There are few parts: an answer brings thousands of entries. */
struct tree_entry *tree_entry_at(const struct tree_directory *d, size_t index)
{
    struct tree_part *part = d->parts;
    while (index - part->first >= part->count)
        part = part->next;
    return &part->entries[index - part->first];
}

static void read_entry(const struct tree_entry *e, bool linked, struct wire_dirent *ret)
{
    if (e->gone) {
        *ret = (struct wire_dirent){0};
        return;
    }
    tree_unpack(e, ret);
    if (!e->fresh || (e->linked && !linked))
        ret->node = 0;
}

void tree_read(const struct tree_directory *directory, size_t index, struct wire_dirent *ret)
{
    read_entry(tree_entry_at(directory, index), false, ret);
}

void tree_read_linked(const struct tree_directory *directory, size_t index, struct wire_dirent *ret)
{
    read_entry(tree_entry_at(directory, index), true, ret);
}

size_t tree_count(const struct tree_directory *directory)
{
    return directory->count;
}

uint64_t tree_cookie(const struct tree_directory *directory)
{
    return directory->cookie;
}

ssize_t tree_index(const struct tree_directory *directory, uint64_t cookie, size_t near)
{
    size_t count = directory->count;
    if (cookie == 0)
        return 0;
    if (near == 0 || near > count)
        near = count;
    for (size_t n = 0; n < count; n++) {
        size_t i = (near - 1 + n) % count;
        if (tree_entry_cookie(data_of(tree_entry_at(directory, i))) == cookie)
            return (ssize_t)i + 1;
    }
    return -ENOENT;
}

/* --- by identity ----------------------------------------------------------------------- */

static uint64_t identity_key(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    return table_hash_pair(ino ^ t->seed, generation);
}

struct tree_entry **tree_chain_of(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    return &t->tree.files[identity_key(t, ino, generation) & (t->tree.capacity - 1)];
}

static struct tree_entry **chain_of_entry(const struct inode_table *t, const struct tree_entry *e)
{
    uint64_t ino = 0, generation = 0;
    (void)tree_entry_identity(data_of(e), &tree_part_of(e)->directory->attr, &ino, &generation);
    return tree_chain_of(t, ino, generation);
}

/* Makes room for `more` entries. */
static int files_reserve(struct inode_table *t, size_t more)
{
    struct tree_store *tree = &t->tree;
    size_t capacity = tree->capacity ? tree->capacity : FIRST_CAPACITY;
    while (capacity * 2 < tree->count + more)
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

struct tree_directory *tree_find_directory(const struct inode_table *t, uint64_t ino,
                                           uint64_t generation)
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

static size_t part_memory(const struct tree_part *p)
{
    return sizeof *p + p->count * sizeof p->entries[0] + p->size;
}

size_t tree_names_memory(const struct tree_directory *d)
{
    return d->capacity * sizeof *d->names + d->made.capacity * sizeof *d->made.slots +
           d->made.count * sizeof(struct made_name);
}

static size_t memory_of(const struct tree_directory *d)
{
    size_t size = sizeof *d + tree_names_memory(d);
    for (const struct tree_part *p = d->parts; p; p = p->next)
        size += part_memory(p);
    return size;
}

static void part_free(struct tree_part *p)
{
    free(p->data);
    free(p);
}

static void directory_free(struct tree_directory *d)
{
    struct tree_part *next;
    for (struct tree_part *p = d->parts; p; p = next) {
        next = p->next;
        part_free(p);
    }
    free(d->names);
    struct made_name *m;
    for (size_t cursor = 0; (m = table_next(&d->made, &cursor));)
        free(m);
    table_release(&d->made);
    free(d);
}

/* Gives back or away the reference of an entry; it is in no chain. */
void tree_pass_reference(struct inode_table *t, const struct tree_entry *e)
{
    struct wire_dirent entry;
    if (!e->held)
        return;
    tree_unpack(e, &entry);
    inode_lent_back(t, entry.node, entry.attr.ino, entry.attr.generation);
    content_unreferenced(t, entry.attr.ino, entry.attr.generation);
}

void tree_remove_from_chain(struct inode_table *t, const struct tree_entry *e)
{
    if (!e->held)
        return;
    struct tree_entry **link = chain_of_entry(t, e);
    while (*link != e)
        link = &(*link)->same;
    *link = e->same;
}

/* From now on nothing is answered from it. Its references are given back by tree_drop_some; as long
 * as an entry has one, changes of its file are reported, and its content stays right. */
void tree_drop(struct inode_table *t, struct tree_directory *d)
{
    struct tree_store *tree = &t->tree;
    tree->bytes -= memory_of(d);
    (void)table_take(&tree->directories, identity_key(t, d->attr.ino, d->attr.generation));
    order_remove(tree, d);
    tree->dropping += d->count;
    d->dropped = true;
    d->older = tree->dropped;
    tree->dropped = d;
}

bool tree_drop_some(struct inode_table *t, size_t max)
{
    struct tree_store *tree = &t->tree;
    struct tree_directory *d;
    struct tree_part *p;
    while ((d = tree->dropped)) {
        while ((p = d->parts)) {
            for (; p->count; p->count--, max--) {
                if (!max)
                    return true;
                const struct tree_entry *e = &p->entries[p->count - 1];
                tree_remove_from_chain(t, e);
                tree_pass_reference(t, e);
                tree->count--;
                tree->dropping--;
            }
            d->parts = p->next;
            part_free(p);
        }
        if (!max)
            return true;
        max--;
        tree->dropped = d->older;
        inode_lent_back(t, d->node, d->attr.ino, d->attr.generation);
        directory_free(d);
    }
    return false;
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

static bool stays_right(const struct wire_dirent *entry)
{
    const struct wire_attr *attr = &entry->attr;
    return entry->node && (attr->flags & WIRE_ATTR_COVERED) && entry->ino == attr->ino;
}

/* A file with more names than one can be changed by another of them, without our knowing that it is
 * this one. */
static bool is_linked(const struct wire_attr *attr)
{
    return !S_ISDIR(attr->mode) && attr->nlink > 1;
}

/* Packs the entries of an answer into a part that has room for them. */
static int fill(struct inode_table *t, struct tree_part *p, const struct wire_list *list)
{
    const struct tree_directory *d = p->directory;
    _cleanup_buffer_ struct buffer data = {0};
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    while (wire_list_next(list, &offset, &element)) {
        if (wire_decode(WIRE_DIRENT, element, &m) < 0 || !listing_name_fits(m.dirent.name))
            continue;
        if (data.len >= PART_BYTES_MAX || buffer_reserve(&data, TREE_ENTRY_MAX) < 0)
            return -ENOMEM;
        p->entries[p->count] = (struct tree_entry){.offset = (uint32_t)data.len,
                                                   .place = (uint32_t)p->count,
                                                   .held = m.dirent.node != 0,
                                                   .fresh = stays_right(&m.dirent),
                                                   .linked = is_linked(&m.dirent.attr)};
        p->count++;
        data.len += tree_entry_pack(&m.dirent, d->node, &d->attr, data.data + data.len);
    }
    p->size = data.len;
    p->data = malloc(data.len ? data.len : 1);
    if (!p->data)
        return -ENOMEM;
    if (data.len)
        memcpy(p->data, data.data, data.len);
    return 0;
}

static int part_new(struct inode_table *t, struct tree_directory *d, const struct wire_list *list,
                    struct tree_part **ret)
{
    if (list->count > PART_ENTRIES_MAX || d->count + list->count > DIRECTORY_ENTRIES_MAX)
        return -ENOMEM;
    struct tree_part *p = calloc(1, sizeof *p + list->count * sizeof p->entries[0]);
    if (!p)
        return -ENOMEM;
    p->directory = d;
    p->first = d->count;
    int r = files_reserve(t, list->count);
    if (r == 0)
        r = fill(t, p, list);
    if (r < 0) {
        part_free(p);
        return r;
    }
    *ret = p;
    return 0;
}

/* References of names that no entry was made of. */
static void give_back_unfit(struct inode_table *t, const struct wire_list *list)
{
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    while (wire_list_next(list, &offset, &element))
        if (wire_decode(WIRE_DIRENT, element, &m) == 0 && m.dirent.node &&
            !listing_name_fits(m.dirent.name))
            inode_give_back(t, m.dirent.node, 1);
}

static uint32_t *name_chain(const struct inode_table *t, const struct tree_directory *d,
                            struct bytes name)
{
    return &d->names[inode_hash_name(t, name) & (d->capacity - 1)];
}

static void index_part(const struct inode_table *t, const struct tree_directory *d,
                       struct tree_part *p)
{
    for (size_t i = 0; i < p->count; i++) {
        uint32_t *chain = name_chain(t, d, tree_entry_name(data_of(&p->entries[i])));
        p->entries[i].next_name = *chain & DIRECTORY_ENTRIES_MAX;
        *chain = (uint32_t)(p->first + i + 1);
    }
}

/* Appends a part, which has room in the chains of identities. */
static void attach(struct inode_table *t, struct tree_directory *d, struct tree_part *p,
                   const struct wire_tree_directory *from)
{
    struct tree_store *tree = &t->tree;
    *(d->last ? &d->last->next : &d->parts) = p;
    d->last = p;
    d->count += p->count;
    d->end = from->end;
    d->unlisted |= from->unlisted > 0;
    if (p->count)
        d->cookie = tree_entry_cookie(data_of(&p->entries[p->count - 1]));
    for (size_t i = 0; i < p->count; i++) {
        if (!p->entries[i].held)
            continue;
        struct tree_entry **chain = chain_of_entry(t, &p->entries[i]);
        p->entries[i].same = *chain;
        *chain = &p->entries[i];
    }
    tree->count += p->count;
    tree->bytes += part_memory(p);
    if (d->names && d->count > d->capacity) {
        tree->bytes -= d->capacity * sizeof *d->names;
        d->capacity = 0;
        free(take_ptr(d->names));
    }
    if (d->names)
        index_part(t, d, p);
    give_back_unfit(t, &from->entries);
}

/* Entries were added. Twice as many of those that are to go do so first, lest they come faster than
 * they go. */
static void make_room(struct inode_table *t, size_t added)
{
    (void)tree_drop_some(t, 2 * added + 1);
    while (t->tree.bytes > TREE_MEMORY_MAX && t->tree.oldest != t->tree.newest)
        tree_drop(t, t->tree.oldest);
}

int tree_add(struct inode_table *t, const struct wire_tree_directory *from)
{
    struct tree_store *tree = &t->tree;
    uint64_t key = identity_key(t, from->attr.ino, from->attr.generation);
    struct tree_directory *d = calloc(1, sizeof *d);
    struct tree_part *p = NULL;
    if (!d)
        return -ENOMEM;
    d->node = from->node;
    d->attr = from->attr;
    d->fresh = true;
    int r = part_new(t, d, &from->entries, &p);
    if (r == 0) {
        struct tree_directory *old = table_get(&tree->directories, key);
        if (old)
            tree_drop(t, old);
        r = table_put(&tree->directories, key, d, NULL);
    }
    if (r < 0) {
        if (p)
            part_free(p);
        free(d);
        return r;
    }
    tree->bytes += sizeof *d;
    order_add(tree, d);
    attach(t, d, p, from);
    make_room(t, p->count);
    return 0;
}

/* Goes on with a listing behind cookie. -ESTALE: it is not there any more, or has gone on. */
static int extend(struct inode_table *t, const struct wire_tree_directory *from, uint64_t cookie)
{
    struct tree_directory *d = tree_find_directory(t, from->attr.ino, from->attr.generation);
    struct tree_part *p;
    if (!d || d->end || d->cookie != cookie)
        return -ESTALE;
    int r = part_new(t, d, &from->entries, &p);
    if (r < 0)
        return r;
    attach(t, d, p, from);
    inode_give_back(t, from->node, 1); /* it has one */
    make_room(t, p->count);
    return 0;
}

static void replay(struct inode_table *t, uint64_t stamp)
{
    const struct tree_store *tree = &t->tree;
    for (size_t i = 0; i < tree->recent_count; i++)
        if (tree->recent[i].stamp > stamp)
            tree_take_away(t, tree->recent[i].ino, tree->recent[i].generation,
                           tree->recent[i].names);
}

static void take(struct inode_table *t, const struct wire_tree_directory *from, uint64_t cookie,
                 uint64_t stamp, bool keep)
{
    t->tree.unlisted += from->unlisted;
    t->tree.hidden += from->hidden;
    if (!keep || stamp < t->tree.lost_stamp || !(from->attr.flags & WIRE_ATTR_COVERED) ||
        (cookie ? extend(t, from, cookie) : tree_add(t, from)) < 0)
        give_back_all(t, from);
}

void tree_take(struct inode_table *t, const struct wire_tree *reply, uint64_t cookie,
               uint64_t stamp, bool keep)
{
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    while (wire_list_next(&reply->directories, &offset, &element)) {
        if (wire_decode(WIRE_TREE_DIRECTORY, element, &m) < 0)
            continue;
        take(t, &m.tree_directory, cookie, stamp, keep);
        cookie = 0; /* the others are from their start */
    }
    replay(t, stamp);
}

void tree_take_directories(struct inode_table *t, const struct wire_tree_directory *directories,
                           size_t count, uint64_t cookie, uint64_t stamp, bool keep)
{
    for (size_t i = 0; i < count; i++)
        take(t, &directories[i], i == 0 ? cookie : 0, stamp, keep);
    replay(t, stamp);
}

void tree_forget(struct inode_table *t)
{
    while (t->tree.oldest)
        tree_drop(t, t->tree.oldest);
    attrs_forget(t);
    t->tree.lost_stamp = ++t->stamp;
}

void tree_release(struct inode_table *t)
{
    struct tree_store *tree = &t->tree;
    struct tree_directory *next;
    for (struct tree_directory *d = tree->newest; d; d = next) {
        next = d->older;
        directory_free(d);
    }
    for (struct tree_directory *d = tree->dropped; d; d = next) {
        next = d->older;
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
    struct tree_directory *d = tree_find_directory(t, directory->ino, directory->generation);
    if (d) {
        order_remove(&t->tree, d);
        order_add(&t->tree, d);
    }
    return d;
}

struct tree_directory *tree_identified(const struct inode_table *t, uint64_t ino,
                                       uint64_t generation)
{
    return tree_find_directory(t, ino, generation);
}

static const struct tree_entry *find_file(const struct inode_table *t, uint64_t ino,
                                          uint64_t generation,
                                          bool (*is_right)(const struct tree_entry *))
{
    const struct tree_entry *e = t->tree.count ? *tree_chain_of(t, ino, generation) : NULL;
    while (e && (!is_right(e) || !tree_is_file(e, ino, generation)))
        e = e->same;
    return e;
}

static bool tells_attr(const struct tree_entry *e)
{
    return e->fresh && !e->linked && !tree_part_of(e)->directory->dropped;
}

static bool is_held(const struct tree_entry *e)
{
    return e->held;
}

bool tree_file_attr(const struct inode_table *t, uint64_t ino, uint64_t generation,
                    struct wire_attr *ret)
{
    const struct tree_entry *e = find_file(t, ino, generation, tells_attr);
    struct wire_dirent entry;
    if (!e)
        return false;
    tree_unpack(e, &entry);
    *ret = entry.attr;
    return true;
}

bool tree_has_file(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    return find_file(t, ino, generation, is_held);
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

bool tree_was_added_to(const struct tree_directory *directory)
{
    return directory->made.count;
}

bool tree_is_stale(const struct tree_directory *directory)
{
    return directory->made.count ||
           directory->stale > TREE_STALE_MAX + directory->count / TREE_STALE_PART;
}

static int index_names(struct inode_table *t, struct tree_directory *d)
{
    size_t capacity = 4;
    while (capacity < d->count)
        capacity *= 2;
    d->names = calloc(capacity, sizeof *d->names);
    if (!d->names)
        return -ENOMEM;
    d->capacity = capacity;
    t->tree.bytes += capacity * sizeof *d->names;
    for (struct tree_part *p = d->parts; p; p = p->next)
        index_part(t, d, p);
    return 0;
}

ssize_t tree_named(struct inode_table *t, struct tree_directory *directory, struct bytes name)
{
    int r = directory->names ? 0 : index_names(t, directory);
    if (r < 0)
        return r;
    const struct tree_entry *e;
    for (uint32_t at = *name_chain(t, directory, name); at; at = e->next_name) {
        e = tree_entry_at(directory, at - 1);
        if (!e->gone && bytes_equal(tree_entry_name(data_of(e)), name))
            return (ssize_t)at - 1;
    }
    return -ENOENT;
}

bool tree_made(const struct inode_table *t, const struct tree_directory *directory,
               struct bytes name, struct wire_attr *ret)
{
    const struct made_name *m = table_get(&directory->made, inode_hash_name(t, name));
    if (!m)
        return false;
    *ret = (struct wire_attr){.ino = m->ino, .generation = m->generation};
    return true;
}

bool tree_lacks(struct inode_table *t, struct tree_directory *directory, struct bytes name)
{
    return tree_has_all_names(directory) && tree_named(t, directory, name) == -ENOENT &&
           !table_get(&directory->made, inode_hash_name(t, name));
}

bool tree_can_go_on(const struct tree_directory *directory)
{
    return !directory->end && directory->count && memory_of(directory) < TREE_MEMORY_MAX / 2;
}

bool tree_walks(struct tree_directory *directory, size_t index)
{
    bool walks = directory->walked && index >= directory->walked;
    directory->walked = index + 1;
    return walks;
}

size_t tree_unread(const struct inode_table *t, const struct tree_directory *directory,
                   size_t index, uint64_t *ret, size_t max)
{
    size_t n = 0;
    for (; index < directory->count && n < max; index++) {
        const struct tree_entry *e = tree_entry_at(directory, index);
        struct wire_dirent entry;
        tree_unpack(e, &entry);
        if (e->gone || !entry.node || !S_ISDIR(entry.attr.mode))
            continue;
        const struct tree_directory *below =
            tree_find_directory(t, entry.attr.ino, entry.attr.generation);
        if (!below || tree_was_added_to(below))
            ret[n++] = entry.node;
    }
    return n;
}
