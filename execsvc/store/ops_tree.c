#include "store/listing.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "wire/part.h"

/* Directories that one request looks at, sent or not. Stops a tree of empty or of huge ones from
 * holding a worker for long. As many as a TREE holds. */
#define TREE_DIRECTORIES_MAX 4096

/* A TREE_DIRECTORY or TREE_DIGEST without its entries, and its length in the list. */
#define DIRECTORY_SIZE ((size_t)(4 + 8 + 4 + 4 + 4 + WIRE_ATTR_SIZE + 4))

/* So much more than the list's bytes is looked at for digests, when somebody goes through a tree:
 * who opens the first directory is not to wait for so much. Bounds how long it holds a worker. */
#define DIGESTS_FACTOR 4

/* Of the list's bytes, what is left for digests, for which there is always room so. */
#define DIGESTS_RESERVE ((size_t)512 << 10)

/* A TREE_PART that stands for PART_SIZE_LEAST bytes, if none of its nodes follow each other; and so
 * many times more are those at least. */
#define PART_RECORD_MAX ((size_t)512)
#define DIGESTS_LEAST (PART_SIZE_LEAST / PART_RECORD_MAX)

/* A part of READPARTS. */
#define RANGE_SIZE 20

struct walk {
    struct file_session *session;
    struct buffer *list; /* TREE_DIRECTORY elements, or TREE_DIGEST */
    uint32_t count;
    size_t size;           /* list bytes asked for */
    size_t looked;         /* with digests: bytes that they stand for, */
    size_t looks;          /* and at most so many */
    struct buffer names;   /* of one directory, as the kernel gives them */
    struct buffer entries; /* of one directory: DIRENT elements */
    struct buffer queue;   /* u64 nodes of directories, breadth first */
    struct buffer parts;   /* of one directory: TREE_PART elements */
    struct buffer bare;    /* entries of one part, without nodes, */
    struct buffer nodes;   /* and these */
    dev_t device;
    struct wire_time since; /* what changed earlier comes by its digest */
    bool digests;
    bool again; /* what rules leave out has been counted */
};

static void walk_release(struct walk *w)
{
    buffer_release(&w->names);
    buffer_release(&w->entries);
    buffer_release(&w->queue);
    buffer_release(&w->parts);
    buffer_release(&w->bare);
    buffer_release(&w->nodes);
}
#define _cleanup_walk_ _cleanup_(walk_release)

/* Reads names until they are all there (*ret_end) or take more than room as DIRENTs. */
static int read_names(struct walk *w, int fd, size_t room, bool *ret_end)
{
    size_t size = 0, count = 0;
    w->names.len = 0;
    *ret_end = false;
    while (size <= room && count <= LISTING_COUNT_MAX) {
        int r = buffer_reserve(&w->names, LISTING_BLOCK_SIZE);
        if (r < 0)
            return r;
        uint8_t *block = w->names.data + w->names.len;
        long n = syscall(SYS_getdents64, fd, block, LISTING_BLOCK_SIZE);
        if (n < 0)
            return -errno;
        if (n == 0) {
            *ret_end = true;
            return 0;
        }
        for (long at = 0; at < n; count++) {
            const struct kernel_dirent *d = (const void *)(block + at);
            size += listing_entry_size(strlen(d->name));
            at += d->size;
        }
        w->names.len += (size_t)n;
    }
    return 0;
}

static struct wire_list entries_of(const struct walk *w, uint32_t count)
{
    return wire_list_of(&w->entries, count);
}

/* Steps through entries; false at the end. */
static bool next_entry(const struct wire_list *list, uint32_t *offset, struct wire_message *ret)
{
    struct bytes element;
    return wire_list_next(list, offset, &element) && wire_decode(WIRE_DIRENT, element, ret) == 0;
}

static void give_back(struct walk *w, uint32_t count)
{
    struct wire_list list = entries_of(w, count);
    struct wire_message m;
    for (uint32_t offset = 0; next_entry(&list, &offset, &m);)
        if (m.dirent.node)
            node_forget(w->session, m.dirent.node, 1);
}

static int enqueue_directories(struct walk *w, uint32_t count)
{
    struct wire_list list = entries_of(w, count);
    struct wire_message m;
    int r = 0;
    for (uint32_t offset = 0; r == 0 && next_entry(&list, &offset, &m);)
        if (m.dirent.node && S_ISDIR(m.dirent.attr.mode) &&
            w->queue.len < TREE_DIRECTORIES_MAX * sizeof(uint64_t))
            r = buffer_append(&w->queue, &m.dirent.node, sizeof m.dirent.node);
    return r;
}

static uint64_t number_at(const uint8_t *p, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

/* nodes: u64 each, as on the wire. */
static int enqueue_named(struct walk *w, struct bytes nodes)
{
    int r = 0;
    for (size_t at = 0; r == 0 && at < nodes.len; at += sizeof(uint64_t)) {
        uint64_t node = number_at(nodes.data + at, sizeof node);
        r = buffer_append(&w->queue, &node, sizeof node);
    }
    return r;
}

/* Adds an element that is not of a fixed size: its length is known when it is there. */
static int append_element(struct buffer *list, const struct wire_message *m)
{
    size_t before = list->len;
    int r = buffer_append_u32(list, 0);
    if (r == 0)
        r = wire_encode(list, m);
    if (r < 0) {
        list->len = before;
        return r;
    }
    uint32_t size = (uint32_t)(list->len - before - 4);
    for (size_t i = 0; i < 4; i++)
        list->data[before + i] = (uint8_t)(size >> (8 * i));
    return 0;
}

/* recent: its entries go along, if there is room. */
static int append_part(struct walk *w, struct bytes elements, uint32_t count, uint64_t cookie,
                       bool recent)
{
    uint8_t digest[PART_DIGEST_SIZE];
    w->bare.len = w->nodes.len = 0;
    int r = part_take_nodes(elements, &w->bare, &w->nodes);
    if (r == 0)
        r = part_digest(buffer_view(&w->bare), digest);
    if (r < 0)
        return r;
    bool whole = recent && w->list->len + w->parts.len + elements.len + DIGESTS_RESERVE <= w->size;
    const struct wire_message m = {
        .type = WIRE_TREE_PART,
        .tree_part = {.digest = bytes_of(digest, sizeof digest),
                      .size = (uint32_t)elements.len,
                      .cookie = cookie,
                      .nodes = buffer_view(&w->nodes),
                      .entries = whole ? wire_list_of(&w->bare, count) : (struct wire_list){0}}};
    return append_element(&w->parts, &m);
}

static bool is_recent(const struct walk *w, const struct wire_time *t)
{
    return t->sec != w->since.sec ? t->sec > w->since.sec : t->nsec >= w->since.nsec;
}

/* Cuts the directory's entries into parts. */
static int make_parts(struct walk *w, uint32_t *ret_count)
{
    const struct wire_list list = entries_of(w, 0);
    struct wire_message m;
    uint32_t start = 0, entries = 0, count = 0;
    bool recent = false;
    int r = 0;
    w->parts.len = 0;
    for (uint32_t offset = 0; r == 0 && next_entry(&list, &offset, &m);) {
        const struct wire_dirent *entry = &m.dirent;
        entries++;
        recent |= entry->node && is_recent(w, &entry->attr.ctime);
        if (offset < list.len && !part_ends(entry->name, offset - start))
            continue;
        r = append_part(w, bytes_of(list.data + start, offset - start), entries, entry->cookie,
                        recent);
        start = offset;
        entries = 0;
        recent = false;
        count++;
    }
    *ret_count = count;
    return r;
}

static int append_directory(struct walk *w, const struct listing *l, bool end)
{
    struct wire_message m = {.type = WIRE_TREE_DIRECTORY,
                             .tree_directory = {.node = l->dir->number,
                                                .end = end,
                                                .unlisted = l->left_out.unlisted,
                                                .hidden = l->left_out.hidden,
                                                .entries = entries_of(w, l->count)}};
    struct statx stx;
    uint32_t parts = 0;
    int r = grip_statx_fd(l->fd, &stx);
    if (r == 0)
        r = node_attr(l->dir, &stx, &m.tree_directory.attr);
    if (r == 0 && w->digests)
        r = make_parts(w, &parts);
    if (r < 0)
        return r;
    if (w->digests) {
        const struct wire_tree_directory d = m.tree_directory;
        m = (struct wire_message){.type = WIRE_TREE_DIGEST,
                                  .tree_digest = {.node = d.node,
                                                  .end = d.end,
                                                  .unlisted = d.unlisted,
                                                  .hidden = d.hidden,
                                                  .attr = d.attr,
                                                  .parts = wire_list_of(&w->parts, parts)}};
        if (w->list->len + DIRECTORY_SIZE + w->parts.len > w->size)
            return -E2BIG;
    }
    r = append_element(w->list, &m);
    if (r == 0) {
        w->count++;
        w->looked += DIRECTORY_SIZE + w->entries.len;
    }
    return r;
}

static size_t minus(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

/* Bytes of entries that fit in the next directory, never more than could come whole. */
static size_t room_in(const struct walk *w)
{
    size_t room = minus(w->size, w->list->len + DIRECTORY_SIZE);
    if (!w->digests)
        return room;
    size_t stands_for = minus(room, PART_RECORD_MAX) * DIGESTS_LEAST;
    size_t looks = minus(w->looks, w->looked + DIRECTORY_SIZE);
    size_t least = stands_for < looks ? stands_for : looks;
    return least < w->size ? least : w->size;
}

/* Adds an open directory. first: even if only a part of it fits. */
static int add_open(struct walk *w, struct listing *l, bool first)
{
    size_t room = room_in(w);
    bool end, within = false;
    int r = read_names(w, l->fd, room, &end);
    if (r < 0)
        return r;
    if (!end && !first)
        return -E2BIG;
    w->entries.len = 0;
    l->list = &w->entries;
    l->size = room;
    l->in_parts = first;
    r = listing_add_block(l, w->names.data, w->names.len, &within);
    if (r == 0) {
        end = end && !within;
        if (end)
            listing_settle(l);
        r = append_directory(w, l, end);
    }
    if (r < 0)
        give_back(w, l->count);
    return r;
}

/* Adds a directory, or what follows cookie in it, if it is to be in the list. -E2BIG: it is not;
 * other errors are its own. */
static int add_directory(struct walk *w, uint64_t number, bool first, uint64_t cookie,
                         uint32_t *ret_count)
{
    _cleanup_node_ struct node *dir = NULL;
    _cleanup_close_ int fd = -1;
    struct listing l = {.session = w->session, .plus = true};
    int r = node_get_directory(w->session, number, &dir);
    if (r < 0)
        return r;
    if (w->size < w->list->len + DIRECTORY_SIZE || (w->digests && room_in(w) == 0))
        return -E2BIG;
    r = view_open(w->session, dir, &l.view);
    if (r < 0)
        return r == -ESTALE ? -ENOENT : r;
    if (first)
        w->device = dir->device;
    else if (dir->device != w->device || l.view.dir.own != VISIBILITY_SHOW)
        r = -E2BIG;
    if (r == 0)
        r = directory_open(dir, &fd);
    if (r == 0 && cookie && lseek(fd, (off_t)cookie, SEEK_SET) < 0)
        r = -errno;
    /* Before its names are read: what changes from here on is reported. */
    if (r == 0)
        r = node_hold(w->session, dir);
    if (r == 0) {
        l.dir = dir;
        l.fd = fd;
        r = add_open(w, &l, first);
        if (r == 0 && !w->again)
            listing_count(&l);
        if (r < 0)
            node_forget(w->session, number, 1);
    }
    view_close(&l.view);
    *ret_count = l.count;
    return r;
}

static struct wire_time time_before(uint32_t ms)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    int64_t at = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - ms;
    return (struct wire_time){.sec = at / 1000, .nsec = (uint32_t)(at % 1000) * 1000000};
}

OPERATION(readtree)
{
    const struct wire_readtree *asked = &m->readtree;
    if ((asked->flags & ~(uint32_t)(WIRE_TREE_ALONE | WIRE_TREE_DIGESTS)) ||
        asked->also.len % sizeof(uint64_t) || asked->cookie > INT64_MAX)
        return -EINVAL;
    _cleanup_walk_ struct walk w = {.session = session,
                                    .list = &ret->storage,
                                    .size = asked->size < LISTING_SIZE_MAX ? asked->size
                                                                           : LISTING_SIZE_MAX,
                                    .since = time_before(asked->age),
                                    .digests = asked->flags & WIRE_TREE_DIGESTS};
    w.looks = w.size * (asked->also.len ? DIGESTS_FACTOR : 1);
    uint32_t count;
    int r = add_directory(&w, asked->node, true, asked->cookie, &count);
    if (r < 0)
        return r == -E2BIG ? -EINVAL : r;
    r = enqueue_named(&w, asked->also);
    if (r == 0 && !(asked->flags & WIRE_TREE_ALONE))
        r = enqueue_directories(&w, count);
    for (size_t at = 0; r != -ENOMEM && at < w.queue.len; at += sizeof(uint64_t)) {
        uint64_t number;
        memcpy(&number, w.queue.data + at, sizeof number);
        r = add_directory(&w, number, false, 0, &count);
        if (r == 0 && !(asked->flags & WIRE_TREE_ALONE))
            r = enqueue_directories(&w, count);
    }
    /* What is in the list has been counted as given, whatever came after it. */
    ret->message = (struct wire_message){.type = WIRE_TREE};
    *(w.digests ? &ret->message.tree.digests : &ret->message.tree.directories) =
        wire_list_of(w.list, w.count);
    return 0;
}

OPERATION(readparts)
{
    struct bytes ranges = m->readparts.parts;
    if (ranges.len % RANGE_SIZE)
        return -EINVAL;
    _cleanup_walk_ struct walk w = {.session = session, .list = &ret->storage, .again = true};
    for (size_t at = 0; at < ranges.len; at += RANGE_SIZE) {
        const uint8_t *range = ranges.data + at;
        uint64_t cookie = number_at(range + 8, 8);
        uint32_t size = (uint32_t)number_at(range + 16, 4), count;
        if (cookie > INT64_MAX || size > PART_SIZE_MAX)
            return -EINVAL;
        w.size = w.list->len + DIRECTORY_SIZE + size;
        if (w.size > LISTING_SIZE_MAX ||
            add_directory(&w, number_at(range, 8), true, cookie, &count) == -ENOMEM)
            break;
    }
    ret->message =
        (struct wire_message){.type = WIRE_TREE, .tree.directories = wire_list_of(w.list, w.count)};
    return 0;
}
