#include "store/grip.h"

#include "store/handle.h"
#include "store/path.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define GRIP_STATX_MASK (STATX_BASIC_STATS | STATX_BTIME)

/* Levels whose nodes fit on the stack while a path is put together; deeper ones allocate. */
#define SHORT_DEPTH 64

/* Largest file that is kept open when its name is removed or replaced. Stops a client that never
 * forgets what it looked up from filling the disk with files that nobody can see: with every
 * descriptor of the cache (CACHED_DESCRIPTORS_MAX) it is 1 GiB. */
#define REMOVED_SIZE_MAX ((uint64_t)256 << 10)

int grip_statx_fd(int fd, struct statx *ret)
{
    return statx(fd, "", AT_EMPTY_PATH, GRIP_STATX_MASK, ret) < 0 ? -errno : 0;
}

const char *grip_path(int fd, char buffer[GRIP_PATH_SIZE])
{
    return path_of_fd(fd, buffer);
}

/* --- the cache ----------------------------------------------------------------- */

static void pin_locked(struct node *node)
{
    if (node->pins++ == 0)
        node_list_remove(&node->workspace->store->cached, node);
}

static void append_newest_locked(struct node_list *list, struct node *node)
{
    node->older = list->newest;
    *(list->newest ? &list->newest->newer : &list->oldest) = node;
    list->newest = node;
    list->count++;
}

void grip_trim(struct store *store, size_t keep)
{
    for (;;) {
        int fd = -1;
        store_lock(store);
        if (store->cached.count > keep) {
            struct node *oldest = store->cached.oldest;
            node_list_remove(&store->cached, oldest);
            fd = take_fd(&oldest->fd);
        }
        store_unlock(store);
        if (fd < 0)
            return;
        (void)close(fd);
    }
}

/* Something the node can be used through now, pinned. */
static bool grip_present_locked(struct node *node, struct grip *ret)
{
    if (node->root) {
        *ret = (struct grip){.fd = node->workspace->tree_fd};
        return true;
    }
    if (node->fd >= 0) {
        pin_locked(node);
        *ret = (struct grip){.fd = node->fd, .node = node};
        return true;
    }
    if (node->handles) {
        node->handles->refs++;
        *ret = (struct grip){.fd = node->handles->fd, .handle = node->handles};
        return true;
    }
    return false;
}

void grip_release(struct grip *grip)
{
    if (grip->handle)
        handle_unref(grip->handle);
    if (grip->node) {
        struct node *node = grip->node;
        struct store *store = node->workspace->store;
        int fd = -1;
        bool full = false;
        store_lock(store);
        if (--node->pins == 0) {
            /* Of files, only small ones that a client removed are kept: a kept descriptor of a
             * file that a command deletes would keep its blocks from being freed. */
            if ((node->type == S_IFDIR || node->removed) && !node->workspace->removed) {
                append_newest_locked(&store->cached, node);
                full = store->cached.count > store->limits.cached_descriptors;
            } else {
                fd = take_fd(&node->fd);
            }
        }
        store_unlock(store);
        close_fd(&fd);
        if (full)
            grip_trim(store, store->limits.cached_descriptors);
    }
    *grip = (struct grip){.fd = -1};
}

/* --- walking ------------------------------------------------------------------- */

/* Finds the nearest directory above node that can be used now, and the path from there. */
static int plan_walk_locked(struct node *node, struct grip *ret_base, struct buffer *path)
{
    struct node *few[SHORT_DEPTH];
    _cleanup_free_ struct node **many = NULL;
    struct node **levels = few;
    size_t depth = 0, allocated = SHORT_DEPTH;
    struct node *n = node;
    do {
        if (!n->parent)
            return -ESTALE;
        if (depth == TREE_DEPTH_MAX)
            return -ENAMETOOLONG;
        if (depth == allocated) {
            allocated *= 2;
            struct node **more = realloc(many, allocated * sizeof *more);
            if (!more)
                return -ENOMEM;
            if (!many)
                memcpy(more, few, sizeof few);
            levels = many = more;
        }
        levels[depth++] = n;
        n = n->parent;
    } while (!grip_present_locked(n, ret_base));
    while (depth > 0) {
        const char *name = levels[--depth]->name;
        int r = buffer_append(path, name, strlen(name));
        if (r == 0)
            r = buffer_append_u8(path, depth > 0 ? '/' : '\0');
        if (r < 0)
            return r;
    }
    return 0;
}

/* Opens the node anew and checks that it is the node's file. */
static int walk(struct node *node, int *ret_fd, struct statx *ret_stx)
{
    struct store *store = node->workspace->store;
    _cleanup_buffer_ struct buffer path = {0};
    _cleanup_grip_ struct grip base = {.fd = -1};
    store_lock(store);
    int r = plan_walk_locked(node, &base, &path);
    store_unlock(store);
    if (r < 0)
        return r;
    _cleanup_close_ int fd =
        path_open(base.fd, (char *)path.data, path.len - 1, !store->openat2_missing);
    if (fd == -EMFILE || fd == -ENFILE) {
        grip_trim(store, 0);
        return -EMFILE;
    }
    if (fd < 0)
        return fd;
    struct statx stx;
    r = grip_statx_fd(fd, &stx);
    if (r < 0)
        return r;
    uint64_t generation;
    if (!node_matches(node, &stx))
        return -ESTALE;
    r = node_generation(node->workspace, fd, "", &stx, &generation);
    if (r < 0)
        return r;
    if (generation != node->generation)
        return -ESTALE;
    *ret_fd = take_fd(&fd);
    *ret_stx = stx;
    return 0;
}

static bool means_moved(int error)
{
    return error == -ESTALE || error == -ENOENT || error == -ENOTDIR || error == -ELOOP;
}

/* A walk that fails because of a rename that runs just now is repeated when that is over. */
static int walk_settled(struct node *node, int *ret_fd, struct statx *ret_stx)
{
    int r = walk(node, ret_fd, ret_stx);
    if (r == -EMFILE)
        r = walk(node, ret_fd, ret_stx); /* the cache's descriptors are free now */
    if (!means_moved(r))
        return r;
    struct workspace *workspace = node->workspace;
    (void)pthread_rwlock_rdlock(&workspace->renames);
    r = walk(node, ret_fd, ret_stx);
    (void)pthread_rwlock_unlock(&workspace->renames);
    return means_moved(r) ? -ESTALE : r;
}

/* Keeps fd as the node's, which has none. */
static void hold_locked(struct node *node, int fd, struct grip *ret)
{
    node->fd = fd;
    node->pins = 1;
    *ret = (struct grip){.fd = fd, .node = node};
}

/* The same, unless another thread was faster. */
static void adopt(struct node *node, int fd, struct grip *ret)
{
    struct store *store = node->workspace->store;
    store_lock(store);
    bool present = grip_present_locked(node, ret);
    if (!present)
        hold_locked(node, fd, ret);
    store_unlock(store);
    if (present)
        (void)close(fd);
}

/* The directory that it is in, and its name there. The grip is to be released before the parent:
 * the node may have been moved to another one meanwhile. */
static int take_directory(struct node *node, struct node **ret_parent, struct grip *ret,
                          char ret_name[WIRE_NAME_MAX + 1])
{
    int r = node_place(node, ret_parent, ret_name);
    return r < 0 ? r : grip_take(*ret_parent, ret, NULL);
}

int grip_take(struct node *node, struct grip *ret, struct statx *ret_stx)
{
    struct store *store = node->workspace->store;
    struct statx stx;
    store_lock(store);
    bool present = grip_present_locked(node, ret);
    store_unlock(store);
    if (present) {
        int r = ret_stx ? grip_statx_fd(ret->fd, &stx) : 0;
        if (r < 0) {
            grip_release(ret);
            return r;
        }
    } else {
        /* A file's directory is opened first, and kept: its other files are next. */
        _cleanup_node_ struct node *parent = NULL;
        _cleanup_grip_ struct grip directory = {.fd = -1};
        if (node->type != S_IFDIR) {
            char name[WIRE_NAME_MAX + 1];
            int r = take_directory(node, &parent, &directory, name);
            if (r < 0)
                return r;
        }
        int fd;
        int r = walk_settled(node, &fd, &stx);
        if (r < 0)
            return r;
        adopt(node, fd, ret);
    }
    if (ret_stx)
        *ret_stx = stx;
    return 0;
}

void grip_keep_removed(struct workspace *workspace, int dir_fd, const char *name)
{
    _cleanup_close_ int fd = openat(dir_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct statx stx;
    if (fd < 0 || grip_statx_fd(fd, &stx) < 0 || S_ISDIR(stx.stx_mode) ||
        (S_ISREG(stx.stx_mode) && stx.stx_size > REMOVED_SIZE_MAX))
        return;
    _cleanup_node_ struct node *node = NULL;
    if (node_find(workspace, fd, &stx, &node) < 0)
        return;
    /* Not by a handle of it: who holds the node may hold it for longer. */
    _cleanup_grip_ struct grip grip = {.fd = -1};
    store_lock(workspace->store);
    node->removed = true;
    if (!node->root && node->fd < 0)
        hold_locked(node, take_fd(&fd), &grip);
    store_unlock(workspace->store);
}

/* --- attributes ---------------------------------------------------------------- */

/* -ESTALE: not there any more. */
static int stat_in_place(struct node *node, struct statx *ret)
{
    _cleanup_node_ struct node *parent = NULL;
    _cleanup_grip_ struct grip directory = {.fd = -1};
    char name[WIRE_NAME_MAX + 1];
    int r = take_directory(node, &parent, &directory, name);
    if (r < 0)
        return r;
    struct statx stx;
    if (statx(directory.fd, name, AT_SYMLINK_NOFOLLOW, GRIP_STATX_MASK, &stx) < 0)
        return means_moved(-errno) ? -ESTALE : -errno;
    if (!node_matches(node, &stx))
        return -ESTALE;
    uint64_t generation;
    r = node_generation(node->workspace, directory.fd, name, &stx, &generation);
    if (r < 0)
        return means_moved(r) ? -ESTALE : r;
    if (generation != node->generation)
        return -ESTALE;
    *ret = stx;
    return 0;
}

int grip_stat(struct node *node, struct statx *ret)
{
    struct store *store = node->workspace->store;
    struct grip present = {.fd = -1};
    store_lock(store);
    bool found = grip_present_locked(node, &present);
    store_unlock(store);
    if (!found && node->type != S_IFDIR) {
        int r = stat_in_place(node, ret);
        if (r != -ESTALE)
            return r;
    }
    _cleanup_grip_ struct grip grip = present;
    return found ? grip_statx_fd(grip.fd, ret) : grip_take(node, &grip, ret);
}
