/* RFC 4648: base64 and base64url, which differ in two digits. */
#pragma once

#include "base/buffer.h"

enum base64_form {
    BASE64,              /* + and /, padded */
    BASE64_UNPADDED,     /* + and / */
    BASE64_URL_UNPADDED, /* - and _ */
};

/* Bytes of the text that so many bytes make, at most. */
static inline size_t base64_size(size_t len)
{
    return (len + 2) / 3 * 4;
}

/* Writes at most base64_size(data.len) digits, without NUL; how many. */
size_t base64_write(enum base64_form form, struct bytes data, char *out);

/* Appends. -ENOMEM. */
int base64_append(struct buffer *b, enum base64_form form, struct bytes data);

/* Reads either set of digits, but not both in one text, padded or not. Every other byte, a length
 * that nothing has, and bits that mean nothing are -EINVAL: one sequence of bytes has one text of
 * each form. out takes text.len / 4 * 3 + 2 bytes, and may be the text itself. */
int base64_read(struct bytes text, uint8_t *out, size_t *ret_len);
