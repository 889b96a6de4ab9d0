/* The body of a request behind its header: of a given length, or in chunks (RFC 9112 7.1). No I/O.
 * Strict: who reads a chunk's size or end otherwise than the next one reads another request behind
 * it. */
#pragma once

#include "base/bytes.h"
#include "stream/http.h"

/* Of a chunk's extensions, and of all fields behind the last chunk, in bytes: nobody here looks at
 * them. Stops a body that never has content. */
#define HTTP_CHUNK_EXTENSION_MAX 256
#define HTTP_TRAILER_MAX 4096

struct http_body {
    int state; /* http_body.c's */
    uint64_t left;
    unsigned count;
};

void http_body_begin(struct http_body *b, const struct http_request *request);

/* Takes bytes: 1 when the body has ended, else 0. *ret_used of them were its own, *ret_content are
 * a view of those that are content. It may stop before the last byte: feed the rest again.
 * -EBADMSG: these are no chunks; nothing more can be read of this connection. */
int http_body_feed(struct http_body *b, const void *data, size_t len, size_t *ret_used,
                   struct bytes *ret_content);

/* Whether it has ended, as it has from the beginning when there is none. */
bool http_body_ended(const struct http_body *b);
