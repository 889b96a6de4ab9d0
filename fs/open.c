#include "ops.h"

#include <fcntl.h>
#include <sys/mount.h>

#include "coherence.h"
#include "device.h"
#include "lock.h"

/* Access times are the service's: the kernel here sets none, and so obeys noatime for itself
 * alone. */
uint32_t open_atime_flag(const struct driver *d, int flags, unsigned long mount_flags)
{
    return (flags & O_NOATIME) || (d->options->mount_flags & mount_flags) ? WIRE_OPEN_NO_ATIME : 0;
}

static uint32_t wire_open_flags(const struct driver *d, int flags)
{
    static const struct {
        int posix;
        uint32_t wire;
    } bits[] = {
        {O_TRUNC, WIRE_OPEN_TRUNCATE},
        {O_EXCL, WIRE_OPEN_EXCLUSIVE},
        {O_SYNC, WIRE_OPEN_SYNC},
        {O_DSYNC, WIRE_OPEN_DSYNC},
    };
    uint32_t wire = open_atime_flag(d, flags, MS_NOATIME);
    switch (flags & O_ACCMODE) {
    case O_RDONLY:
        wire |= WIRE_OPEN_READ;
        break;
    case O_WRONLY:
        wire |= WIRE_OPEN_WRITE;
        break;
    default:
        wire |= WIRE_OPEN_READ | WIRE_OPEN_WRITE;
        break;
    }
    for (size_t i = 0; i < ARRAY_SIZE(bits); i++)
        if ((flags & bits[i].posix) == bits[i].posix)
            wire |= bits[i].wire;
    return wire;
}

/* Through its page cache the kernel splits a write where its own idea of the end of the file falls
 * into a page, so that others' records could get between the parts. Without
 * FUSE_DIRECT_IO_ALLOW_MMAP such a file could not be mapped any more, which is worse. */
static bool wants_direct(const struct driver *d, int flags)
{
    return (flags & (O_APPEND | O_DIRECT)) && device_direct_allows_mmap(d);
}

/* Nobody says when the content changes, so what is read is to be asked for each time. */
static bool is_written(const struct driver *d, const struct wire_attr *attr)
{
    return coherence_live(d) && (attr->flags & WIRE_ATTR_WRITTEN) && device_direct_allows_mmap(d);
}

/* Gives the server's handle back when the kernel did not get it. */
static void discard_wire_handle(struct driver *d, uint64_t wire)
{
    (void)buffer_append_u64(&d->handles.releases, wire);
    driver_notices_pending(d);
}

static void open_done(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    if (error < 0) {
        /* Replaced between look-up and open: ESTALE makes the kernel look up once more,
         * where ENOENT would reach a program that rightly believes the name exists. */
        request_fail(r, error == -ENOENT ? -ESTALE : error);
        return;
    }
    uint32_t flags = r->message.open.flags;
    struct handle *h;
    error = handle_new(&d->handles, r->inode, reply->opened.handle, r->connection, flags, &h);
    if (error < 0) {
        discard_wire_handle(d, reply->opened.handle);
        request_fail(r, error);
        return;
    }
    struct fuse_file_info fi = {
        .fh = h->id,
        .direct_io = r->direct || is_written(d, &reply->opened.attr),
        .keep_cache = coherence_keep_cache(d, r->inode, &reply->opened.attr, r->stamp)};
    if (flags & WIRE_OPEN_TRUNCATE)
        inode_changed(&d->inodes, r->inode);
    if (fuse_reply_open(r->fuse, &fi) != 0)
        handle_release(&d->handles, h);
    request_free(r);
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_OPEN, NULL, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    r->message.open.flags = wire_open_flags(r->driver, fi->flags) & ~(uint32_t)WIRE_OPEN_EXCLUSIVE;
    r->direct = wants_direct(r->driver, fi->flags);
    if (device_open_kills_priv(r->driver))
        r->message.open.flags |= WIRE_OPEN_KILL_PRIV;
    request_send(r, open_done);
}

static void create_done(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    const struct wire_created *c = &reply->created;
    struct inode *i;
    struct handle *h;
    error = inode_enter(&d->inodes, c->node, &c->attr, 0, r->inode, request_name(r), &i);
    if (error == 0) {
        error = handle_new(&d->handles, i, c->handle, r->connection, r->message.create.flags, &h);
        if (error < 0)
            inode_drop(&d->inodes, i);
    }
    if (error < 0) {
        discard_wire_handle(d, c->handle);
        request_fail(r, error);
        return;
    }
    /* Of a file that it has already, the kernel believes these attributes even if it has been told
     * meanwhile that they changed. */
    if (i->nlookup)
        inode_changed(&d->inodes, i);
    struct fuse_entry_param e;
    request_entry(d, r->inode, i, &c->attr, r->stamp, &e);
    struct fuse_file_info fi = {.fh = h->id,
                                .direct_io = r->direct,
                                .keep_cache = coherence_keep_cache(d, i, &c->attr, r->stamp)};
    inode_changed(&d->inodes, i);
    inode_names_changed(&d->inodes, r->inode);
    inode_looked_up(i);
    if (fuse_reply_create(r->fuse, &e, &fi) != 0) {
        inode_forget(&d->inodes, i, 1); /* the handle still pins it */
        handle_release(&d->handles, h);
    }
    request_free(r);
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi)
{
    if (root_is_local(fuse_req_userdata(req), parent)) {
        (void)fuse_reply_err(req, EPERM);
        return;
    }
    struct request *r = request_start(req, WIRE_CREATE, name, NULL);
    if (!r || !request_set_inode(r, parent))
        return;
    r->message.create = (struct wire_create){.flags = wire_open_flags(r->driver, fi->flags),
                                             .mode = mode & 07777,
                                             .name = request_name(r)};
    r->direct = wants_direct(r->driver, fi->flags);
    REQUEST_SET_MAKER(r, create);
    if (device_open_kills_priv(r->driver))
        r->message.create.flags |= WIRE_OPEN_KILL_PRIV;
    request_send(r, create_done);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct driver *d = fuse_req_userdata(req);
    struct handle *h = handle_get(&d->handles, fi->fh);
    if (h) {
        lock_end_handle(d, h);
        handle_release(&d->handles, h);
    }
    (void)fuse_reply_err(req, 0);
    driver_notices_pending(d);
}
