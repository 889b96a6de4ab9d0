#include "store/tree_file.h"

#include "base/cleanup.h"
#include "base/file.h"

#include <string.h>
#include <zstd.h>

/* Fast: whoever waits for a snapshot has his commands standing still. */
#define LEVEL 1

struct tree_file {
    int fd;
    ZSTD_CCtx *zstd;
    uint8_t *out;
    size_t out_size;
    struct buffer head;
};

void tree_file_free(struct tree_file *file)
{
    (void)ZSTD_freeCCtx(file->zstd);
    free(file->out);
    free(file);
}

int tree_file_new(int fd, struct tree_file **ret)
{
    _cleanup_tree_file_ struct tree_file *file = calloc(1, sizeof *file);
    if (!file)
        return -ENOMEM;
    file->fd = fd;
    file->zstd = ZSTD_createCCtx();
    file->out_size = ZSTD_CStreamOutSize();
    file->out = malloc(file->out_size);
    if (!file->zstd || !file->out ||
        ZSTD_isError(ZSTD_CCtx_setParameter(file->zstd, ZSTD_c_compressionLevel, LEVEL)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(file->zstd, ZSTD_c_checksumFlag, 1)))
        return -ENOMEM;
    *ret = take_ptr(file);
    return 0;
}

static int compress(struct tree_file *file, const void *data, size_t len, ZSTD_EndDirective end)
{
    ZSTD_inBuffer in = {.src = data, .size = len};
    for (;;) {
        ZSTD_outBuffer out = {.dst = file->out, .size = file->out_size};
        size_t left = ZSTD_compressStream2(file->zstd, &out, &in, end);
        if (ZSTD_isError(left))
            return -ENOMEM;
        int r = file_write_all(file->fd, file->out, out.pos);
        if (r < 0)
            return r;
        if (end == ZSTD_e_continue ? in.pos == in.size : left == 0)
            return 0;
    }
}

/* A part is its count, its size and itself; one of count 0 is the end. */
static int write_part(struct tree_file *file, const uint32_t head[2], const void *data,
                      ZSTD_EndDirective end)
{
    uint8_t bytes[2 * sizeof(uint32_t)];
    memcpy(bytes, head, sizeof bytes);
    int r = compress(file, bytes, sizeof bytes, end);
    return r < 0 || head[1] == 0 ? r : compress(file, data, head[1], ZSTD_e_continue);
}

int tree_file_part(void *context, const struct wire_list *items)
{
    const uint32_t head[2] = {items->count, items->len};
    return write_part(context, head, items->data, ZSTD_e_continue);
}

int tree_file_finish(struct tree_file *file)
{
    const uint32_t head[2] = {0};
    int r = write_part(file, head, NULL, ZSTD_e_end);
    if (r == 0 && fsync(file->fd) < 0)
        r = -errno;
    return r;
}

/* --- reading ---------------------------------------------------------------------------- */

struct decompression {
    int fd;
    ZSTD_DCtx *zstd;
    uint8_t *in;
    size_t in_size, in_len, in_pos;
    bool ended; /* of the frame */
};

static void decompression_release(struct decompression *d)
{
    (void)ZSTD_freeDCtx(d->zstd);
    free(d->in);
}

/* Some more of what is in the frame. */
static int decompress(struct decompression *d, ZSTD_outBuffer *out)
{
    if (d->in_pos == d->in_len) {
        d->in_pos = 0;
        int r = file_read_up_to(d->fd, d->in, d->in_size, &d->in_len);
        if (r < 0)
            return r;
        if (d->in_len == 0)
            return -EIO; /* cut off */
    }
    ZSTD_inBuffer in = {.src = d->in, .size = d->in_len, .pos = d->in_pos};
    size_t left = ZSTD_decompressStream(d->zstd, out, &in);
    if (ZSTD_isError(left))
        return -EIO;
    d->in_pos = in.pos;
    d->ended = left == 0;
    return 0;
}

static int read_all(struct decompression *d, void *data, size_t len)
{
    ZSTD_outBuffer out = {.dst = data, .size = len};
    int r = 0;
    while (r == 0 && out.pos < out.size)
        r = d->ended ? -EIO : decompress(d, &out);
    return r;
}

/* The checksum stands behind the last byte. */
static int read_end(struct decompression *d)
{
    uint8_t none;
    ZSTD_outBuffer out = {.dst = &none, .size = 0};
    int r = 0;
    while (r == 0 && !d->ended)
        r = decompress(d, &out);
    return r;
}

static bool fills(const struct wire_list *list)
{
    struct bytes element;
    uint32_t offset = 0, count = 0;
    while (wire_list_next(list, &offset, &element))
        count++;
    return offset == list->len && count == list->count;
}

int tree_file_read(int fd, const struct tree_sink *sink, const struct tree_stop *stop)
{
    _cleanup_(decompression_release) struct decompression d = {
        .fd = fd, .zstd = ZSTD_createDCtx(), .in_size = ZSTD_DStreamInSize()};
    d.in = malloc(d.in_size);
    _cleanup_free_ uint8_t *part = malloc(WIRE_TREE_PART_MAX);
    if (!d.zstd || !d.in || !part)
        return -ENOMEM;
    for (;;) {
        uint32_t head[2];
        int r = read_all(&d, head, sizeof head);
        if (r < 0)
            return r;
        if (head[0] == 0)
            return head[1] ? -EIO : read_end(&d);
        if (head[1] > WIRE_TREE_PART_MAX)
            return -EIO;
        r = read_all(&d, part, head[1]);
        const struct wire_list list = {.data = part, .len = head[1], .count = head[0]};
        if (r == 0 && !fills(&list))
            r = -EIO;
        if (r == 0 && stop && stop->cancelled && stop->cancelled(stop->context))
            r = -ECANCELED;
        if (r == 0)
            r = sink->part(sink->context, &list);
        if (r < 0)
            return r;
    }
}
