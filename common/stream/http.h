/* HTTP/1.1 as far as a service needs it: one request header in, its body, one answer out. No I/O.
 * Who reads the first header of a connection and who reads the others (execsvc/gateway) are two
 * processes, which must never take the same bytes for two things: both use this. What can be read
 * in two ways is refused: RFC 9112 11.2. */
#pragma once

#include "base/buffer.h"
#include "base/bytes.h"

/* Request line and header fields, in bytes. Stops memory use by an endless header; fits a
 * bearer token of CONFIG_TOKEN_MAX and a long path. */
#define HTTP_HEADER_MAX 16384

struct http_request {
    char method[16];
    char path[256];     /* without the query; a longer one is cut, and so matches nothing */
    const char *target; /* whole; lasts as long as the reader */
    bool http_1_1;
    bool body;    /* one follows, of whatever length */
    bool chunked; /* in chunks, else of so many bytes: */
    uint64_t length;
    bool keep_alive;            /* the client expects to send another on this connection */
    bool expects_continue;      /* it waits for a 100 before it sends the body */
    bool upgrade;               /* an Upgrade field, named by Connection */
    bool upgrade_berth;         /* it lists berth/1 */
    struct bytes authorization; /* the field's value; empty when absent */
};

struct http_reader;

int http_reader_new(struct http_reader **ret);
void http_reader_free(struct http_reader *r); /* wipes the credentials */

/* Takes bytes. 1: the header is complete, *ret_used of the bytes belonged to it, the others
 * are what follows; 0: more are needed, all were used. -EBADMSG: not an HTTP request that can
 * be answered but with 400; -EPROTO: one that may be read in two ways, also 400: a
 * Transfer-Encoding other than chunked alone, folded fields, lines that end otherwise than by CR
 * LF; -EMSGSIZE: over HTTP_HEADER_MAX (431); -ENOMEM. After anything but 0 the reader takes no
 * more. */
int http_reader_feed(struct http_reader *r, const void *data, size_t len, size_t *ret_used);

/* After 1. Views last as long as the reader. */
const struct http_request *http_reader_request(const struct http_reader *r);

/* The value of a field of this name, in lower case; NULL when absent. Of several the first: of
 * those that must not be given twice there is one. Lasts as long as the reader. */
const char *http_reader_field(const struct http_reader *r, const char *name);

/* The n-th field, its name in lower case. False: there are no more. */
bool http_reader_field_at(const struct http_reader *r, size_t n, const char **ret_name,
                          const char **ret_value);

/* True when no byte of a request has come yet. */
bool http_reader_untouched(const struct http_reader *r);

/* The answer that lets frames follow. */
#define HTTP_SWITCHING \
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: berth/1\r\n\r\n"

/* Appends a complete plain-text 200. -ENOMEM. */
int http_answer_text(struct buffer *b, const char *text, bool head_only);

/* Appends a complete problem document (RFC 9457). Its members retry (would the same request
 * succeed later?) and effect ("none": nothing was done) are ours. fields: further header
 * lines, each ending in CRLF, or "". -ENOMEM. */
int http_answer_problem(struct buffer *b, int status, const char *detail, const char *fields);
