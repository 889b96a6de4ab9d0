/* zstd for frames. Metadata (all but bulk) goes through one streaming context per direction,
 * flushed at the end of each frame, so that names and attributes seen before cost little;
 * bulk frames are compressed one by one, so that one that does not shrink can be left alone.
 * Private to the session. */
#pragma once

#include "base/buffer.h"

/* Both sides of a stream keep a window of this size; stops a peer from making the other
 * allocate gigabytes by what its first bytes claim. */
#define COMPRESS_STREAM_WINDOW_LOG 17
#define COMPRESS_BULK_WINDOW_LOG 20

/* Most bytes that the stream makes of `size` bytes that do not shrink. */
static inline size_t compress_stream_bound(size_t size)
{
    return size + size / 128 + 64;
}

struct compressor;
struct decompressor;

/* All create the context when *c or *d is NULL. They append to out and leave it unchanged on
 * failure. in is not empty and must not be part of out. */

/* -ENOMEM; the context cannot be used any more. */
int compressor_stream(struct compressor **c, struct bytes in, struct buffer *out);

/* 1: compressed. 0: would not shrink enough, or is taken to be like what did not lately; nothing
 * was appended. -ENOMEM. */
int compressor_bulk(struct compressor **c, struct bytes in, struct buffer *out);

/* -EBADMSG: not valid, or more than `limit` bytes come out (never more than that is kept: a
 * bomb costs its limit); the context cannot be used any more. -ENOMEM. */
int decompressor_stream(struct decompressor **d, struct bytes in, size_t limit, struct buffer *out);
int decompressor_bulk(struct decompressor **d, struct bytes in, size_t limit, struct buffer *out);

/* NULL is fine. */
void compressor_free(struct compressor *c);
void decompressor_free(struct decompressor *d);
