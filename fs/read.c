#include "ops.h"

#include <errno.h>
#include <unistd.h>

#include "coherence.h"
#include "pipeline.h"
#include "sequence.h"

/* --- answers ----------------------------------------------------------------------- */

/* The kernel waits for one that begins before r, in the same file. */
static bool has_earlier(const struct request *r)
{
    for (const struct handle *h = r->handle->inode->handles; h; h = h->next)
        for (const struct request *q = h->reads; q; q = q->behind)
            if (q->offset < r->offset)
                return true;
    return false;
}

static struct request *next_due(const struct inode *i)
{
    for (const struct handle *h = i->handles; h; h = h->next)
        for (struct request *q = h->reads; q; q = q->behind)
            if (q->held && !has_earlier(q))
                return q;
    return NULL;
}

static void read_begins(struct request *r)
{
    struct handle *h = r->handle;
    r->reads = true;
    r->behind = h->reads;
    h->reads = r;
    coherence_read_begins(r->driver, h->inode);
}

void read_ends(struct request *r)
{
    struct inode *i = r->handle->inode;
    struct request *due, **at = &r->handle->reads;
    while (*at != r)
        at = &(*at)->behind;
    *at = r->behind;
    r->reads = false;
    coherence_read_ends(r->driver, i);
    while ((due = next_due(i))) {
        (void)fuse_reply_buf(due->fuse, (const char *)due->storage.data, due->storage.len);
        request_free(due);
    }
}

void read_answer(struct request *r, struct bytes data)
{
    /* More than was asked for would be refused by the kernel, and leave the reader waiting. */
    size_t len = data.len < r->size ? data.len : r->size;
    r->held = r->reads && len < r->size && has_earlier(r) &&
              buffer_append(&r->storage, data.data, len) == 0;
    if (r->held)
        return;
    (void)fuse_reply_buf(r->fuse, (const char *)data.data, len);
    request_free(r);
}

/* --- reading ----------------------------------------------------------------------- */

/* Answers from what the file was opened by. False: it is not there. */
static bool read_content(struct request *r)
{
    const struct content *c = r->handle->content;
    struct bytes data;
    if (!c || !content_part(c, r->offset, r->size, &data))
        return false;
    if (c->ends && r->offset < WIRE_FILE_HEAD)
        sequence_begin(r);
    read_answer(r, data);
    return true;
}

static void read_done(struct request *r, int error, const struct wire_message *reply)
{
    /* Unlinked, say, a moment after it was opened here. */
    if (error == -ESTALE && read_content(r))
        return;
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    read_answer(r, reply->data.data);
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
    if (!r->handle->direct)
        read_begins(r);
    if (!r->handle->doubtful && read_content(r))
        return;
    attrs_changed(&r->driver->inodes, r->handle->inode->ino, r->handle->inode->generation);
    if (!sequence_read(r))
        read_at_service(r);
}

/* --- holes ------------------------------------------------------------------------- */

/* Without the service: it is known that there is no hole, as of most files. grep asks that of each
 * file that it does not read in one go. */
static bool seek_here(struct request *r)
{
    struct driver *d = r->driver;
    const struct handle *h = r->handle;
    struct inode *i = h->inode;
    const struct content *c = h->doubtful ? NULL : h->content;
    struct wire_attr attr;
    if (c && !i->dense)
        i->dense = content_is_dense(c);
    if (!i->dense)
        return false;
    if (c)
        attr = c->attr;
    else if (!coherence_live(d) || pipeline_pending(d, i) ||
             !tree_file_attr(&d->inodes, i->ino, i->generation, &attr))
        return false;
    const struct wire_seek *seek = &r->message.seek;
    if (seek->offset >= attr.size)
        (void)fuse_reply_err(r->fuse, ENXIO);
    else
        (void)fuse_reply_lseek(r->fuse,
                               seek->whence == SEEK_HOLE ? (off_t)attr.size : (off_t)seek->offset);
    request_free(r);
    return true;
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
    if (!seek_here(r))
        request_send(r, lseek_done);
}
