#include "store/ops.h"

#include "base/clock.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/statfs.h>

#define SET_TIMES (WIRE_SET_ATIME | WIRE_SET_MTIME | WIRE_SET_ATIME_NOW | WIRE_SET_MTIME_NOW)
#define SET_ALL                                                                \
    (WIRE_SET_MODE | WIRE_SET_UID | WIRE_SET_GID | WIRE_SET_SIZE | SET_TIMES | \
     WIRE_SET_KILL_PRIV | WIRE_SET_BEHIND)

static int reply_attrs(struct node *node, const struct statx *stx, struct reply *ret)
{
    ret->message = (struct wire_message){.type = WIRE_ATTRS};
    return node_attr(node, stx, &ret->message.attrs.attr);
}

static int get_node(struct file_session *session, uint64_t number, uint64_t handle,
                    struct node **ret)
{
    return handle ? node_get_open(session, number, ret) : node_get(session, number, ret);
}

/* The handle that a request names beside a node; 0: none. -EBADF: not open on this node. */
static int get_handle_of(struct file_session *session, uint64_t number, const struct node *node,
                         struct handle **ret)
{
    if (number == 0)
        return 0;
    _cleanup_handle_ struct handle *handle = NULL;
    int r = handle_get(session, number, &handle);
    if (r < 0)
        return r;
    if (handle->node != node)
        return -EBADF;
    *ret = take_ptr(handle);
    return 0;
}

OPERATION(getattr)
{
    _cleanup_node_ struct node *node = NULL;
    _cleanup_handle_ struct handle *handle = NULL;
    int r = get_node(session, m->getattr.node, m->getattr.handle, &node);
    if (r == 0)
        r = get_handle_of(session, m->getattr.handle, node, &handle);
    if (r < 0)
        return r;
    struct statx stx;
    r = handle ? grip_statx_fd(handle->fd, &stx) : grip_stat(node, &stx);
    return r < 0 ? r : reply_attrs(node, &stx, ret);
}

/* --- setting --------------------------------------------------------------------- */

static int set_size(const struct node *node, int fd, const struct handle *handle, uint64_t size)
{
    if (node->type == S_IFDIR)
        return -EISDIR;
    if (node->type != S_IFREG)
        return -EINVAL;
    if (size > INT64_MAX)
        return -EFBIG;
    /* A handle opened for writing may do so whatever the mode has become since. */
    char path[GRIP_PATH_SIZE];
    int r = handle && handle->writable ? ftruncate(fd, (off_t)size)
                                       : truncate(grip_path(fd, path), (off_t)size);
    return r < 0 ? -errno : 0;
}

static int set_owner(int fd, const struct wire_setattr *set)
{
    uid_t uid = set->valid & WIRE_SET_UID ? set->uid : (uid_t)-1;
    gid_t gid = set->valid & WIRE_SET_GID ? set->gid : (gid_t)-1;
    return fchownat(fd, "", uid, gid, AT_EMPTY_PATH) < 0 ? -errno : 0;
}

static int set_mode(int fd, mode_t mode)
{
    char path[GRIP_PATH_SIZE];
    return chmod(grip_path(fd, path), mode & 07777) < 0 ? -errno : 0;
}

static struct timespec time_to_set(bool set, bool now, const struct wire_time *time)
{
    if (now)
        return (struct timespec){.tv_nsec = UTIME_NOW};
    if (!set)
        return (struct timespec){.tv_nsec = UTIME_OMIT};
    return (struct timespec){.tv_sec = time->sec, .tv_nsec = time->nsec};
}

static int set_times(int fd, const struct wire_setattr *set)
{
    uint32_t valid = set->valid;
    /* UTIME_NOW and UTIME_OMIT are numbers of nanoseconds too large to be any. */
    if (set->atime.nsec >= NSEC_PER_SEC || set->mtime.nsec >= NSEC_PER_SEC)
        return -EINVAL;
    const struct timespec times[2] = {
        time_to_set(valid & WIRE_SET_ATIME, valid & WIRE_SET_ATIME_NOW, &set->atime),
        time_to_set(valid & WIRE_SET_MTIME, valid & WIRE_SET_MTIME_NOW, &set->mtime),
    };
    if (utimensat(fd, "", times, AT_EMPTY_PATH) == 0)
        return 0;
    if (errno != EINVAL)
        return -errno;
    /* Kernels before 5.8 refuse the flag. */
    char path[GRIP_PATH_SIZE];
    return utimensat(AT_FDCWD, grip_path(fd, path), times, 0) < 0 ? -errno : 0;
}

int attr_kill_priv(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    mode_t clear = st.st_mode & S_ISUID;
    /* Set-group-ID without group execution meant mandatory locking, and stays. */
    if ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP))
        clear |= S_ISGID;
    if (!S_ISREG(st.st_mode) || clear == 0)
        return 0;
    return set_mode(fd, st.st_mode & ~clear);
}

OPERATION(setattr)
{
    const struct wire_setattr *set = &m->setattr;
    if (set->valid & ~(uint32_t)SET_ALL)
        return -EINVAL;
    _cleanup_node_ struct node *node = NULL;
    _cleanup_handle_ struct handle *handle = NULL;
    _cleanup_grip_ struct grip grip = {.fd = -1};
    int r = get_node(session, set->node, set->handle, &node);
    if (r == 0)
        r = get_handle_of(session, set->handle, node, &handle);
    if (r == 0 && !handle)
        r = grip_take(node, &grip, NULL);
    if (r < 0)
        return r;
    int fd = handle ? handle->fd : grip.fd;
    if (set->valid & WIRE_SET_SIZE) {
        if (handle)
            r = handle_change(handle, set->valid & WIRE_SET_BEHIND);
        if (r == 0)
            r = set_size(node, fd, handle, set->size);
        if (handle)
            handle->failed = r;
    }
    if (r == 0 && (set->valid & (WIRE_SET_UID | WIRE_SET_GID)))
        r = set_owner(fd, set);
    if (r == 0 && (set->valid & WIRE_SET_MODE))
        r = set_mode(fd, set->mode);
    if (r == 0 && (set->valid & WIRE_SET_KILL_PRIV))
        r = attr_kill_priv(fd);
    if (r == 0 && (set->valid & SET_TIMES))
        r = set_times(fd, set);
    struct statx stx;
    if (r == 0)
        r = grip_statx_fd(fd, &stx);
    return r < 0 ? r : reply_attrs(node, &stx, ret);
}

/* --- the rest -------------------------------------------------------------------- */

OPERATION(readlink)
{
    _cleanup_node_ struct node *node = NULL;
    _cleanup_grip_ struct grip grip = {.fd = -1};
    int r = node_get(session, m->readlink.node, &node);
    if (r < 0)
        return r;
    if (node->type != S_IFLNK)
        return -EINVAL;
    r = grip_take(node, &grip, NULL);
    if (r == 0)
        r = buffer_reserve(&ret->storage, PATH_MAX);
    if (r < 0)
        return r;
    ssize_t n = readlinkat(grip.fd, "", (char *)ret->storage.data, PATH_MAX);
    if (n < 0)
        return -errno;
    ret->storage.len = (size_t)n;
    reply_data(ret);
    return 0;
}

OPERATION(statfs)
{
    _cleanup_node_ struct node *node = NULL;
    _cleanup_grip_ struct grip grip = {.fd = -1};
    int fd = session->store->workspaces_fd;
    if (m->statfs.node) {
        int r = node_get(session, m->statfs.node, &node);
        if (r == 0)
            r = grip_take(node, &grip, NULL);
        if (r < 0)
            return r;
        fd = grip.fd;
    }
    struct statfs st;
    if (fstatfs(fd, &st) < 0)
        return -errno;
    ret->message = (struct wire_message){
        .type = WIRE_STATFS_REPLY,
        .statfs_reply = {.blocks = st.f_blocks,
                         .bfree = st.f_bfree,
                         .bavail = st.f_bavail,
                         .files = st.f_files,
                         .ffree = st.f_ffree,
                         .bsize = (uint32_t)st.f_bsize,
                         .frsize = (uint32_t)(st.f_frsize ? st.f_frsize : st.f_bsize),
                         .namelen = (uint32_t)st.f_namelen}};
    return 0;
}
