#include "store/changes.h"
#include "store/creator.h"
#include "store/ops.h"
#include "store/unnamed.h"
#include "store/writers.h"

#include <fcntl.h>

#define OPEN_ALL                                                                     \
    (WIRE_OPEN_READ | WIRE_OPEN_WRITE | WIRE_OPEN_APPEND | WIRE_OPEN_TRUNCATE |      \
     WIRE_OPEN_EXCLUSIVE | WIRE_OPEN_DIRECTORY | WIRE_OPEN_DIRECT | WIRE_OPEN_SYNC | \
     WIRE_OPEN_DSYNC | WIRE_OPEN_KILL_PRIV | WIRE_OPEN_NO_ATIME)

/* In every open, though O_PATH has told what the file is: nothing that is opened may wait,
 * become our terminal, or reach a command. */
#define OPEN_ALWAYS (O_CLOEXEC | O_NOCTTY | O_NONBLOCK)

/* Times CREATE starts anew because the name was made or removed meanwhile. Stops somebody who
 * does that in a loop from holding a worker. */
#define CREATE_TRIES 8

/* flags of open(2); -EINVAL. WIRE_OPEN_DIRECT concerns the client's cache alone: O_DIRECT here
 * would refuse buffers that are not aligned. */
static int open_flags(uint32_t wire, int *ret)
{
    if (wire & ~(uint32_t)OPEN_ALL)
        return -EINVAL;
    int flags;
    switch (wire & (WIRE_OPEN_READ | WIRE_OPEN_WRITE)) {
    case WIRE_OPEN_READ:
        flags = O_RDONLY;
        break;
    case WIRE_OPEN_WRITE:
        flags = O_WRONLY;
        break;
    case WIRE_OPEN_READ | WIRE_OPEN_WRITE:
        flags = O_RDWR;
        break;
    default:
        return -EINVAL;
    }
    if (wire & WIRE_OPEN_APPEND)
        flags |= O_APPEND;
    if (wire & WIRE_OPEN_TRUNCATE)
        flags |= O_TRUNC;
    if (wire & WIRE_OPEN_SYNC)
        flags |= O_SYNC;
    else if (wire & WIRE_OPEN_DSYNC)
        flags |= O_DSYNC;
    if (wire & WIRE_OPEN_NO_ATIME)
        flags |= O_NOATIME;
    *ret = flags | OPEN_ALWAYS;
    return 0;
}

/* openat, once more without the cached descriptors when there are no others left, and without
 * O_NOATIME where the file is another's: whether its reader may ask for that is for the kernel
 * of the reader's machine to say. */
static int open_at(struct store *store, int dir_fd, const char *path, int flags, mode_t mode)
{
    int fd = writers_openat(dir_fd, path, flags, mode);
    if (fd < 0 && errno == EPERM && (flags & O_NOATIME)) {
        flags &= ~O_NOATIME;
        fd = writers_openat(dir_fd, path, flags, mode);
    }
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        grip_trim(store, 0);
        fd = writers_openat(dir_fd, path, flags, mode);
    }
    return fd < 0 ? -errno : fd;
}

static int open_directory(struct node *node, uint32_t wire, int *ret_fd, struct statx *ret_stx)
{
    int no_atime = wire & WIRE_OPEN_NO_ATIME ? O_NOATIME : 0;
    if ((wire & WIRE_OPEN_WRITE) || !(wire & WIRE_OPEN_DIRECTORY))
        return -EISDIR;
    _cleanup_grip_ struct grip grip = {.fd = -1};
    int r = grip_take(node, &grip, ret_stx);
    if (r < 0)
        return r;
    /* Not "." below it, for which the directory would have to be searchable as well. */
    char path[GRIP_PATH_SIZE];
    int fd = open_at(node->workspace->store, AT_FDCWD, grip_path(grip.fd, path),
                     O_RDONLY | O_DIRECTORY | no_atime | OPEN_ALWAYS, 0);
    if (fd < 0)
        return fd;
    *ret_fd = fd;
    return 0;
}

/* flags: of open(2), from wire. */
static int open_regular(struct node *node, uint32_t wire, int flags, int *ret_fd,
                        struct statx *ret_stx)
{
    if (wire & WIRE_OPEN_DIRECTORY)
        return -ENOTDIR;
    if (node->type == S_IFLNK)
        return -ELOOP;
    if (node->type != S_IFREG)
        return -ENXIO;
    _cleanup_grip_ struct grip grip = {.fd = -1};
    int r = grip_take(node, &grip, ret_stx);
    if (r < 0)
        return r;
    char path[GRIP_PATH_SIZE];
    _cleanup_close_ int fd =
        open_at(node->workspace->store, AT_FDCWD, grip_path(grip.fd, path), flags, 0);
    if (fd < 0)
        return fd;
    if (flags & O_TRUNC) {
        r = wire & WIRE_OPEN_KILL_PRIV ? attr_kill_priv(fd) : 0;
        if (r == 0)
            r = grip_statx_fd(fd, ret_stx);
        if (r < 0)
            return r;
    }
    *ret_fd = take_fd(&fd);
    return 0;
}

int file_open(struct node *node, uint32_t wire, int *ret_fd, struct statx *ret_stx)
{
    int flags;
    int r = node->type == S_IFDIR ? -EISDIR : open_flags(wire, &flags);
    return r < 0 ? r : open_regular(node, wire, flags, ret_fd, ret_stx);
}

static int open_node(struct file_session *session, struct node *node, uint32_t wire,
                     uint64_t *ret_handle, struct wire_attr *ret_attr)
{
    int flags;
    int r = open_flags(wire, &flags);
    if (r == 0)
        r = handle_reserve(session);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = -1;
    struct statx stx;
    /* Before a descriptor of our own that could write. */
    if ((wire & WIRE_OPEN_WRITE) && changes_cover(node))
        (void)writers_absent(node);
    r = node->type == S_IFDIR ? open_directory(node, wire, &fd, &stx)
                              : open_regular(node, wire, flags, &fd, &stx);
    if (r == 0)
        r = node_attr(node, &stx, ret_attr);
    if (r == 0)
        r = handle_new(session, node, fd, wire & WIRE_OPEN_WRITE, ret_handle);
    if (r < 0) {
        handle_unreserve(session);
        return r;
    }
    (void)take_fd(&fd);
    return 0;
}

OPERATION(open)
{
    _cleanup_node_ struct node *node = NULL;
    int r = node_get(session, m->open.node, &node);
    if (r < 0)
        return r;
    ret->message = (struct wire_message){.type = WIRE_OPENED};
    return open_node(session, node, m->open.flags, &ret->message.opened.handle,
                     &ret->message.opened.attr);
}

OPERATION(release)
{
    handle_release(session, m->release.handle);
    return 0;
}

/* --- CREATE ---------------------------------------------------------------------- */

/* Opens a file just made, which is `node` and open as fd (taken on success), for which a handle is
 * reserved. */
static int open_made(struct file_session *session, struct node *node, uint32_t wire,
                     const struct statx *stx, int *fd, struct wire_created *ret)
{
    ret->node = node->number;
    if (wire & WIRE_OPEN_WRITE)
        writers_check_made(node, *fd);
    int r = node_attr(node, stx, &ret->attr);
    if (r == 0)
        r = handle_new(session, node, *fd, wire & WIRE_OPEN_WRITE, &ret->handle);
    if (r == 0)
        (void)take_fd(fd);
    return r;
}

/* The node of a file just made and open as fd: referenced by the session too. */
static int enter_made(struct file_session *session, const struct place *place, int fd,
                      struct statx *ret_stx, struct node **ret)
{
    int r = grip_statx_fd(fd, ret_stx);
    if (r < 0)
        return r;
    const struct sighting seen = {.dir = place->dir,
                                  .name = place->name,
                                  .at_fd = fd,
                                  .at_name = "",
                                  .stx = ret_stx,
                                  .seen_at = place->view.at};
    return node_enter(session, place->dir->workspace, &seen, ret);
}

/* Takes away what was made, of which nobody was told; not what is there instead. */
static void unmake(const struct place *place, const struct statx *made)
{
    struct statx stx;
    (void)pthread_rwlock_rdlock(&place->dir->workspace->renames);
    if (statx(place->grip.fd, place->name, AT_SYMLINK_NOFOLLOW, STATX_INO, &stx) == 0 &&
        stx.stx_ino == made->stx_ino && stx.stx_dev_major == made->stx_dev_major &&
        stx.stx_dev_minor == made->stx_dev_minor)
        (void)unlinkat(place->grip.fd, place->name, 0);
    (void)pthread_rwlock_unlock(&place->dir->workspace->renames);
}

/* Makes the file and opens it. -EEXIST: there is one. */
static int create_new(struct file_session *session, const struct place *place,
                      const struct wire_create *create, int flags, struct wire_created *ret)
{
    if (!node_room(session))
        return -ENFILE;
    int r = handle_reserve(session);
    if (r < 0)
        return r;
    _cleanup_creator_ struct creator creator = {0};
    r = creator_enter(create->make, create->uid, create->gid, &creator);
    if (r < 0) {
        handle_unreserve(session);
        return r;
    }
    struct statx stx;
    _cleanup_node_ struct node *node = NULL;
    _cleanup_close_ int fd = -1;
    /* No rename may move the file before its place is noted. */
    (void)pthread_rwlock_rdlock(&place->dir->workspace->renames);
    fd = open_at(session->store, place->grip.fd, place->name, flags | O_CREAT | O_EXCL | O_NOFOLLOW,
                 create->mode & 07777);
    creator_leave(&creator);
    r = fd;
    if (fd >= 0) {
        r = enter_made(session, place, fd, &stx, &node);
        if (r < 0) /* nobody was told of it */
            (void)unlinkat(place->grip.fd, place->name, 0);
    }
    (void)pthread_rwlock_unlock(&place->dir->workspace->renames);
    if (r >= 0) {
        r = open_made(session, node, create->flags, &stx, &fd, ret);
        if (r < 0) {
            unmake(place, &stx);
            node_forget(session, node->number, 1);
        }
    }
    if (r < 0)
        handle_unreserve(session);
    return r;
}

/* Opens the file that is there already. */
static int create_existing(struct file_session *session, const struct place *place, uint32_t wire,
                           struct wire_created *ret)
{
    int r = entry_find(session, &place->view, place->dir, place->grip.fd, place->name, &ret->attr,
                       &ret->node);
    if (r < 0)
        return r;
    _cleanup_node_ struct node *node = NULL;
    r = node_get(session, ret->node, &node);
    if (r == 0)
        r = open_node(session, node, wire, &ret->handle, &ret->attr);
    if (r < 0)
        node_forget(session, ret->node, 1);
    /* A link or FIFO was made there since the client looked: let it look again. */
    return r == -ELOOP || r == -ENXIO ? -ESTALE : r;
}

/* A file that has no name yet, made as `place` would have it. */
static int create_unnamed(struct file_session *session, const struct place *place,
                          const struct wire_create *create, struct wire_created *ret)
{
    if (!node_room(session))
        return -ENFILE;
    int r = handle_reserve(session);
    if (r < 0)
        return r;
    struct statx stx;
    struct unnamed *unnamed = NULL;
    _cleanup_node_ struct node *node = NULL;
    _cleanup_handle_ struct handle *handle = NULL;
    _cleanup_close_ int fd = -1;
    _cleanup_creator_ struct creator creator = {0};
    r = creator_enter(create->make, create->uid, create->gid, &creator);
    if (r == 0)
        r = unnamed_make(place, create->mode & 07777, &fd, &unnamed);
    creator_leave(&creator);
    if (r == 0)
        r = enter_made(session, place, fd, &stx, &node);
    if (r == 0) {
        r = open_made(session, node, create->flags, &stx, &fd, ret);
        if (r < 0)
            node_forget(session, node->number, 1);
    }
    if (r < 0)
        handle_unreserve(session);
    else if (handle_get(session, ret->handle, &handle) == 0)
        handle->unnamed = take_ptr(unnamed);
    unnamed_drop(unnamed);
    return r;
}

OPERATION(create)
{
    uint32_t wire = m->create.flags;
    int flags;
    int r = open_flags(wire & ~(uint32_t)WIRE_OPEN_UNNAMED, &flags);
    if (r < 0)
        return r;
    if (wire & WIRE_OPEN_DIRECTORY)
        return -EINVAL;
    if ((wire & WIRE_OPEN_UNNAMED) && !(wire & WIRE_OPEN_WRITE))
        return -EINVAL;
    _cleanup_place_ struct place place = PLACE_NONE;
    r = place_open(session, m->create.parent, m->create.name, &place);
    if (r < 0)
        return r;
    if (place.hidden || place.hidden_file)
        return -EPERM;
    ret->message = (struct wire_message){.type = WIRE_CREATED};
    if (wire & WIRE_OPEN_UNNAMED)
        return create_unnamed(session, &place, &m->create, &ret->message.created);
    for (int tries = 1;; tries++) {
        r = create_new(session, &place, &m->create, flags, &ret->message.created);
        if (r != -EEXIST || (wire & WIRE_OPEN_EXCLUSIVE))
            break;
        /* Never O_CREAT without O_EXCL: it would open a FIFO that lies there. */
        r = create_existing(session, &place, wire, &ret->message.created);
        if (r != -ENOENT || tries == CREATE_TRIES)
            break;
    }
    if (r == 0)
        place_attr(&place, &ret->message.created.directory);
    return r;
}
