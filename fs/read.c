#include "ops.h"
#include "sequence.h"

static void read_content(struct request *r)
{
    const struct content *c = r->handle->content;
    size_t offset = (size_t)r->offset, left = r->offset < c->size ? c->size - offset : 0;
    (void)fuse_reply_buf(r->fuse, (const char *)c->data + (left ? offset : 0),
                         r->size < left ? r->size : left);
    request_free(r);
}

static void read_done(struct request *r, int error, const struct wire_message *reply)
{
    /* Unlinked, say, a moment after it was opened here. */
    if (error == -ESTALE && r->handle->content) {
        read_content(r);
        return;
    }
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    struct bytes data = reply->data.data;
    /* More than was asked for would be refused by the kernel, and leave the reader waiting. */
    (void)fuse_reply_buf(r->fuse, (const char *)data.data, data.len < r->size ? data.len : r->size);
    request_free(r);
}

void read_at_service(struct request *r)
{
    r->message.read.offset = r->offset;
    r->message.read.size = (uint32_t)r->size;
    request_send(r, read_done);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_READ, NULL, NULL);
    if (!r || !request_set_handle(r, fi))
        return;
    r->size = size < WIRE_DATA_MAX ? size : WIRE_DATA_MAX;
    r->offset = (uint64_t)off;
    if (r->handle->content && !r->handle->doubtful) {
        read_content(r);
        return;
    }
    if (!sequence_read(r))
        read_at_service(r);
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
