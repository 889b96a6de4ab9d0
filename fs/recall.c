#include "recall.h"

#include <string.h>

#include "disk.h"
#include "wire/part.h"

/* A part of READPARTS */
#define RANGE_SIZE 20

/* What a TREE_DIRECTORY takes beside its entries. */
#define DIRECTORY_SIZE ((size_t)256)

struct recalled_part {
    struct recall *recall;
    struct bytes digest, nodes; /* in recall.reply */
    uint64_t directory;         /* its node */
    uint64_t cookie;            /* of the entry before */
    size_t at;                  /* in recall.data */
    uint32_t size;
    bool here;
    bool asked;
};

struct recalled_directory {
    struct wire_tree_digest digest;
    size_t first, count; /* parts */
};

struct recall {
    struct request *r;
    recall_done_fn *done;
    uint64_t workspace; /* its slot */
    struct buffer reply;
    struct recalled_directory *directories;
    size_t directory_count;
    struct recalled_part *parts;
    size_t part_count;
    uint8_t *data;
    size_t waits; /* for so many answers */
};

/* --- keys ------------------------------------------------------------------------------- */

static uint64_t workspace_of(uint64_t ino)
{
    return ino >> 40;
}

static struct disk_key key_of_part(uint64_t workspace, struct bytes digest, size_t size)
{
    struct disk_key key = {.kind = DISK_PART, .size = size, .words = {workspace}};
    memcpy(key.words + 1, digest.data, PART_DIGEST_SIZE);
    return key;
}

static struct disk_key key_of_workspace(uint64_t workspace)
{
    return (struct disk_key){.kind = DISK_WORKSPACE, .words = {workspace}};
}

/* --- keeping ------------------------------------------------------------------------------ */

static void keep_part(struct driver *d, uint64_t workspace, struct bytes elements,
                      struct bytes digest)
{
    const struct disk_key mark = key_of_workspace(workspace);
    const struct disk_key key = key_of_part(workspace, digest, elements.len);
    disk_put(d->disk, &key, elements);
    disk_put(d->disk, &mark, bytes_of("", 0));
}

/* -ENOMEM */
static int keep_directory(struct driver *d, const struct wire_tree_directory *from)
{
    const struct wire_list *list = &from->entries;
    uint32_t offset = 0, start = 0;
    struct bytes element;
    struct wire_message m;
    int r = 0;
    while (r == 0 && wire_list_next(list, &offset, &element)) {
        r = wire_decode(WIRE_DIRENT, element, &m);
        if (r < 0 || (offset < list->len && !part_ends(m.dirent.name, offset - start)))
            continue;
        _cleanup_buffer_ struct buffer bare = {0}, nodes = {0};
        uint8_t digest[PART_DIGEST_SIZE];
        r = part_take_nodes(bytes_of(list->data + start, offset - start), &bare, &nodes);
        if (r == 0)
            r = part_digest(buffer_view(&bare), digest);
        if (r == 0)
            keep_part(d, workspace_of(from->attr.ino), buffer_view(&bare),
                      bytes_of(digest, sizeof digest));
        start = offset;
    }
    return r;
}

void recall_keep(struct driver *d, const struct wire_tree *reply)
{
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    int r = 0;
    while (d->disk && r != -ENOMEM && wire_list_next(&reply->directories, &offset, &element)) {
        r = wire_decode(WIRE_TREE_DIRECTORY, element, &m);
        if (r == 0)
            r = keep_directory(d, &m.tree_directory);
    }
}

bool recall_may(struct driver *d, const struct inode *directory, uint32_t *ret_age)
{
    /* What this mount itself keeps is of no use to it. */
    static char yes, no;
    uint64_t workspace = workspace_of(directory->ino);
    int64_t age = disk_age_ms(d->disk);
    if (age < 0 || d->recalling >= RECALLS_MAX)
        return false;
    const char *known = table_get(&d->recalled, workspace);
    if (!known) {
        const struct disk_key mark = key_of_workspace(workspace);
        known = disk_has(d->disk, &mark) ? &yes : &no;
        if (table_put(&d->recalled, workspace, (void *)(uintptr_t)known, NULL) < 0)
            return false;
    }
    *ret_age = age < UINT32_MAX ? (uint32_t)age : UINT32_MAX;
    return known == &yes;
}

/* --- references ------------------------------------------------------------------------- */

static void give_back_nodes(struct inode_table *t, struct bytes nodes)
{
    size_t at = 0;
    uint64_t node;
    uint32_t count;
    while (part_next_nodes(nodes, &at, &node, &count))
        for (; node && count; count--)
            inode_give_back(t, node++, 1);
}

static void give_back_directory(struct recall *c, const struct recalled_directory *directory)
{
    struct inode_table *t = &c->r->driver->inodes;
    for (size_t i = 0; i < directory->count; i++)
        give_back_nodes(t, c->parts[directory->first + i].nodes);
    inode_give_back(t, directory->digest.node, 1);
}

/* --- the end -------------------------------------------------------------------------------- */

static void recall_free(struct recall *c)
{
    buffer_release(&c->reply);
    free(c->directories);
    free(c->parts);
    free(c->data);
    free(c);
}

/* All its parts are here, can be what the service says they are, and could have come whole. */
static bool put_together(struct recall *c, const struct recalled_directory *directory,
                         struct wire_tree_directory *ret)
{
    const struct wire_tree_digest *digest = &directory->digest;
    *ret = (struct wire_tree_directory){.node = digest->node,
                                        .end = digest->end,
                                        .unlisted = digest->unlisted,
                                        .hidden = digest->hidden,
                                        .attr = digest->attr};
    if (directory->count)
        ret->entries.data = c->data + c->parts[directory->first].at;
    for (size_t i = 0; i < directory->count; i++) {
        struct recalled_part *p = &c->parts[directory->first + i];
        uint32_t count;
        if (!p->here || part_put_nodes(c->data + p->at, p->size, p->nodes, &count) < 0)
            return false;
        ret->entries.len += p->size;
        ret->entries.count += count;
    }
    return ret->entries.len <= WIRE_DATA_MAX;
}

static void finish(struct recall *c)
{
    struct request *r = c->r;
    struct wire_tree_directory *all = calloc(c->directory_count + 1, sizeof *all);
    size_t count = 0;
    bool first = false;
    bool current = r->connection == r->driver->inodes.connection;
    for (size_t i = 0; current && i < c->directory_count; i++) {
        if (all && put_together(c, &c->directories[i], &all[count])) {
            first |= i == 0;
            count++;
        } else {
            give_back_directory(c, &c->directories[i]);
        }
    }
    c->done(r, all, count, first);
    free(all);
    recall_free(c);
}

/* --- from the service -------------------------------------------------------------------- */

static void take_part(struct recall *c, struct recalled_part *p, struct bytes elements)
{
    uint8_t digest[PART_DIGEST_SIZE];
    if (elements.len != p->size || part_digest(elements, digest) < 0 ||
        memcmp(digest, p->digest.data, sizeof digest) != 0)
        return;
    memcpy(c->data + p->at, elements.data, elements.len);
    p->here = true;
}

static void fetched_directory(struct recall *c, const struct wire_tree_directory *from,
                              size_t *near)
{
    struct driver *d = c->r->driver;
    _cleanup_buffer_ struct buffer bare = {0}, nodes = {0};
    const struct wire_list *list = &from->entries;
    int r = part_take_nodes(bytes_of(list->data, list->len), &bare, &nodes);
    for (size_t n = 0; r == 0 && n < c->part_count; n++) {
        struct recalled_part *p = &c->parts[(*near + n) % c->part_count];
        if (p->here || p->directory != from->node || p->size != bare.len)
            continue;
        take_part(c, p, buffer_view(&bare));
        if (p->here) {
            keep_part(d, c->workspace, buffer_view(&bare), p->digest);
            *near += n + 1;
            break;
        }
    }
    /* The first answer has counted all of them already. */
    give_back_nodes(&d->inodes, buffer_view(&nodes));
    inode_give_back(&d->inodes, from->node, 1);
}

static void answer_came(struct recall *c);

static void fetched(struct request *q, int error, const struct wire_message *reply)
{
    struct recall *c = q->context;
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    size_t near = q->offset;
    while (error == 0 && wire_list_next(&reply->tree.directories, &offset, &element))
        if (wire_decode(WIRE_TREE_DIRECTORY, element, &m) == 0)
            fetched_directory(c, &m.tree_directory, &near);
    request_free(q);
    answer_came(c);
}

static int add_range(struct request *q, const struct recalled_part *p)
{
    int r = buffer_append_u64(&q->storage, p->directory);
    if (r == 0)
        r = buffer_append_u64(&q->storage, p->cookie);
    return r < 0 ? r : buffer_append_u32(&q->storage, p->size);
}

/* Asks for as many parts as one answer can bring, from *at on. False: there are none. */
static bool fetch_some(struct recall *c, size_t *at)
{
    struct driver *d = c->r->driver;
    struct request *q = NULL;
    size_t size = 0, count = 0, first = 0;
    for (; *at < c->part_count && count < WIRE_READPARTS_MAX; ++*at) {
        struct recalled_part *p = &c->parts[*at];
        if (p->here || p->asked)
            continue;
        size += DIRECTORY_SIZE + p->size;
        if (count && size > WIRE_DATA_MAX)
            break;
        if (!q && request_new(d, NULL, WIRE_READPARTS, NULL, NULL, &q) < 0)
            return false;
        if (add_range(q, p) < 0)
            break;
        p->asked = true;
        first = count++ ? first : *at;
    }
    if (!q)
        return false;
    q->context = c;
    q->offset = first;
    q->quiet = c->r->quiet;
    q->once = true;
    q->connection = c->r->connection;
    q->message.readparts.parts = buffer_view(&q->storage);
    c->waits++;
    request_send(q, fetched);
    return true;
}

/* What is not here after it was asked for has changed meanwhile. */
static void answer_came(struct recall *c)
{
    if (--c->waits)
        return;
    size_t at = 0;
    c->waits++;
    while (!c->r->driver->stopping && fetch_some(c, &at))
        ;
    if (--c->waits == 0)
        finish(c);
}

/* --- from disk ------------------------------------------------------------------------------ */

static void on_disk_read(void *context, const struct bytes *data)
{
    struct recalled_part *p = context;
    struct recall *c = p->recall;
    if (data)
        take_part(c, p, *data);
    answer_came(c);
}

static void find_part(struct recall *c, struct recalled_part *p, const struct wire_tree_part *from)
{
    struct driver *d = c->r->driver;
    const struct disk_key key = key_of_part(c->workspace, p->digest, p->size);
    if (from->entries.count) {
        struct bytes elements = bytes_of(from->entries.data, from->entries.len);
        take_part(c, p, elements);
        if (p->here)
            keep_part(d, c->workspace, elements, p->digest);
    } else if (disk_get(d->disk, &key, on_disk_read, p) == 0) {
        c->waits++;
    }
}

static struct wire_list list_of(struct bytes b)
{
    return (struct wire_list){.data = b.data, .len = (uint32_t)b.len};
}

static bool next_digest(const struct recall *c, uint32_t *offset, struct wire_message *ret)
{
    const struct wire_list list = list_of(buffer_view(&c->reply));
    struct bytes element;
    while (wire_list_next(&list, offset, &element))
        if (wire_decode(WIRE_TREE_DIGEST, element, ret) == 0)
            return true;
    return false;
}

/* Room for all that is in the answer. -ENOMEM; -EBADMSG: it is too much. */
static int make_room(struct recall *c)
{
    uint32_t offset = 0, at;
    size_t directories = 0, parts = 0, size = 0;
    struct wire_message m, p;
    struct bytes element;
    while (next_digest(c, &offset, &m)) {
        directories++;
        for (at = 0; wire_list_next(&m.tree_digest.parts, &at, &element); parts++)
            if (wire_decode(WIRE_TREE_PART, element, &p) == 0)
                size += p.tree_part.size;
        if (size > RECALL_SIZE_MAX)
            return -EBADMSG;
    }
    c->directories = calloc(directories + 1, sizeof *c->directories);
    c->parts = calloc(parts + 1, sizeof *c->parts);
    c->data = malloc(size + 1);
    return c->directories && c->parts && c->data ? 0 : -ENOMEM;
}

static void note_parts(struct recall *c, struct recalled_directory *directory, uint64_t cookie,
                       size_t *size)
{
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    directory->first = c->part_count;
    while (wire_list_next(&directory->digest.parts, &offset, &element)) {
        if (wire_decode(WIRE_TREE_PART, element, &m) < 0)
            continue;
        c->parts[c->part_count++] = (struct recalled_part){.recall = c,
                                                           .digest = m.tree_part.digest,
                                                           .nodes = m.tree_part.nodes,
                                                           .directory = directory->digest.node,
                                                           .cookie = cookie,
                                                           .at = *size,
                                                           .size = m.tree_part.size};
        directory->count++;
        *size += m.tree_part.size;
        cookie = m.tree_part.cookie;
    }
}

static void find_parts(struct recall *c, const struct recalled_directory *directory)
{
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    struct recalled_part *p = &c->parts[directory->first];
    while (wire_list_next(&directory->digest.parts, &offset, &element))
        if (wire_decode(WIRE_TREE_PART, element, &m) == 0)
            find_part(c, p++, &m.tree_part);
}

void recall_start(struct request *r, const struct wire_list *digests, recall_done_fn *done)
{
    struct recall *c = calloc(1, sizeof *c);
    if (!c || buffer_append(&c->reply, digests->data, digests->len) < 0 || make_room(c) < 0) {
        /* Its references stay at the service until the session ends. */
        if (c)
            recall_free(c);
        done(r, NULL, 0, false);
        return;
    }
    c->r = r;
    c->done = done;
    c->workspace = workspace_of(r->inode->ino);
    c->waits = 1;
    uint32_t offset = 0;
    size_t size = 0;
    struct wire_message m;
    uint64_t cookie = r->message.readtree.cookie;
    while (next_digest(c, &offset, &m)) {
        struct recalled_directory *directory = &c->directories[c->directory_count++];
        directory->digest = m.tree_digest;
        note_parts(c, directory, cookie, &size);
        cookie = 0;
    }
    for (size_t i = 0; i < c->directory_count; i++)
        find_parts(c, &c->directories[i]);
    answer_came(c);
}
