#include "content.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "handle.h"
#include "inode.h"

static uint64_t identity_key(const struct inode_table *t, uint64_t ino, uint64_t generation)
{
    return table_hash_pair(ino ^ t->seed, generation);
}

static size_t memory_of(const struct content *c)
{
    return sizeof *c + c->size;
}

/* --- the order of use ------------------------------------------------------------------ */

static void order_remove(struct content_store *s, struct content *c)
{
    *(c->newer ? &c->newer->older : &s->newest) = c->older;
    *(c->older ? &c->older->newer : &s->oldest) = c->newer;
    c->newer = c->older = NULL;
}

static void order_add(struct content_store *s, struct content *c)
{
    c->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = c;
    s->newest = c;
}

static bool is_ordered(const struct content *c)
{
    return c->here && c->known && !c->pins;
}

/* --- dropping --------------------------------------------------------------------------- */

static void content_free(struct content_store *s, struct content *c)
{
    if (c->here) {
        s->count--;
        s->bytes -= memory_of(c);
        s->unused += c->ahead && !c->used;
    }
    free(c->data);
    free(c);
}

/* It is not found any more, and freed when nobody keeps it. */
static void drop(struct inode_table *t, struct content *c)
{
    struct content_store *s = &t->content;
    if (!c->known)
        return;
    if (is_ordered(c))
        order_remove(s, c);
    (void)table_take(&s->contents, identity_key(t, c->ino, c->generation));
    c->known = false;
    if (!c->pins)
        content_free(s, c);
}

/* What memory has no room for. It is right still. */
static void evict(struct inode_table *t, size_t room)
{
    struct content_store *s = &t->content;
    while (s->oldest && s->bytes + room > CONTENT_MEMORY_MAX)
        drop(t, s->oldest);
}

/* --- using ------------------------------------------------------------------------------- */

struct content *content_get(struct inode_table *t, uint64_t ino, uint64_t generation)
{
    struct content *c = table_get(&t->content.contents, identity_key(t, ino, generation));
    return c && c->ino == ino && c->generation == generation ? c : NULL;
}

void content_use(struct inode_table *t, struct content *c)
{
    struct content_store *s = &t->content;
    if (is_ordered(c)) {
        order_remove(s, c);
        order_add(s, c);
    }
    s->used += c->ahead && !c->used;
    c->used = true;
}

bool content_may_pin(const struct inode_table *t, const struct content *c)
{
    return c->pins || t->content.pinned_bytes + memory_of(c) <= CONTENT_PINNED_MAX;
}

struct content *content_pin(struct inode_table *t, struct content *c)
{
    struct content_store *s = &t->content;
    if (is_ordered(c))
        order_remove(s, c);
    if (c->here && !c->pins)
        s->pinned_bytes += memory_of(c);
    c->pins++;
    return c;
}

void content_unpin(struct inode_table *t, struct content *c)
{
    struct content_store *s = &t->content;
    if (!c || --c->pins)
        return;
    if (c->here)
        s->pinned_bytes -= memory_of(c);
    if (!c->known)
        content_free(s, c);
    else if (c->here)
        order_add(s, c);
    else
        drop(t, c);
}

/* --- asking ------------------------------------------------------------------------------ */

int content_ask(struct inode_table *t, uint64_t ino, uint64_t generation, bool ahead,
                struct content **ret)
{
    struct content *c = calloc(1, sizeof *c), *other;
    if (!c)
        return -ENOMEM;
    *c = (struct content){
        .ino = ino, .generation = generation, .pins = 1, .known = true, .ahead = ahead};
    /* Another file of the same hash makes room. */
    other = table_get(&t->content.contents, identity_key(t, ino, generation));
    if (other)
        drop(t, other);
    int r = table_put(&t->content.contents, identity_key(t, ino, generation), c, NULL);
    if (r < 0) {
        free(c);
        return r;
    }
    *ret = c;
    return 0;
}

static bool has_its_size(const struct wire_file *file)
{
    if (file->flags & WIRE_FILE_ENDS)
        return file->attr.size > WIRE_FILE_MAX && file->data.len == WIRE_FILE_HEAD + WIRE_FILE_TAIL;
    return file->attr.size == file->data.len;
}

bool content_take(struct inode_table *t, struct content *c, const struct wire_file *file, bool keep)
{
    struct content_store *s = &t->content;
    const struct wire_attr *attr = file ? &file->attr : NULL;
    assert(!c->here);
    keep = keep && c->known && file && !file->error && (attr->flags & WIRE_ATTR_COVERED) &&
           attr->ino == c->ino && attr->generation == c->generation && has_its_size(file);
    uint8_t *data = keep ? malloc(file->data.len ? file->data.len : 1) : NULL;
    if (!data) {
        drop(t, c);
        return false;
    }
    memcpy(data, file->data.data, file->data.len);
    c->data = data;
    c->size = (uint32_t)file->data.len;
    c->attr = *attr;
    c->ends = file->flags & WIRE_FILE_ENDS;
    c->settled = file->flags & WIRE_FILE_SETTLED;
    c->here = true;
    attrs_changed(t, c->ino, c->generation); /* those of the content are after its being read */
    evict(t, memory_of(c));
    s->count++;
    s->bytes += memory_of(c);
    s->pinned_bytes += memory_of(c);
    return true;
}

bool content_part(const struct content *c, uint64_t offset, size_t size, struct bytes *ret)
{
    uint64_t missing = c->attr.size - c->size; /* behind the head */
    uint64_t left = offset < c->attr.size ? c->attr.size - offset : 0;
    size_t len = left < size ? (size_t)left : size;
    if (c->ends && offset < WIRE_FILE_HEAD + missing) {
        if (offset >= WIRE_FILE_HEAD || len > WIRE_FILE_HEAD - offset)
            return false;
    } else if (len) {
        offset -= missing;
    }
    *ret = bytes_of(c->data + (len ? offset : 0), len);
    return true;
}

/* What all filesystems allocate by is a multiple of this. */
#define SECTOR ((size_t)512)

bool content_is_dense(const struct content *c)
{
    static const uint8_t zeros[SECTOR];
    bool dense = !c->ends;
    for (size_t at = 0; dense && at < c->size; at += SECTOR)
        dense = memcmp(c->data + at, zeros, c->size - at < SECTOR ? c->size - at : SECTOR) != 0;
    return dense;
}

/* --- changes ------------------------------------------------------------------------------ */

void content_changed(struct inode_table *t, uint64_t ino, uint64_t generation)
{
    struct content *c = content_get(t, ino, generation);
    if (c)
        drop(t, c);
}

void content_seen(struct inode_table *t, const struct wire_attr *attr)
{
    struct content *c = content_get(t, attr->ino, attr->generation);
    if (c && c->here && c->attr.version != attr->version)
        drop(t, c);
}

void content_rewritten(struct inode *i)
{
    for (struct handle *h = i->handles; h; h = h->next)
        h->doubtful = true;
}

void content_let_go(struct inode_table *t, struct inode *i)
{
    for (struct handle *h = i->handles; h; h = h->next) {
        content_unpin(t, h->content);
        h->content = NULL;
    }
}

void content_unreferenced(struct inode_table *t, uint64_t ino, uint64_t generation)
{
    struct content *c = content_get(t, ino, generation);
    if (c && !inode_identified(t, ino, generation, NULL) && !tree_has_file(t, ino, generation))
        drop(t, c);
}

void content_forget(struct inode_table *t)
{
    /* The table must not change while one goes through it. */
    struct content_store *s = &t->content;
    struct table contents = s->contents;
    struct content *c;
    size_t cursor = 0;
    s->contents = (struct table){0};
    while ((c = table_next(&contents, &cursor)))
        drop(t, c);
    table_release(&contents);
}

void content_release(struct inode_table *t)
{
    content_forget(t);
    t->content = (struct content_store){0};
}
