#include "stream/http_body.h"

#include <errno.h>

enum state {
    BODY_ENDED,
    BODY_LENGTH,     /* `left` bytes, and nothing behind them */
    BODY_SIZE_FIRST, /* of a chunk: a hexadecimal digit */
    BODY_SIZE,
    BODY_EXTENSION,
    BODY_SIZE_LF,
    BODY_CHUNK, /* `left` bytes of one */
    BODY_CHUNK_CR,
    BODY_CHUNK_LF,
    BODY_TRAILER_LINE, /* at the start of one */
    BODY_TRAILER,
    BODY_TRAILER_LF,
    BODY_END_LF,
};

/* 16 digits are 64 bits; leading zeros count, too. One less: nothing overflows when it is added to.
 */
#define SIZE_DIGITS_MAX 15

void http_body_begin(struct http_body *b, const struct http_request *request)
{
    *b = (struct http_body){.state = request->chunked      ? BODY_SIZE_FIRST
                                     : request->length > 0 ? BODY_LENGTH
                                                           : BODY_ENDED,
                            .left = request->length};
}

bool http_body_ended(const struct http_body *b)
{
    return b->state == BODY_ENDED;
}

static int digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool is_text(uint8_t c)
{
    return c == '\t' || (c >= 0x20 && c != 0x7f);
}

static int take_size(struct http_body *b, uint8_t c)
{
    int d = digit(c);
    if (d >= 0) {
        if (b->count++ == SIZE_DIGITS_MAX)
            return -EBADMSG;
        b->left = b->left << 4 | (unsigned)d;
        b->state = BODY_SIZE;
        return 0;
    }
    if (b->state == BODY_SIZE_FIRST || (c != ';' && c != '\r'))
        return -EBADMSG;
    b->state = c == ';' ? BODY_EXTENSION : BODY_SIZE_LF;
    b->count = 0;
    return 0;
}

/* A byte of what surrounds content. */
static int take(struct http_body *b, uint8_t c)
{
    switch ((enum state)b->state) {
    case BODY_SIZE_FIRST:
    case BODY_SIZE:
        return take_size(b, c);
    case BODY_EXTENSION:
        if (c == '\r')
            b->state = BODY_SIZE_LF;
        else if (!is_text(c) || b->count++ == HTTP_CHUNK_EXTENSION_MAX)
            return -EBADMSG;
        return 0;
    case BODY_SIZE_LF:
        b->state = b->left > 0 ? BODY_CHUNK : BODY_TRAILER_LINE;
        b->count = 0;
        return c == '\n' ? 0 : -EBADMSG;
    case BODY_CHUNK_CR:
        b->state = BODY_CHUNK_LF;
        return c == '\r' ? 0 : -EBADMSG;
    case BODY_CHUNK_LF:
        b->state = BODY_SIZE_FIRST;
        return c == '\n' ? 0 : -EBADMSG;
    case BODY_TRAILER_LINE:
        if (c == '\r') {
            b->state = BODY_END_LF;
            return 0;
        }
        /* Folded, or no name. */
        if (c == ' ' || c == '\t' || c == ':')
            return -EBADMSG;
        b->state = BODY_TRAILER;
        return is_text(c) && b->count++ < HTTP_TRAILER_MAX ? 0 : -EBADMSG;
    case BODY_TRAILER:
        if (c == '\r')
            b->state = BODY_TRAILER_LF;
        else if (!is_text(c) || b->count++ == HTTP_TRAILER_MAX)
            return -EBADMSG;
        return 0;
    case BODY_TRAILER_LF:
        b->state = BODY_TRAILER_LINE;
        return c == '\n' ? 0 : -EBADMSG;
    case BODY_END_LF:
        b->state = BODY_ENDED;
        return c == '\n' ? 0 : -EBADMSG;
    case BODY_ENDED:
    case BODY_LENGTH:
    case BODY_CHUNK:
        break;
    }
    return -EBADMSG;
}

int http_body_feed(struct http_body *b, const void *data, size_t len, size_t *ret_used,
                   struct bytes *ret_content)
{
    const uint8_t *bytes = data;
    size_t used = 0;
    *ret_content = (struct bytes){0};
    while (used < len && b->state != BODY_ENDED) {
        if (b->state != BODY_LENGTH && b->state != BODY_CHUNK) {
            int r = take(b, bytes[used++]);
            if (r < 0)
                return r;
            continue;
        }
        if (ret_content->len > 0)
            break;
        size_t n = len - used < b->left ? len - used : (size_t)b->left;
        *ret_content = bytes_of(bytes + used, n);
        used += n;
        b->left -= n;
        if (b->left == 0) {
            b->state = b->state == BODY_LENGTH ? BODY_ENDED : BODY_CHUNK_CR;
            b->count = 0;
        }
    }
    *ret_used = used;
    return b->state == BODY_ENDED;
}
