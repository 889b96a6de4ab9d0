#include "store/listing.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Directories that one request looks at, sent or not. Stops a tree of empty or of huge ones from
 * holding a worker for long. As many as a TREE holds. */
#define TREE_DIRECTORIES_MAX 4096

/* A TREE_DIRECTORY without its entries, and its length in the list. */
#define DIRECTORY_SIZE ((size_t)(4 + 8 + 4 + 4 + 4 + WIRE_ATTR_SIZE + 4))

struct walk {
    struct file_session *session;
    struct buffer *list; /* TREE_DIRECTORY elements */
    uint32_t count;
    size_t size;           /* list bytes asked for */
    struct buffer names;   /* of one directory, as the kernel gives them */
    struct buffer entries; /* of one directory: DIRENT elements */
    struct buffer queue;   /* u64 nodes of directories, breadth first */
    dev_t device;
};

static void walk_release(struct walk *w)
{
    buffer_release(&w->names);
    buffer_release(&w->entries);
    buffer_release(&w->queue);
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

/* nodes: u64 each, as on the wire. */
static int enqueue_named(struct walk *w, struct bytes nodes)
{
    int r = 0;
    for (size_t at = 0; r == 0 && at < nodes.len; at += sizeof(uint64_t)) {
        uint64_t node = 0;
        for (size_t i = 0; i < sizeof node; i++)
            node |= (uint64_t)nodes.data[at + i] << (8 * i);
        r = buffer_append(&w->queue, &node, sizeof node);
    }
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
    size_t before = w->list->len;
    int r = grip_statx_fd(l->fd, &stx);
    if (r == 0)
        r = node_attr(l->dir, &stx, &m.tree_directory.attr);
    if (r == 0)
        r = buffer_append_u32(w->list, (uint32_t)(DIRECTORY_SIZE - 4 + w->entries.len));
    if (r == 0)
        r = wire_encode(w->list, &m);
    if (r < 0)
        w->list->len = before;
    else
        w->count++;
    return r;
}

/* Adds an open directory. first: even if only a part of it fits. */
static int add_open(struct walk *w, struct listing *l, bool first)
{
    size_t room = w->size - w->list->len - DIRECTORY_SIZE;
    bool end, within = false;
    int r = read_names(w, l->fd, room, &end);
    if (r < 0)
        return r;
    if (!end && !first)
        return -E2BIG;
    w->entries.len = 0;
    l->list = &w->entries;
    l->size = room;
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
    if (w->size < w->list->len + DIRECTORY_SIZE)
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
        if (r == 0)
            listing_count(&l);
        else
            node_forget(w->session, number, 1);
    }
    view_close(&l.view);
    *ret_count = l.count;
    return r;
}

OPERATION(readtree)
{
    const struct wire_readtree *asked = &m->readtree;
    if ((asked->flags & ~(uint32_t)WIRE_TREE_ALONE) || asked->also.len % sizeof(uint64_t) ||
        asked->cookie > INT64_MAX)
        return -EINVAL;
    _cleanup_walk_ struct walk w = {.session = session,
                                    .list = &ret->storage,
                                    .size = asked->size < LISTING_SIZE_MAX ? asked->size
                                                                           : LISTING_SIZE_MAX};
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
    ret->message =
        (struct wire_message){.type = WIRE_TREE, .tree.directories = wire_list_of(w.list, w.count)};
    return 0;
}
