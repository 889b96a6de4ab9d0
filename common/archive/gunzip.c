#include "archive/gunzip.h"

#include <stdlib.h>
#include <zlib.h>

#define OUT_SIZE (128 * 1024)
#define MAGIC_SIZE 2
/* As inflateInit2 wants to be told: the largest window, and a gzip header before it. */
#define WINDOW_BITS (15 + 16)

struct gunzip {
    const struct unpack_source *source;
    z_stream z;
    bool decided, packed, ended;
    bool inside;              /* of a member, which has an end */
    uint8_t head[MAGIC_SIZE]; /* of a source that gives the first two bytes one by one */
    struct bytes held; /* read, and not yet taken, after the head: lasts until the next read */
    size_t head_len;
    uint8_t out[OUT_SIZE];
};

int gunzip_new(const struct unpack_source *source, struct gunzip **ret)
{
    struct gunzip *g = calloc(1, sizeof *g);
    if (!g)
        return -ENOMEM;
    g->source = source;
    if (inflateInit2(&g->z, WINDOW_BITS) != Z_OK) {
        free(g);
        return -ENOMEM;
    }
    *ret = g;
    return 0;
}

void gunzip_free(struct gunzip *g)
{
    (void)inflateEnd(&g->z);
    free(g);
}

bool gunzip_is_packed(const struct gunzip *g)
{
    return g->packed;
}

/* By the first two bytes. */
static ssize_t decide(struct gunzip *g)
{
    const void *data;
    ssize_t n = g->source->read(g->source->context, &data);
    if (n == 1) {
        g->head[g->head_len++] = *(const uint8_t *)data;
        n = g->source->read(g->source->context, &data);
    }
    if (n < 0)
        return n;
    g->ended = n == 0;
    g->held = bytes_of(data, (size_t)n);
    uint8_t magic[MAGIC_SIZE] = {0};
    for (size_t i = 0; i < MAGIC_SIZE && i < g->head_len + g->held.len; i++)
        magic[i] = i < g->head_len ? g->head[i] : g->held.data[i - g->head_len];
    g->packed = magic[0] == 0x1f && magic[1] == 0x8b;
    g->decided = true;
    return 0;
}

static ssize_t next_input(struct gunzip *g, const void **ret)
{
    size_t len = g->head_len;
    if (len) {
        *ret = g->head;
        g->head_len = 0;
        return (ssize_t)len;
    }
    if (g->held.len) {
        len = g->held.len;
        *ret = g->held.data;
        g->held = (struct bytes){0};
        return (ssize_t)len;
    }
    if (g->ended)
        return 0;
    ssize_t n = g->source->read(g->source->context, ret);
    g->ended = n == 0;
    return n;
}

static ssize_t refill(struct gunzip *g)
{
    const void *data;
    ssize_t n = next_input(g, &data);
    if (n > 0) {
        g->z.next_in = (z_const Bytef *)(uintptr_t)data;
        g->z.avail_in = (uInt)n;
    }
    return n;
}

ssize_t gunzip_read(struct gunzip *g, const void **ret_data)
{
    ssize_t n = g->decided ? 0 : decide(g);
    if (n < 0)
        return n;
    if (!g->packed)
        return next_input(g, ret_data);
    for (;;) {
        if (g->z.avail_in == 0 && (n = refill(g)) <= 0)
            return n < 0 ? n : g->inside ? -EBADMSG : 0;
        /* The first byte of another member, or of what is none. */
        if (!g->inside && *g->z.next_in != 0x1f)
            return 0;
        g->inside = true;
        g->z.next_out = g->out;
        g->z.avail_out = OUT_SIZE;
        int r = inflate(&g->z, Z_NO_FLUSH);
        if (r == Z_STREAM_END) {
            g->inside = false;
            (void)inflateReset(&g->z);
        } else if (r != Z_OK && r != Z_BUF_ERROR) {
            return r == Z_MEM_ERROR ? -ENOMEM : -EBADMSG;
        }
        if (g->z.avail_out < OUT_SIZE) {
            *ret_data = g->out;
            return OUT_SIZE - (ssize_t)g->z.avail_out;
        }
    }
}
