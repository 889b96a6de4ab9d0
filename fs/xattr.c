#include "ops.h"

#include "coherence.h"
#include "create_ahead.h"
#include "prune.h"

#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define MOUNT_NAME "user.berth.mount"
#define THREAD_ID_NAME "user.berth.thread_id"

/* The whole text of a symbolic link, whatever readlink shows of it. The kernel asks no filesystem
 * for user.* of a link (it answers ENODATA by itself), but leaves system.* to it. */
#define SYMLINK_NAME "system.berth.symlink"

/* The service keeps attributes of this namespace alone. The kernel asks for
 * security.capability before every write: no other namespace may cost a round trip, or be
 * answered with ENOSYS, which would turn all of them off. */
static bool is_user(const char *name)
{
    return strncmp(name, "user.", 5) == 0;
}

/* What a filesystem says of an attribute that it could have and has not, or could not have:
 * access control lists (system.posix_acl_*) and made-up namespaces. */
static int absent(const char *name)
{
    bool known =
        is_user(name) || strncmp(name, "security.", 9) == 0 || strncmp(name, "trusted.", 8) == 0;
    return known ? ENODATA : EOPNOTSUPP;
}

static void reply_value(fuse_req_t req, struct bytes value, size_t size)
{
    if (size == 0)
        (void)fuse_reply_xattr(req, value.len);
    else if (value.len > size)
        (void)fuse_reply_err(req, ERANGE);
    else
        (void)fuse_reply_buf(req, (const char *)value.data, value.len);
}

static void value_done(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    reply_value(r->fuse, reply->data.data, r->size);
    request_free(r);
}

static void get_symlink_text(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    struct driver *d = request_driver(req);
    const struct inode *i = inode_get(&d->inodes, ino);
    if (i && i->type != S_IFLNK) {
        (void)fuse_reply_err(req, ENODATA);
        return;
    }
    struct request *r = request_start(req, WIRE_READLINK, NULL, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    r->size = size;
    request_send(r, value_done);
}

static void rules_in_force(void *context, uint64_t size)
{
    fuse_req_t req = context;
    const struct driver *d = request_driver(req);
    if (d->rules)
        reply_value(req, visibility_rules_text(d->rules), size);
    else
        (void)fuse_reply_err(req, ENODATA);
}

/* Whoever has changed them reads them back, and then sees what they say. */
static void get_rules(fuse_req_t req, size_t size)
{
    int error = coherence_when_forgotten(request_driver(req), rules_in_force, req, size);
    if (error < 0)
        (void)fuse_reply_err(req, -error);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct driver *d = request_driver(req);
    /* In a joined mount each workspace tells of its service. */
    const struct inode *of = d->member ? inode_get(&d->inodes, ino) : NULL;
    bool member = of && (of->flags & INODE_WORKSPACE);
    if ((ino == FUSE_ROOT_ID || member) && strcmp(name, MOUNT_NAME) == 0) {
        _cleanup_free_ char *text = NULL;
        if (root_describe(d, &text) < 0)
            (void)fuse_reply_err(req, ENOMEM);
        else
            reply_value(req, bytes_of_string(text), size);
        return;
    }
    if (ino == FUSE_ROOT_ID && strcmp(name, PRUNE_NAME) == 0) {
        if (d->join)
            rules_in_force(req, size);
        else
            get_rules(req, size);
        return;
    }
    if (strcmp(name, THREAD_ID_NAME) == 0) {
        const struct inode *i = inode_get(&d->inodes, ino);
        const struct workspace_ids *w = i ? driver_workspace(d, i) : NULL;
        if (w)
            reply_value(req, bytes_of(w->thread_id, w->len), size);
        else
            (void)fuse_reply_err(req, ENODATA);
        return;
    }
    if (strcmp(name, SYMLINK_NAME) == 0) {
        get_symlink_text(req, ino, size);
        return;
    }
    if (!is_user(name) || root_is_local(d, ino)) {
        (void)fuse_reply_err(req, absent(name));
        return;
    }
    struct request *r = request_start(req, WIRE_GETXATTR, name, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    r->size = size;
    r->message.getxattr.name = request_name(r);
    request_send(r, value_done);
}

/* Ours are not listed, as other filesystems do not list their own: a tool that copies or compares
 * attributes (rsync -X, cp -a, tar --xattrs) would carry them away, or try to remove them here
 * because its source has none. */
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    if (root_is_local(request_driver(req), ino)) {
        reply_value(req, (struct bytes){0}, size);
        return;
    }
    struct request *r = request_start(req, WIRE_LISTXATTR, NULL, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    r->size = size;
    request_send(r, value_done);
}

/* True when the name cannot be set or removed here; the kernel has been answered then. */
static bool refuse_change(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    int error = 0;
    if (!is_user(name))
        error = EOPNOTSUPP;
    else if (root_is_local(request_driver(req), ino))
        error = EPERM;
    if (error)
        (void)fuse_reply_err(req, error);
    return error != 0;
}

static void changed(struct request *r, int error, const struct wire_message *reply)
{
    if (request_was_sent(r))
        inode_attr_changed(&r->driver->inodes, r->inode);
    request_done_ok(r, error, reply);
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
                 int flags)
{
    if (ino == FUSE_ROOT_ID && strcmp(name, PRUNE_NAME) == 0) {
        prune_set(req, bytes_of(value, size));
        return;
    }
    if (refuse_change(req, ino, name))
        return;
    struct request *r = request_start(req, WIRE_SETXATTR, name, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    create_ahead_forget(r->driver, r->inode); /* it may have been an ACL */
    int error = buffer_append(&r->storage, value, size);
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    r->message.setxattr.flags = (uint32_t)flags;
    r->message.setxattr.name = request_name(r);
    r->message.setxattr.value = buffer_view(&r->storage);
    request_send(r, changed);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    if (ino == FUSE_ROOT_ID && strcmp(name, PRUNE_NAME) == 0) {
        prune_set(req, (struct bytes){0});
        return;
    }
    if (refuse_change(req, ino, name))
        return;
    struct request *r = request_start(req, WIRE_REMOVEXATTR, name, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    create_ahead_forget(r->driver, r->inode);
    r->message.removexattr.name = request_name(r);
    request_send(r, changed);
}
