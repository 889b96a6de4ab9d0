/* A growable byte buffer that owns its memory. {0} is a valid empty buffer. */
#pragma once

#include "base/bytes.h"
#include "base/cleanup.h"

struct buffer {
    uint8_t *data;
    size_t len;
    size_t allocated;
};

/* Makes room for `extra` more bytes after len. 0, -ENOMEM, or -EOVERFLOW. */
int buffer_reserve(struct buffer *b, size_t extra);

/* Appends; on failure (-ENOMEM, -EOVERFLOW) the buffer is unchanged. */
int buffer_append(struct buffer *b, const void *data, size_t len);
int buffer_append_u8(struct buffer *b, uint8_t v);
int buffer_append_u16(struct buffer *b, uint16_t v); /* integers are little-endian */
int buffer_append_u32(struct buffer *b, uint32_t v);
int buffer_append_u64(struct buffer *b, uint64_t v);

/* printf into the buffer; no NUL is counted in len, but one always follows it. */
int buffer_printf(struct buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Drops the first n bytes (n <= len). */
void buffer_consume(struct buffer *b, size_t n);

/* Frees the memory and leaves {0}. */
void buffer_release(struct buffer *b);
#define _cleanup_buffer_ _cleanup_(buffer_release)

static inline struct bytes buffer_view(const struct buffer *b)
{
    return bytes_of(b->data, b->len);
}
