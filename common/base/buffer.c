#include "base/buffer.h"

#include <stdarg.h>
#include <stdio.h>

int buffer_reserve(struct buffer *b, size_t extra)
{
    size_t wanted;
    if (__builtin_add_overflow(b->len, extra, &wanted))
        return -EOVERFLOW;
    if (wanted <= b->allocated)
        return 0;
    size_t size = b->allocated ? b->allocated : 64;
    while (size < wanted)
        if (__builtin_mul_overflow(size, 2, &size))
            return -EOVERFLOW;
    uint8_t *data = realloc(b->data, size);
    if (!data)
        return -ENOMEM;
    b->data = data;
    b->allocated = size;
    return 0;
}

int buffer_append(struct buffer *b, const void *data, size_t len)
{
    if (len == 0)
        return 0;
    int r = buffer_reserve(b, len);
    if (r < 0)
        return r;
    memcpy(b->data + b->len, data, len);
    b->len += len;
    return 0;
}

static int append_integer(struct buffer *b, uint64_t v, size_t size)
{
    uint8_t raw[8];
    for (size_t i = 0; i < size; i++)
        raw[i] = (uint8_t)(v >> (8 * i));
    return buffer_append(b, raw, size);
}

int buffer_append_u8(struct buffer *b, uint8_t v)
{
    return append_integer(b, v, 1);
}

int buffer_append_u16(struct buffer *b, uint16_t v)
{
    return append_integer(b, v, 2);
}

int buffer_append_u32(struct buffer *b, uint32_t v)
{
    return append_integer(b, v, 4);
}

int buffer_append_u64(struct buffer *b, uint64_t v)
{
    return append_integer(b, v, 8);
}

int buffer_printf(struct buffer *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0)
        return -EINVAL;
    int r = buffer_reserve(b, (size_t)n + 1);
    if (r < 0)
        return r;
    va_start(args, format);
    (void)vsnprintf((char *)b->data + b->len, (size_t)n + 1, format, args);
    va_end(args);
    b->len += (size_t)n;
    return 0;
}

void buffer_consume(struct buffer *b, size_t n)
{
    b->len -= n;
    if (b->len > 0)
        memmove(b->data, b->data + n, b->len);
}

void buffer_release(struct buffer *b)
{
    free(b->data);
    *b = (struct buffer){0};
}
