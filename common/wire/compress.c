#include "wire/compress.h"

#include <zstd.h>
#include <zstd_errors.h>

/* The fastest level: at 100 Mbit/s and above, a slower one takes longer than it saves. */
#define LEVEL 1

/* Whether bulk shrinks is tried on so much of it, in so many places: what is compressed already
 * begins with a header that is not, and FILES has files of several kinds. */
#define SAMPLE_SIZE 4096
#define SAMPLE_DISTANCE 0x8000
#define SAMPLES_MAX 8

/* When large bulk has not shrunk twice in a row, so much more is taken to be like it; and twice as
 * much with each time that it was. */
#define ALIKE_MIN ((size_t)256 << 10)
#define ALIKE_MAX ((size_t)4 << 20)
#define LARGE 0x10000

struct compressor {
    ZSTD_CCtx *stream;
    ZSTD_CCtx *bulk;
    size_t alike; /* bytes that are left alone untried */
    size_t next;  /* how many these will be the next time */
};

struct decompressor {
    ZSTD_DCtx *stream;
    ZSTD_DCtx *bulk;
};

void compressor_free(struct compressor *c)
{
    if (!c)
        return;
    (void)ZSTD_freeCCtx(c->stream);
    (void)ZSTD_freeCCtx(c->bulk);
    free(c);
}

void decompressor_free(struct decompressor *d)
{
    if (!d)
        return;
    (void)ZSTD_freeDCtx(d->stream);
    (void)ZSTD_freeDCtx(d->bulk);
    free(d);
}

/* --- compression --------------------------------------------------------------- */
static int compressor_get(struct compressor **c)
{
    if (!*c)
        *c = calloc(1, sizeof **c);
    return *c ? 0 : -ENOMEM;
}

static int context_get(ZSTD_CCtx **context, int window_log)
{
    if (*context)
        return 0;
    ZSTD_CCtx *made = ZSTD_createCCtx();
    if (!made)
        return -ENOMEM;
    if (ZSTD_isError(ZSTD_CCtx_setParameter(made, ZSTD_c_compressionLevel, LEVEL)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(made, ZSTD_c_windowLog, window_log))) {
        (void)ZSTD_freeCCtx(made);
        return -ENOMEM;
    }
    *context = made;
    return 0;
}

int compressor_stream(struct compressor **c, struct bytes in, struct buffer *out)
{
    int r = compressor_get(c);
    if (r == 0)
        r = context_get(&(*c)->stream, COMPRESS_STREAM_WINDOW_LOG);
    if (r < 0)
        return r;
    size_t start = out->len;
    ZSTD_inBuffer input = {.src = in.data, .size = in.len};
    for (size_t left = 1; left > 0;) {
        r = buffer_reserve(out, ZSTD_compressBound(in.len - input.pos));
        if (r < 0) {
            out->len = start;
            return -ENOMEM;
        }
        ZSTD_outBuffer output = {.dst = out->data, .size = out->allocated, .pos = out->len};
        left = ZSTD_compressStream2((*c)->stream, &output, &input, ZSTD_e_flush);
        if (ZSTD_isError(left)) { /* of valid parameters only memory can be missing */
            out->len = start;
            return -ENOMEM;
        }
        out->len = output.pos;
    }
    return 0;
}

/* Compresses on its own into out's free space; 0, or 1 when it takes more than limit bytes. */
static int compress_once(ZSTD_CCtx *context, struct bytes in, size_t limit, struct buffer *out)
{
    int r = buffer_reserve(out, limit);
    if (r < 0)
        return -ENOMEM;
    size_t n = ZSTD_compress2(context, out->data + out->len, limit, in.data, in.len);
    if (ZSTD_isError(n))
        return ZSTD_getErrorCode(n) == ZSTD_error_dstSize_tooSmall ? 1 : -ENOMEM;
    out->len += n;
    return 0;
}

/* 1: some part of it does; 0: none. -ENOMEM. out is for the work alone. */
static int seems_to_shrink(ZSTD_CCtx *context, struct bytes in, struct buffer *out)
{
    size_t start = out->len, places = in.len / SAMPLE_DISTANCE;
    if (places == 0)
        places = 1;
    if (places > SAMPLES_MAX)
        places = SAMPLES_MAX;
    int r = 1;
    for (size_t i = 0; r == 1 && i < places; i++) {
        size_t middle = in.len / places * i + in.len / places / 2;
        struct bytes sample = bytes_of(in.data + middle - SAMPLE_SIZE / 2, SAMPLE_SIZE);
        r = compress_once(context, sample, SAMPLE_SIZE / 4 * 3, out);
        out->len = start;
    }
    return r < 0 ? r : !r;
}

static int try_bulk(struct compressor *c, struct bytes in, struct buffer *out)
{
    int r = context_get(&c->bulk, COMPRESS_BULK_WINDOW_LOG);
    if (r < 0)
        return r;
    r = in.len > SAMPLE_SIZE ? seems_to_shrink(c->bulk, in, out) : 1;
    if (r <= 0)
        return r;
    r = compress_once(c->bulk, in, in.len / 8 * 7, out);
    return r < 0 ? r : !r;
}

static void note_alike(struct compressor *c)
{
    c->alike = c->next;
    c->next = c->next ? 2 * c->next : ALIKE_MIN;
    if (c->next > ALIKE_MAX)
        c->next = ALIKE_MAX;
}

int compressor_bulk(struct compressor **compressor, struct bytes in, struct buffer *out)
{
    int r = compressor_get(compressor);
    if (r < 0)
        return r;
    struct compressor *c = *compressor;
    bool large = in.len > LARGE;
    if (large && in.len <= c->alike) {
        c->alike -= in.len;
        return 0;
    }
    r = try_bulk(c, in, out);
    if (r > 0)
        c->alike = c->next = 0;
    else if (r == 0 && large)
        note_alike(c);
    return r;
}

/* --- decompression ------------------------------------------------------------- */
static int decompressor_get(struct decompressor **d)
{
    if (!*d)
        *d = calloc(1, sizeof **d);
    return *d ? 0 : -ENOMEM;
}

static int error_of(size_t code)
{
    return ZSTD_getErrorCode(code) == ZSTD_error_memory_allocation ? -ENOMEM : -EBADMSG;
}

static int inflate_stream(ZSTD_DCtx *context, struct bytes in, size_t limit, struct buffer *out)
{
    size_t start = out->len;
    size_t end = start + limit + 1; /* a byte there tells that there was too much */
    ZSTD_inBuffer input = {.src = in.data, .size = in.len};
    size_t step = in.len * 4;
    for (;;) {
        size_t room = end - out->len < step ? end - out->len : step;
        int r = buffer_reserve(out, room);
        if (r < 0)
            return -ENOMEM;
        ZSTD_outBuffer output = {.dst = out->data, .size = out->len + room, .pos = out->len};
        size_t code = ZSTD_decompressStream(context, &output, &input);
        if (ZSTD_isError(code))
            return error_of(code);
        bool full = output.pos == output.size;
        out->len = output.pos;
        if (out->len == end)
            return -EBADMSG;
        /* Room left over means that nothing more is waiting inside the context. */
        if (!full && input.pos == input.size)
            return 0;
        step *= 2;
    }
}

int decompressor_stream(struct decompressor **d, struct bytes in, size_t limit, struct buffer *out)
{
    int r = decompressor_get(d);
    if (r < 0)
        return r;
    if (!(*d)->stream) {
        ZSTD_DCtx *made = ZSTD_createDCtx();
        if (!made)
            return -ENOMEM;
        (void)ZSTD_DCtx_setParameter(made, ZSTD_d_windowLogMax, COMPRESS_STREAM_WINDOW_LOG);
        (*d)->stream = made;
    }
    size_t start = out->len;
    r = inflate_stream((*d)->stream, in, limit, out);
    if (r < 0)
        out->len = start;
    return r;
}

int decompressor_bulk(struct decompressor **d, struct bytes in, size_t limit, struct buffer *out)
{
    int r = decompressor_get(d);
    if (r < 0)
        return r;
    if (!(*d)->bulk) {
        (*d)->bulk = ZSTD_createDCtx();
        if (!(*d)->bulk)
            return -ENOMEM;
    }
    /* The size must be told; both "unknown" and "error" are above any limit. */
    unsigned long long size = ZSTD_getFrameContentSize(in.data, in.len);
    if (size == 0 || size > limit)
        return -EBADMSG;
    /* buffer_reserve would double an odd size; the frame lives as long as its request. */
    if (out->allocated - out->len < size) {
        uint8_t *grown = realloc(out->data, out->len + (size_t)size);
        if (!grown)
            return -ENOMEM;
        out->data = grown;
        out->allocated = out->len + (size_t)size;
    }
    size_t n = ZSTD_decompressDCtx((*d)->bulk, out->data + out->len, (size_t)size, in.data, in.len);
    if (ZSTD_isError(n))
        return error_of(n);
    out->len += n;
    return 0;
}
