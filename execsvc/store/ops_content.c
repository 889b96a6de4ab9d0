#include "store/ops.h"

#include <endian.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

/* Bytes of content that one request gets, whatever it asks for. Stops a client from making every
 * reply, and what waits behind it, as large as a frame can be. */
#define FILES_SIZE_MAX ((size_t)512 << 10)

/* A FILE without its data, and its length in the list. */
#define FILE_SIZE ((size_t)(4 + 8 + 4 + 4 + WIRE_ATTR_SIZE + 4))
_Static_assert(FILES_SIZE_MAX + WIRE_FILES_MAX * FILE_SIZE <= WIRE_DATA_MAX, "fits in FILES");

/* Times that a file is read anew because it changed meanwhile. Stops somebody who writes it without
 * end from holding a worker. */
#define READ_TRIES 4

/* The next change of a file has a later time than its last one when that is so long ago: no
 * filesystem has coarser times than FAT. */
#define SETTLED_SECONDS 2

/* One file's content, as it was read. */
struct content {
    int fd;
    size_t limit; /* -E2BIG: it is larger */
    bool ends;    /* of a large file these are wanted, */
    bool large;   /* and it is one */
    struct statx stx;
    struct buffer *data;
    bool settled;
};

static bool same_time(const struct statx_timestamp *a, const struct statx_timestamp *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool same_version(const struct statx *a, const struct statx *b)
{
    return a->stx_size == b->stx_size && same_time(&a->stx_ctime, &b->stx_ctime) &&
           same_time(&a->stx_mtime, &b->stx_mtime);
}

/* Appends up to max bytes from offset on. */
static int read_part(int fd, size_t max, uint64_t offset, struct buffer *data)
{
    size_t len = 0;
    int r = buffer_reserve(data, max);
    if (r == 0)
        r = file_read_at(fd, data->data + data->len, max, (off_t)offset, &len);
    data->len += len;
    return r;
}

/* -EAGAIN: it has not the size that it should have. */
static int read_size(struct content *c, uint64_t size)
{
    size_t want = c->large ? WIRE_FILE_HEAD + WIRE_FILE_TAIL : size;
    c->data->len = 0;
    int r = c->large ? read_part(c->fd, WIRE_FILE_HEAD, 0, c->data) : 0;
    /* One more byte than there should be tells that it has grown. */
    if (r == 0)
        r = read_part(c->fd, want - c->data->len + 1, c->large ? size - WIRE_FILE_TAIL : 0,
                      c->data);
    return r == 0 && c->data->len != want ? -EAGAIN : r;
}

/* By the clock that the kernel takes file times from. */
static bool is_settled(const struct statx *stx)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return stx->stx_ctime.tv_sec + SETTLED_SECONDS < now.tv_sec;
}

/* -EAGAIN: it changed meanwhile. */
static int read_once(struct content *c)
{
    struct statx before;
    int r = grip_statx_fd(c->fd, &before);
    if (r < 0)
        return r;
    c->large = before.stx_size > WIRE_FILE_MAX;
    if (c->large && !c->ends)
        return -EFBIG;
    if ((c->large ? WIRE_FILE_HEAD + WIRE_FILE_TAIL : before.stx_size) > c->limit)
        return -E2BIG;
    c->settled = is_settled(&before);
    r = read_size(c, before.stx_size);
    if (r == 0)
        r = grip_statx_fd(c->fd, &c->stx);
    if (r < 0)
        return r;
    return same_version(&before, &c->stx) ? 0 : -EAGAIN;
}

static int read_content(struct content *c)
{
    int r = -EAGAIN;
    for (int tries = 0; r == -EAGAIN && tries < READ_TRIES; tries++)
        r = read_once(c);
    return r;
}

/* *ret: the file, its data in storage; or with its error alone. -E2BIG: it has more than limit
 * bytes; -ENOMEM. */
static int read_file(struct file_session *session, uint64_t number, uint32_t flags, size_t limit,
                     struct buffer *storage, struct wire_file *ret)
{
    uint32_t open_flags =
        WIRE_OPEN_READ | (flags & WIRE_READFILES_NO_ATIME ? (uint32_t)WIRE_OPEN_NO_ATIME : 0);
    _cleanup_node_ struct node *node = NULL;
    _cleanup_close_ int fd = -1;
    struct content c = {.limit = limit, .ends = flags & WIRE_READFILES_ENDS, .data = storage};
    *ret = (struct wire_file){.node = number};
    int r = node_get(session, number, &node);
    if (r == 0)
        r = file_open(node, open_flags, &fd, &c.stx);
    if (r == 0) {
        c.fd = fd;
        r = read_content(&c);
    }
    /* Who writes is asked last: whoever did while it was read is still there, or is reported. */
    if (r == 0)
        r = node_attr(node, &c.stx, &ret->attr);
    if (r == 0) {
        ret->flags = c.settled && (ret->attr.flags & WIRE_ATTR_COVERED) ? WIRE_FILE_SETTLED : 0;
        ret->flags |= c.large ? (uint32_t)WIRE_FILE_ENDS : 0;
        ret->data = buffer_view(storage);
    } else {
        *ret = (struct wire_file){.node = number, .error = (uint32_t)-r};
    }
    return r == -ENOMEM || r == -E2BIG ? r : 0;
}

/* As store_handle does for the one file of other requests: a directory that others have moved is
 * found again once it is known where to. *detected: it was, for this request. */
static int read_moved_file(struct file_session *session, uint64_t number, uint32_t flags,
                           size_t limit, struct buffer *storage, bool *detected,
                           struct wire_file *ret)
{
    int r = read_file(session, number, flags, limit, storage, ret);
    if (r < 0 || ret->error != ESTALE || *detected || !session->store->detects)
        return r;
    *detected = true;
    return store_detect(session->store) < 0
               ? r
               : read_file(session, number, flags, limit, storage, ret);
}

static int append_file(struct buffer *list, const struct wire_file *file)
{
    const struct wire_message m = {.type = WIRE_FILE, .file = *file};
    size_t before = list->len;
    int r = buffer_append_u32(list, (uint32_t)(FILE_SIZE - 4 + file->data.len));
    if (r == 0)
        r = wire_encode(list, &m);
    if (r < 0)
        list->len = before;
    return r;
}

OPERATION(readfiles)
{
    const struct wire_readfiles *asked = &m->readfiles;
    if (asked->flags & ~(uint32_t)(WIRE_READFILES_NO_ATIME | WIRE_READFILES_ENDS))
        return -EINVAL;
    _cleanup_buffer_ struct buffer data = {0};
    size_t room = asked->size < FILES_SIZE_MAX ? asked->size : FILES_SIZE_MAX;
    uint32_t count = 0, offset = 0;
    bool detected = false;
    for (struct bytes element; wire_list_next(&asked->files, &offset, &element); count++) {
        struct wire_file file;
        uint64_t number;
        if (element.len != sizeof number)
            return -EINVAL;
        memcpy(&number, element.data, sizeof number);
        int r = read_moved_file(session, le64toh(number), asked->flags,
                                count == 0 ? WIRE_FILE_MAX : room, &data, &detected, &file);
        if (r == -E2BIG)
            break;
        if (r < 0)
            return r;
        r = append_file(&ret->storage, &file);
        if (r < 0)
            return r;
        room -= file.data.len < room ? file.data.len : room;
    }
    ret->message = (struct wire_message){.type = WIRE_FILES,
                                         .files.files = wire_list_of(&ret->storage, count)};
    return 0;
}
