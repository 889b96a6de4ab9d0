/* A borrowed view of bytes. Never owned, never NUL-terminated; valid as long as what it
 * points into. {NULL, 0} is the empty view. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bytes {
    const uint8_t *data;
    size_t len;
};

static inline struct bytes bytes_of(const void *data, size_t len)
{
    return (struct bytes){.data = data, .len = len};
}

static inline struct bytes bytes_of_string(const char *s)
{
    return bytes_of(s, s ? strlen(s) : 0);
}

static inline bool bytes_equal(struct bytes a, struct bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}
