#include "keeper/spool.h"

#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"

struct spool {
    int directory;
    const char *name;
    int fd;        /* -1: nothing was written or read yet */
    uint64_t head; /* bytes of the beginning that are kept */
    uint64_t ring; /* bytes of the end, behind the head in the file, by offset modulo this */
    uint64_t end;
    uint64_t stored; /* end, unless the file could not be written */
    bool broken;
    uint8_t *memory; /* a ring of what came after `stored`; NULL: nothing */
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t greatest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static struct spool *spool_make(int directory, const char *name, uint64_t keep)
{
    struct spool *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->directory = directory;
    s->name = name;
    s->fd = -1;
    s->head = keep / 2;
    s->ring = keep - s->head + SPOOL_SLACK;
    return s;
}

int spool_new(int directory, const char *name, uint64_t keep, struct spool **ret)
{
    struct spool *s =
        spool_make(directory, name, greatest(SPOOL_KEEP_MIN, least(keep, SPOOL_KEEP_MAX)));
    if (!s)
        return -ENOMEM;
    *ret = s;
    return 0;
}

int spool_open(int directory, const char *name, const struct spool_geometry *geometry,
               struct spool **ret)
{
    if (geometry->keep < SPOOL_KEEP_MIN || geometry->keep > SPOOL_KEEP_MAX ||
        geometry->stored > geometry->end)
        return -EINVAL;
    struct spool *s = spool_make(directory, name, geometry->keep);
    if (!s)
        return -ENOMEM;
    s->end = geometry->end;
    s->stored = geometry->stored;
    s->broken = true; /* nothing more is written */
    *ret = s;
    return 0;
}

void spool_free(struct spool *s)
{
    if (!s)
        return;
    close_fd(&s->fd);
    free(s->memory);
    free(s);
}

struct spool_geometry spool_geometry(const struct spool *s)
{
    return (struct spool_geometry){
        .keep = s->head + s->ring - SPOOL_SLACK, .end = s->end, .stored = s->stored};
}

/* Where in the file an offset is, and how many bytes follow it there without a break. */
static uint64_t place_of(const struct spool *s, uint64_t offset, uint64_t *ret_run)
{
    if (offset < s->head) {
        *ret_run = s->head - offset;
        return offset;
    }
    uint64_t at = (offset - s->head) % s->ring;
    *ret_run = s->ring - at;
    return s->head + at;
}

/* The first offset behind the head that is kept in the file, and in memory. */
static uint64_t ring_start(const struct spool *s)
{
    return greatest(s->head, s->stored > s->ring ? s->stored - s->ring : 0);
}

static uint64_t memory_start(const struct spool *s)
{
    uint64_t size = s->memory ? SPOOL_MEMORY_MAX : 0;
    return greatest(s->stored, s->end > size ? s->end - size : 0);
}

static int file_append(struct spool *s, struct bytes data)
{
    if (s->fd < 0)
        s->fd =
            openat(s->directory, s->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->fd < 0)
        return -errno;
    while (data.len > 0) {
        uint64_t run;
        uint64_t at = place_of(s, s->stored, &run);
        size_t n = (size_t)least(run, data.len);
        ssize_t written = pwrite(s->fd, data.data, n, (off_t)at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? -errno : -ENOSPC;
        s->stored += (uint64_t)written;
        s->end += (uint64_t)written;
        data = bytes_of(data.data + written, data.len - (size_t)written);
    }
    return 0;
}

static void memory_append(struct spool *s, struct bytes data)
{
    for (size_t done = 0; s->memory && done < data.len;) {
        size_t at = (size_t)((s->end + done - s->stored) % SPOOL_MEMORY_MAX);
        size_t n = (size_t)least(SPOOL_MEMORY_MAX - at, data.len - done);
        memcpy(s->memory + at, data.data + done, n);
        done += n;
    }
    s->end += data.len;
}

void spool_append(struct spool *s, struct bytes data)
{
    uint64_t before = s->end;
    if (!s->broken) {
        int r = file_append(s, data);
        if (r == 0)
            return;
        log_warning("output of a command cannot be kept on the disk: %s", strerror(-r));
        s->broken = true;
        s->memory = malloc(SPOOL_MEMORY_MAX);
    }
    size_t done = (size_t)(s->end - before);
    memory_append(s, bytes_of(data.data + done, data.len - done));
}

uint64_t spool_room(const struct spool *s, uint64_t offset)
{
    if (s->broken && !s->memory)
        return UINT64_MAX; /* nothing is kept for anybody */
    uint64_t begin = s->broken ? s->stored : s->head;
    uint64_t size = s->broken ? SPOOL_MEMORY_MAX : s->ring;
    uint64_t slack = s->broken ? SPOOL_MEMORY_MAX / 2 : SPOOL_SLACK;
    uint64_t needed = greatest(begin, s->end > size ? s->end - size : 0);
    needed = greatest(needed, offset > slack ? offset - slack : 0);
    return needed + size - s->end;
}

uint64_t spool_dropped(const struct spool *s)
{
    uint64_t in_file = least(s->stored, s->head) + (s->stored - least(s->stored, ring_start(s)));
    return s->stored - in_file + memory_start(s) - s->stored;
}

uint64_t spool_next(const struct spool *s, uint64_t offset)
{
    if (offset < least(s->head, s->stored))
        return offset;
    if (offset < s->stored)
        return greatest(offset, ring_start(s));
    return least(greatest(offset, memory_start(s)), s->end);
}

static int file_read(const struct spool *s, uint64_t offset, void *data, size_t size,
                     size_t *ret_len)
{
    uint64_t run;
    uint64_t at = place_of(s, offset, &run);
    size_t n = (size_t)least(least(run, size), s->stored - offset);
    int fd = s->fd;
    _cleanup_close_ int opened = -1;
    if (fd < 0) {
        opened = openat(s->directory, s->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (opened < 0)
            return -errno;
        fd = opened;
    }
    int r = file_read_at(fd, data, n, at, ret_len);
    if (r == 0 && *ret_len < n)
        return -EIO; /* somebody has cut it */
    return r;
}

int spool_read(const struct spool *s, uint64_t offset, void *data, size_t size, size_t *ret_len)
{
    *ret_len = 0;
    if (offset >= s->end || size == 0)
        return 0;
    if (offset < s->stored)
        return file_read(s, offset, data, size, ret_len);
    if (!s->memory)
        return 0;
    size_t at = (size_t)((offset - s->stored) % SPOOL_MEMORY_MAX);
    size_t n = (size_t)least(least(SPOOL_MEMORY_MAX - at, size), s->end - offset);
    memcpy(data, s->memory + at, n);
    *ret_len = n;
    return 0;
}
