#include "store/ops.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/uio.h>

#include "base/file.h"

#define FALLOCATE_ALL                                                        \
    (FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_COLLAPSE_RANGE | \
     FALLOC_FL_ZERO_RANGE | FALLOC_FL_INSERT_RANGE | FALLOC_FL_UNSHARE_RANGE)

/* Bytes one COPY moves at most; the reply says how many, and the client asks again. Stops one
 * request from keeping a worker for hours. */
#define COPY_MAX ((size_t)64 << 20)

/* A handle on a regular file. */
static int get_file(struct file_session *session, uint64_t number, struct handle **ret)
{
    _cleanup_handle_ struct handle *handle = NULL;
    int r = handle_get(session, number, &handle);
    if (r < 0)
        return r;
    if (handle->directory)
        return -EISDIR;
    *ret = take_ptr(handle);
    return 0;
}

static bool range_valid(uint64_t offset, uint64_t length)
{
    return offset <= INT64_MAX && length <= INT64_MAX - offset;
}

OPERATION(read)
{
    _cleanup_handle_ struct handle *handle = NULL;
    int r = get_file(session, m->read.handle, &handle);
    if (r < 0)
        return r;
    size_t size = m->read.size;
    if (size > WIRE_DATA_MAX || !range_valid(m->read.offset, size))
        return -EINVAL;
    r = buffer_reserve(&ret->storage, size);
    if (r < 0)
        return r;
    /* To the end even after a short count, which may be an error that has not been told. */
    r = file_read_at(handle->fd, ret->storage.data, size, m->read.offset, &ret->storage.len);
    if (r < 0)
        return r;
    reply_data(ret);
    return 0;
}

static void reply_written(struct reply *ret, size_t size, int error)
{
    ret->message = (struct wire_message){.type = WIRE_WRITTEN,
                                         .written = {.size = size, .error = (uint32_t)-error}};
}

/* *ret_size: how much; 0 or the error that stopped it before the end. */
static int write_data(const struct handle *handle, const struct wire_write *w, size_t *ret_size)
{
    size_t done = 0;
    int r = 0;
    while (done < w->data.len) {
        /* Appending is the kernel's work: it finds the end and writes there in one step. With
         * O_APPEND or RWF_APPEND the offset does not matter. */
        struct iovec rest = {.iov_base = (void *)(uintptr_t)(w->data.data + done),
                             .iov_len = w->data.len - done};
        ssize_t n = pwritev2(handle->fd, &rest, 1, (off_t)(w->offset + done),
                             w->flags & WIRE_WRITE_APPEND ? RWF_APPEND : 0);
        if (n < 0 && errno == EINTR)
            continue;
        r = n < 0 ? -errno : 0;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    *ret_size = done;
    return r;
}

OPERATION(write)
{
    const struct wire_write *w = &m->write;
    _cleanup_handle_ struct handle *handle = NULL;
    int r = get_file(session, w->handle, &handle);
    if (r < 0)
        return r;
    if (w->flags & ~(uint32_t)(WIRE_WRITE_KILL_PRIV | WIRE_WRITE_APPEND | WIRE_WRITE_BEHIND))
        return -EINVAL;
    r = handle_change(handle, w->flags & WIRE_WRITE_BEHIND);
    if (r < 0)
        return r;
    size_t done = 0;
    if (!range_valid(w->offset, w->data.len))
        r = w->offset <= INT64_MAX ? -EFBIG : -EINVAL;
    else if ((w->flags & WIRE_WRITE_KILL_PRIV) && handle->writable)
        r = attr_kill_priv(handle->fd);
    if (r == 0)
        r = write_data(handle, w, &done);
    if (done < w->data.len)
        handle->failed = r < 0 ? r : -EIO;
    /* What was written counts. */
    if (r < 0 && done == 0)
        return r;
    reply_written(ret, done, r);
    return 0;
}

OPERATION(flush)
{
    _cleanup_handle_ struct handle *handle = NULL;
    int r = handle_get(session, m->flush.handle, &handle);
    if (r < 0)
        return r;
    if (handle->writable) {
        /* Closing a copy makes network filesystems below us report what they held back. */
        int copy = fcntl(handle->fd, F_DUPFD_CLOEXEC, 0);
        if (copy < 0 || (close(copy) < 0 && errno != EINTR))
            return -errno;
    }
    reply_ok(ret);
    return 0;
}

OPERATION(fsync)
{
    _cleanup_handle_ struct handle *handle = NULL;
    int r = handle_get(session, m->fsync.handle, &handle);
    if (r < 0)
        return r;
    if ((m->fsync.datasync ? fdatasync(handle->fd) : fsync(handle->fd)) < 0)
        return -errno;
    reply_ok(ret);
    return 0;
}

OPERATION(fallocate)
{
    _cleanup_handle_ struct handle *handle = NULL;
    int r = get_file(session, m->fallocate.handle, &handle);
    if (r < 0)
        return r;
    if (m->fallocate.mode & ~(uint32_t)FALLOCATE_ALL)
        return -EOPNOTSUPP;
    if (m->fallocate.offset > INT64_MAX || m->fallocate.length > INT64_MAX)
        return -EINVAL;
    if (!range_valid(m->fallocate.offset, m->fallocate.length))
        return -EFBIG;
    do
        r = fallocate(handle->fd, (int)m->fallocate.mode, (off_t)m->fallocate.offset,
                      (off_t)m->fallocate.length);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return -errno;
    reply_ok(ret);
    return 0;
}

OPERATION(seek)
{
    _cleanup_handle_ struct handle *handle = NULL;
    int r = get_file(session, m->seek.handle, &handle);
    if (r < 0)
        return r;
    if (m->seek.whence != SEEK_DATA && m->seek.whence != SEEK_HOLE)
        return -EINVAL;
    if (m->seek.offset > INT64_MAX)
        return -ENXIO;
    off_t at = lseek(handle->fd, (off_t)m->seek.offset, (int)m->seek.whence);
    if (at < 0)
        return -errno;
    ret->message = (struct wire_message){.type = WIRE_OFFSET, .offset.offset = (uint64_t)at};
    return 0;
}

OPERATION(copy)
{
    const struct wire_copy *c = &m->copy;
    _cleanup_handle_ struct handle *in = NULL;
    _cleanup_handle_ struct handle *out = NULL;
    int r = get_file(session, c->handle_in, &in);
    if (r == 0)
        r = get_file(session, c->handle_out, &out);
    if (r < 0)
        return r;
    if (!range_valid(c->offset_in, c->length) || !range_valid(c->offset_out, c->length))
        return -EOVERFLOW;
    size_t length = c->length < COPY_MAX ? (size_t)c->length : COPY_MAX;
    off_t from = (off_t)c->offset_in, to = (off_t)c->offset_out;
    ssize_t n;
    do
        n = copy_file_range(in->fd, &from, out->fd, &to, length, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    reply_written(ret, (size_t)n, 0);
    return 0;
}
