#include "ops.h"

#include <fcntl.h>

#include "coherence.h"
#include "device.h"
#include "lock.h"
#include "pipeline.h"
#include "repair.h"

static void write_done(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    inode_changed(&r->driver->inodes, r->handle->inode);
    pipeline_forget_attr(r->handle->inode);
    pipeline_known(r);
    if (reply->written.size >= r->size)
        pipeline_succeeded(r->driver);
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
    struct handle *h = r->handle;
    if (pipeline_failed(r))
        return;
    r->size = size;
    h->dirty = true;
    r->message.write.offset = (uint64_t)off;
    r->message.write.flags = device_write_kills_priv(r->driver) ? WIRE_WRITE_KILL_PRIV : 0;
    /* Not a property of the handle: fcntl() changes O_APPEND, and pages of a mapped file go
     * through any handle to where they belong. */
    if ((fi->flags & O_APPEND) && !fi->writepage)
        r->message.write.flags |= WIRE_WRITE_APPEND;
    r->message.write.data = bytes_of(data, size);
    /* Whoever appends must be told where; whoever bypasses caches wants to know that it is there;
     * and pages of mappings the kernel sends without anybody waiting. */
    pipeline_follow(r);
    bool ahead = !(fi->flags & (O_APPEND | O_DIRECT | O_DSYNC)) && !fi->writepage;
    uint64_t end = (uint64_t)off + size;
    if (!ahead || !pipeline_send(r, NULL))
        request_send(r, write_done);
    else if (h->foreseen && h->foreseen->size < end)
        h->foreseen->size = end;
}

static void synced(struct request *r, int error, const struct wire_message *reply)
{
    struct handle *h = r->handle;
    int earlier = pipeline_take_error(h);
    if (error < 0)
        h->dirty = true;
    request_done_ok(r, earlier ? earlier : error, reply);
}

static void flushed(struct request *r, int error, const struct wire_message *reply)
{
    struct handle *h = r->handle;
    if (error < 0)
        h->dirty = true;
    lock_end_flush(r, r->position, h->error ? h->error : error);
}

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_FLUSH, NULL, NULL);
    if (!r || !request_set_handle(r, fi))
        return;
    r->position = fi->lock_owner;
    struct handle *h = r->handle;
    /* Of a handle that was not written to, or was lost with its connection, the service can
     * say nothing: each write has been answered. And since fork() and exec() close
     * descriptors too, this must not wait for a service that is down. */
    bool under_way = pipeline_handle(r->driver, h->inode) == h;
    if ((under_way || (h->dirty && r->driver->client)) && repair_handle_current(r->driver, h)) {
        h->dirty = false;
        request_send(r, flushed);
    } else {
        lock_end_flush(r, r->position, h->flags & WIRE_OPEN_WRITE ? h->error : 0);
    }
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
    r->handle->dirty = false;
    request_send(r, synced);
}

static void changed_done(struct request *r, int error, const struct wire_message *reply)
{
    if (request_was_sent(r)) {
        inode_changed(&r->driver->inodes, r->handle->inode);
        pipeline_forget_attr(r->handle->inode);
    }
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

static void copy_done(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    inode_changed(&r->driver->inodes, r->output->inode);
    pipeline_forget_attr(r->output->inode);
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
