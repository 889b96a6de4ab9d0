#include "ops.h"

#include <fcntl.h>
#include <sys/mount.h>

#include "coherence.h"
#include "device.h"
#include "lock.h"
#include "repair.h"

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
        .direct_io = r->direct,
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

static void read_done(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    struct bytes data = reply->data.data;
    /* More than was asked for would be refused by the kernel, and leave the reader waiting. */
    (void)fuse_reply_buf(r->fuse, (const char *)data.data, data.len < r->size ? data.len : r->size);
    request_free(r);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_READ, NULL, NULL);
    if (!r || !request_set_handle(r, fi))
        return;
    r->size = size < WIRE_DATA_MAX ? size : WIRE_DATA_MAX;
    r->message.read.offset = (uint64_t)off;
    r->message.read.size = (uint32_t)r->size;
    request_send(r, read_done);
}

static void write_done(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    inode_changed(&r->driver->inodes, r->handle->inode);
    if (r->message.write.flags & WIRE_WRITE_APPEND)
        coherence_appended(r->driver, r->handle->inode);
    uint64_t size = reply->written.size;
    (void)fuse_reply_write(r->fuse, size < r->size ? (size_t)size : r->size);
    request_free(r);
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
              struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_WRITE, NULL, NULL);
    if (!r || !request_set_handle(r, fi))
        return;
    r->size = size;
    r->handle->dirty = true;
    r->message.write.offset = (uint64_t)off;
    r->message.write.flags = device_write_kills_priv(r->driver) ? WIRE_WRITE_KILL_PRIV : 0;
    /* Not a property of the handle: fcntl() changes O_APPEND, and pages of a mapped file go
     * through any handle to where they belong. */
    if ((fi->flags & O_APPEND) && !fi->writepage)
        r->message.write.flags |= WIRE_WRITE_APPEND;
    r->message.write.data = bytes_of(data, size);
    request_send(r, write_done);
}

static void synced(struct request *r, int error, const struct wire_message *reply)
{
    /* An error is told once, to the close() or fsync() that asked. */
    r->handle->dirty = false;
    request_done_ok(r, error, reply);
}

static void flushed(struct request *r, int error, const struct wire_message *reply)
{
    r->handle->dirty = false;
    lock_end_flush(r, r->position, error);
}

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_FLUSH, NULL, NULL);
    if (!r || !request_set_handle(r, fi))
        return;
    r->position = fi->lock_owner;
    /* Of a handle that was not written to, or was lost with its connection, the service can
     * say nothing: each write has been answered. And since fork() and exec() close
     * descriptors too, this must not wait for a service that is down. */
    if (r->handle->dirty && repair_handle_current(r->driver, r->handle))
        request_send(r, flushed);
    else
        lock_end_flush(r, r->position, 0);
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

void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_FSYNC, NULL, NULL);
    if (!r || !request_set_handle(r, fi))
        return;
    if (r->handle->inode->flags & INODE_LOCAL) {
        request_reply_ok(r);
        return;
    }
    r->message.fsync.datasync = datasync != 0;
    request_send(r, synced);
}

static void changed_done(struct request *r, int error, const struct wire_message *reply)
{
    inode_changed(&r->driver->inodes, r->handle->inode);
    request_done_ok(r, error, reply);
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                  struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_FALLOCATE, NULL, NULL);
    if (!r || !request_set_handle(r, fi))
        return;
    r->handle->dirty = true;
    r->message.fallocate.mode = (uint32_t)mode;
    r->message.fallocate.offset = (uint64_t)offset;
    r->message.fallocate.length = (uint64_t)length;
    request_send(r, changed_done);
}

static void lseek_done(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    (void)fuse_reply_lseek(r->fuse, (off_t)reply->offset.offset);
    request_free(r);
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_SEEK, NULL, NULL);
    if (!r || !request_set_handle(r, fi))
        return;
    r->message.seek.offset = (uint64_t)off;
    r->message.seek.whence = (uint32_t)whence;
    request_send(r, lseek_done);
}

static void copy_done(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    inode_changed(&r->driver->inodes, r->output->inode);
    uint64_t size = reply->written.size;
    (void)fuse_reply_write(r->fuse, size < r->size ? (size_t)size : r->size);
    request_free(r);
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
                        struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
                        struct fuse_file_info *fi_out, size_t len, int flags)
{
    struct request *r = request_start(req, WIRE_COPY, NULL, NULL);
    if (!r || !request_set_handle(r, fi_out))
        return;
    r->output = take_ptr(r->handle);
    r->output->dirty = true;
    if (!request_set_handle(r, fi_in))
        return;
    r->size = len;
    r->message.copy.offset_in = (uint64_t)off_in;
    r->message.copy.offset_out = (uint64_t)off_out;
    r->message.copy.length = len;
    request_send(r, copy_done);
}
