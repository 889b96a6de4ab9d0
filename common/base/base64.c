#include "base/base64.h"

#include <errno.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static const char url_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

size_t base64_write(enum base64_form form, struct bytes data, char *out)
{
    const char *set = form == BASE64_URL_UNPADDED ? url_digits : digits;
    size_t n = 0;
    for (size_t i = 0; i < data.len; i += 3) {
        size_t have = data.len - i < 3 ? data.len - i : 3;
        uint32_t group = (uint32_t)data.data[i] << 16;
        if (have > 1)
            group |= (uint32_t)data.data[i + 1] << 8;
        if (have > 2)
            group |= data.data[i + 2];
        for (size_t k = 0; k <= have; k++)
            out[n++] = set[group >> (18 - 6 * k) & 63];
        for (size_t k = have; form == BASE64 && k < 3; k++)
            out[n++] = '=';
    }
    return n;
}

int base64_append(struct buffer *b, enum base64_form form, struct bytes data)
{
    int r = data.len ? buffer_reserve(b, base64_size(data.len)) : 0;
    if (r < 0 || !data.len)
        return r;
    b->len += base64_write(form, data, (char *)b->data + b->len);
    return 0;
}

enum { OF_BASE64 = 1, OF_URL = 2 };

static int value_of(uint8_t c, unsigned *sets)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    *sets |= c == '+' || c == '/' ? OF_BASE64 : c == '-' || c == '_' ? OF_URL : 0;
    return c == '+' || c == '-' ? 62 : c == '/' || c == '_' ? 63 : -1;
}

int base64_read(struct bytes text, uint8_t *out, size_t *ret_len)
{
    size_t n = 0;
    unsigned sets = 0;
    uint32_t group = 0;
    if (text.len > 0 && text.len % 4 == 0)
        for (int i = 0; i < 2 && text.data[text.len - 1] == '='; i++)
            text.len--;
    if (text.len % 4 == 1)
        return -EINVAL;
    for (size_t i = 0; i < text.len; i++) {
        int value = value_of(text.data[i], &sets);
        if (value < 0)
            return -EINVAL;
        group = group << 6 | (uint32_t)value;
        if (i % 4 == 0)
            continue;
        out[n++] = (uint8_t)(group >> (6 - 2 * (i % 4)));
        group &= 0xff;
    }
    unsigned left = text.len % 4 == 2 ? 4 : text.len % 4 == 3 ? 2 : 0;
    if (sets == (OF_BASE64 | OF_URL) || (group & ((1u << left) - 1)))
        return -EINVAL;
    *ret_len = n;
    return 0;
}
