#include "store/node.h"

#include "base/hash.h"
#include "store/changes.h"
#include "store/detect.h"
#include "store/handle.h"
#include "store/view.h"
#include "store/writers.h"
#include "watch/file_handle.h"

#include <fcntl.h>
#include <string.h>
#include <sys/sysmacros.h>

static dev_t statx_device(const struct statx *stx)
{
    return makedev(stx->stx_dev_major, stx->stx_dev_minor);
}

static uint64_t identity_key(uint32_t slot, dev_t device, uint64_t ino)
{
    return table_hash_pair(ino, device ^ ((uint64_t)slot << 40));
}

static uint64_t node_key(const struct node *node)
{
    return identity_key(node->workspace->slot, node->device, node->ino);
}

/* --- generation ---------------------------------------------------------------- */

static uint64_t birth_generation(const struct statx *stx)
{
    uint64_t hash = HASH_START;
    if (stx->stx_mask & STATX_BTIME) {
        hash = hash_bytes(hash, &stx->stx_btime.tv_sec, sizeof stx->stx_btime.tv_sec);
        hash = hash_bytes(hash, &stx->stx_btime.tv_nsec, sizeof stx->stx_btime.tv_nsec);
    }
    return hash_end(hash);
}

int node_generation(struct workspace *workspace, int dir_fd, const char *name,
                    const struct statx *stx, uint64_t *ret)
{
    bool own = statx_device(stx) == workspace->device;
    if (own && atomic_load_explicit(&workspace->handles_missing, memory_order_relaxed)) {
        *ret = birth_generation(stx);
        return 0;
    }
    int r = file_handle_hash_at(dir_fd, name, ret);
    switch (r) {
    case -EOPNOTSUPP:
    case -ENOSYS:
    case -EPERM: /* a sandbox that forbids the call */
    case -EOVERFLOW:
        if (own)
            atomic_store_explicit(&workspace->handles_missing, true, memory_order_relaxed);
        *ret = birth_generation(stx);
        return 0;
    }
    return r;
}

bool node_matches(const struct node *node, const struct statx *stx)
{
    return stx->stx_ino == node->ino && statx_device(stx) == node->device &&
           (stx->stx_mode & S_IFMT) == node->type;
}

/* --- references ---------------------------------------------------------------- */

/* Takes node out of a chain of its table; next is the chain's link. */
static void chain_remove(struct table *table, uint64_t key, struct node *node,
                         struct node **(*next)(struct node *))
{
    struct node *head = table_get(table, key), *rest = *next(node);
    if (head == node && rest) {
        (void)table_put(table, key, rest, NULL); /* replaces: no memory */
    } else if (head == node) {
        (void)table_take(table, key);
    } else {
        while (head && *next(head) != node)
            head = *next(head);
        if (head)
            *next(head) = rest;
    }
}

static struct node **next_by_identity(struct node *node)
{
    return &node->chain;
}

static struct node **next_by_generation(struct node *node)
{
    return &node->same_generation;
}

static void node_unlink_locked(struct node *node)
{
    struct store *store = node->workspace->store;
    chain_remove(&store->nodes, node_key(node), node, next_by_identity);
    chain_remove(&store->generations, node->generation, node, next_by_generation);
}

static int node_link_locked(struct node *node)
{
    struct store *store = node->workspace->store;
    uint64_t key = node_key(node);
    node->chain = table_get(&store->nodes, key);
    int r = table_put(&store->nodes, key, node, NULL);
    if (r < 0)
        return r;
    /* Birth times are no identity: chains of them would be long. */
    if (atomic_load(&node->workspace->handles_missing))
        return 0;
    node->same_generation = table_get(&store->generations, node->generation);
    r = table_put(&store->generations, node->generation, node, NULL);
    if (r < 0)
        chain_remove(&store->nodes, key, node, next_by_identity);
    return r;
}

void node_list_remove(struct node_list *list, struct node *node)
{
    *(node->older ? &node->older->newer : &list->oldest) = node->newer;
    *(node->newer ? &node->newer->older : &list->newest) = node->older;
    node->older = node->newer = NULL;
    list->count--;
}

void node_unref_locked(struct node *node)
{
    /* Not recursive: a chain of parents can be thousands long. */
    while (node && --node->refs == 0) {
        struct node *parent = node->parent;
        struct store *store = node->workspace->store;
        node_unlink_locked(node);
        writers_forget_locked(node);
        detect_forget_locked(node);
        if (node->fd >= 0) {
            node_list_remove(&store->cached, node);
            close_fd(&node->fd);
        }
        store->node_count--;
        workspace_unref_locked(node->workspace);
        free(node->name);
        free(node);
        node = parent;
    }
}

void node_unref(struct node *node)
{
    struct store *store = node->workspace->store;
    store_lock(store);
    node_unref_locked(node);
    store_unlock(store);
}

/* *ret_unsure: it may be hidden from the session. */
static int find_held(struct file_session *session, uint64_t number, struct node **ret,
                     bool *ret_unsure)
{
    struct store *store = session->store;
    int r = -ESTALE;
    store_lock(store);
    struct node_ref *ref = table_get(&session->nodes, number);
    if (ref && !ref->node->workspace->removed) {
        ref->node->refs++;
        *ret = ref->node;
        *ret_unsure = view_unsure_locked(session, ref);
        r = 0;
    }
    store_unlock(store);
    return r;
}

int node_get_open(struct file_session *session, uint64_t number, struct node **ret)
{
    bool unsure;
    return find_held(session, number, ret, &unsure);
}

int node_get(struct file_session *session, uint64_t number, struct node **ret)
{
    _cleanup_node_ struct node *node = NULL;
    bool unsure;
    int r = find_held(session, number, &node, &unsure);
    if (r == 0 && unsure)
        r = view_check(session, node);
    if (r == 0)
        *ret = take_ptr(node);
    return r;
}

int node_get_directory(struct file_session *session, uint64_t number, struct node **ret)
{
    _cleanup_node_ struct node *node = NULL;
    int r = node_get(session, number, &node);
    if (r < 0)
        return r;
    if (node->type != S_IFDIR)
        return -ENOTDIR;
    *ret = take_ptr(node);
    return 0;
}

void node_forget(struct file_session *session, uint64_t number, uint64_t count)
{
    struct store *store = session->store;
    store_lock(store);
    struct node_ref *ref = table_get(&session->nodes, number);
    if (ref) {
        ref->count -= count < ref->count ? count : ref->count;
        if (ref->count == 0) {
            (void)table_take(&session->nodes, number);
            node_unref_locked(ref->node);
            view_forget(ref);
            free(ref);
        }
    }
    store_unlock(store);
}

bool node_room(struct file_session *session)
{
    struct store *store = session->store;
    store_lock(store);
    bool room = session->nodes.count < store->limits.session_nodes;
    store_unlock(store);
    return room;
}

/* One more reference of the session. The node keeps the caller's reference. *ret_first: the
 * session had none. */
static int session_ref_locked(struct file_session *session, struct node *node, uint64_t seen_at,
                              bool *ret_first)
{
    *ret_first = false;
    struct node_ref *ref = table_get(&session->nodes, node->number);
    if (ref) {
        ref->count++;
        if (ref->seen_at < seen_at)
            ref->seen_at = seen_at;
        return 0;
    }
    if (session->nodes.count >= session->store->limits.session_nodes)
        return -ENFILE;
    ref = malloc(sizeof *ref);
    if (!ref)
        return -ENOMEM;
    *ref = (struct node_ref){.node = node, .count = 1, .seen_at = seen_at};
    int r = table_put(&session->nodes, node->number, ref, NULL);
    if (r < 0) {
        free(ref);
        return r;
    }
    node->refs++;
    *ret_first = true;
    return 0;
}

int node_hold(struct file_session *session, struct node *node)
{
    bool first;
    store_lock(session->store);
    int r = session_ref_locked(session, node, 0, &first);
    store_unlock(session->store);
    return r;
}

/* --- places -------------------------------------------------------------------- */

/* The node's place is no longer known. */
static void lose_place_locked(struct node *node)
{
    struct node *parent = node->parent;
    if (parent && node->type == S_IFDIR)
        view_changed_locked(node->workspace->store, &node->workspace->view_changed);
    node->parent = NULL;
    free(take_ptr(node->name));
    if (parent)
        node_unref_locked(parent);
}

/* Commands rename behind our back, so what is noted can be out of date piecewise, and noting
 * a directory below one of its own former children would close a circle: forget the place of
 * whoever was noted below it. */
static void break_circle_locked(struct node *node, struct node *dir)
{
    for (struct node *n = dir; n; n = n->parent)
        if (n->parent == node) {
            lose_place_locked(n);
            return;
        }
}

static int set_place_locked(struct node *node, struct node *dir, const char *name)
{
    if (node->root || node == dir)
        return 0;
    if (node->parent == dir && node->name && strcmp(node->name, name) == 0)
        return 0;
    char *copy = strdup(name);
    if (!copy)
        return -ENOMEM;
    dir->refs++;
    node->refs++;
    if (node->parent != dir && node->type == S_IFDIR)
        break_circle_locked(node, dir);
    lose_place_locked(node);
    node->refs--; /* not the last: the caller's is left */
    node->parent = dir;
    node->name = copy;
    return 0;
}

int node_place(struct node *node, struct node **ret_parent, char ret_name[WIRE_NAME_MAX + 1])
{
    struct store *store = node->workspace->store;
    int r = -ESTALE;
    store_lock(store);
    if (node->parent) {
        node->parent->refs++;
        *ret_parent = node->parent;
        memcpy(ret_name, node->name, strlen(node->name) + 1);
        r = 0;
    }
    store_unlock(store);
    return r;
}

/* --- finding and making -------------------------------------------------------- */

static struct node *chain_first_locked(struct workspace *workspace, const struct statx *stx)
{
    return table_get(&workspace->store->nodes,
                     identity_key(workspace->slot, statx_device(stx), stx->stx_ino));
}

/* The node of a file that is sure to be the one stx speaks of, because a descriptor keeps
 * its inode number from being used again. */
static struct node *find_open_locked(struct workspace *workspace, const struct statx *stx)
{
    for (struct node *n = chain_first_locked(workspace, stx); n; n = n->chain)
        if (n->workspace == workspace && node_matches(n, stx) &&
            (n->fd >= 0 || n->handles || n->root))
            return n;
    return NULL;
}

static struct node *find_locked(struct workspace *workspace, const struct statx *stx,
                                uint64_t generation)
{
    for (struct node *n = chain_first_locked(workspace, stx); n; n = n->chain)
        if (n->workspace == workspace && node_matches(n, stx) && n->generation == generation)
            return n;
    return NULL;
}

/* With one reference, the caller's. */
static int make_locked(struct workspace *workspace, const struct statx *stx, uint64_t generation,
                       bool root, struct node **ret)
{
    struct store *store = workspace->store;
    struct node *node = malloc(sizeof *node);
    if (!node)
        return -ENOMEM;
    *node = (struct node){
        .workspace = workspace,
        .number = store->last_number + 1,
        .ino = stx->stx_ino,
        .generation = generation,
        .device = statx_device(stx),
        .fd = -1,
        .lease_fd = -1,
        .refs = 1,
        .type = stx->stx_mode & S_IFMT,
        .root = root,
    };
    int r = node_link_locked(node);
    if (r < 0) {
        free(node);
        return r;
    }
    (void)workspace_ref_locked(workspace);
    store->last_number++;
    store->node_count++;
    *ret = node;
    return 0;
}

static int enter_locked(struct file_session *session, struct node *node,
                        const struct sighting *seen, bool *ret_first)
{
    int r = seen->dir ? set_place_locked(node, seen->dir, seen->name) : 0;
    return r < 0 ? r : session_ref_locked(session, node, seen->seen_at, ret_first);
}

/* Changes between the sighting and the session's first reference were not noted for it. */
static void see_again(const struct node *node, const struct sighting *seen)
{
    struct statx stx;
    if (statx(seen->at_fd, seen->at_name,
              AT_SYMLINK_NOFOLLOW | (*seen->at_name ? 0 : AT_EMPTY_PATH),
              STATX_BASIC_STATS | STATX_BTIME, &stx) == 0 &&
        node_matches(node, &stx))
        *seen->stx = stx;
}

int node_enter(struct file_session *session, struct workspace *workspace,
               const struct sighting *seen, struct node **ret)
{
    struct store *store = session->store;
    store_lock(store);
    struct node *node = find_open_locked(workspace, seen->stx);
    if (node)
        node->refs++;
    store_unlock(store);
    uint64_t generation = 0;
    if (!node) {
        int r = node_generation(workspace, seen->at_fd, seen->at_name, seen->stx, &generation);
        if (r < 0)
            return r;
    }
    store_lock(store);
    int r = 0;
    bool first = false;
    if (seen->rename_count && *seen->rename_count != atomic_load(&workspace->rename_count)) {
        r = -EAGAIN;
        if (node)
            node_unref_locked(node);
    } else if (!node) {
        node = find_locked(workspace, seen->stx, generation);
        if (node)
            node->refs++;
        else
            r = make_locked(workspace, seen->stx, generation, !seen->dir, &node);
    }
    if (r == 0) {
        r = enter_locked(session, node, seen, &first);
        if (r < 0)
            node_unref_locked(node);
    }
    store_unlock(store);
    if (r < 0)
        return r;
    /* What happened to it before it was a node, or was watched, is not told. */
    bool watched = detect_watch(node, seen->at_fd, seen->at_name);
    if ((first && changes_cover(node)) || watched)
        see_again(node, seen);
    *ret = node;
    return 0;
}

static int find_node(struct workspace *workspace, int at_fd, const char *at_name,
                     const struct statx *stx, struct node **ret)
{
    uint64_t generation;
    int r = node_generation(workspace, at_fd, at_name, stx, &generation);
    if (r < 0)
        return r;
    store_lock(workspace->store);
    struct node *node = find_locked(workspace, stx, generation);
    if (node)
        node->refs++;
    store_unlock(workspace->store);
    if (!node)
        return -ENOENT;
    *ret = node;
    return 0;
}

int node_find(struct workspace *workspace, int fd, const struct statx *stx, struct node **ret)
{
    return find_node(workspace, fd, "", stx, ret);
}

struct node *node_of_generation(struct store *store, uint64_t generation, struct node *previous)
{
    store_lock(store);
    struct node *node =
        previous ? previous->same_generation : table_get(&store->generations, generation);
    if (node)
        node->refs++;
    if (previous)
        node_unref_locked(previous);
    store_unlock(store);
    return node;
}

int node_find_at(struct node *dir, int dir_fd, const char *name, struct node **ret)
{
    struct statx stx;
    if (statx(dir_fd, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &stx) < 0)
        return -errno;
    return find_node(dir->workspace, dir_fd, name, &stx, ret);
}

void node_note_place(struct node *dir, int dir_fd, const char *name)
{
    struct workspace *workspace = dir->workspace;
    struct store *store = workspace->store;
    struct statx stx;
    uint64_t generation;
    if (statx(dir_fd, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &stx) < 0 ||
        node_generation(workspace, dir_fd, name, &stx, &generation) < 0)
        return;
    store_lock(store);
    struct node *node = find_locked(workspace, &stx, generation);
    if (node && set_place_locked(node, dir, name) < 0)
        lose_place_locked(node); /* no memory: better no place than a wrong one */
    store_unlock(store);
}

/* --- attributes ---------------------------------------------------------------- */

static struct wire_time wire_time_of(const struct statx_timestamp *t)
{
    return (struct wire_time){.sec = t->tv_sec, .nsec = t->tv_nsec};
}

int node_identity(const struct node *node, const struct statx *stx, uint64_t *ret_ino,
                  uint64_t *ret_generation, uint64_t *ret_version)
{
    const struct workspace *workspace = node->workspace;
    const struct wire_attr attr = {.size = stx->stx_size,
                                   .mtime = wire_time_of(&stx->stx_mtime),
                                   .ctime = wire_time_of(&stx->stx_ctime)};
    *ret_generation = node->generation;
    *ret_version = wire_attr_version(&attr);
    return inode_number(workspace->store->numbers, workspace->slot, workspace->device, node->device,
                        node->ino, ret_ino);
}

int node_attr(struct node *node, const struct statx *stx, struct wire_attr *ret)
{
    struct workspace *workspace = node->workspace;
    uint64_t ino;
    int r = inode_number(workspace->store->numbers, workspace->slot, workspace->device,
                         node->device, node->ino, &ino);
    if (r < 0)
        return r;
    uint32_t flags = 0;
    if (detect_covers(node) && writers_absent(node))
        flags = WIRE_ATTR_COVERED;
    else if (workspace->store->detects && node->type == S_IFREG)
        flags = WIRE_ATTR_WRITTEN;
    *ret = (struct wire_attr){
        .ino = ino,
        .generation = node->generation,
        .size = stx->stx_size,
        .blocks = stx->stx_blocks,
        .mode = stx->stx_mode,
        .nlink = stx->stx_nlink,
        .uid = stx->stx_uid,
        .gid = stx->stx_gid,
        .rdev = (uint32_t)makedev(stx->stx_rdev_major, stx->stx_rdev_minor),
        .blksize = stx->stx_blksize,
        .atime = wire_time_of(&stx->stx_atime),
        .mtime = wire_time_of(&stx->stx_mtime),
        .ctime = wire_time_of(&stx->stx_ctime),
        .flags = flags,
    };
    ret->version = wire_attr_version(ret);
    return 0;
}
