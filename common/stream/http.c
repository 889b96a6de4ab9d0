#include "stream/http.h"

#include <http_parser.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"

/* The fields that matter; others are parsed and forgotten. */
enum field {
    FIELD_OTHER,
    FIELD_HOST,
    FIELD_CONNECTION,
    FIELD_UPGRADE,
    FIELD_AUTHORIZATION,
    FIELD_TRANSFER_ENCODING,
};
#define FIELD_COUNT (FIELD_TRANSFER_ENCODING + 1)
#define FIELD_NAME_MAX 32 /* longer than any name that matters */

struct http_reader {
    http_parser parser;
    struct http_request request;
    size_t taken; /* bytes so far */
    struct buffer target;
    char name[FIELD_NAME_MAX];
    size_t name_len; /* may exceed the array: then it is no name that matters */
    bool in_value;
    bool line_ended; /* the last byte was a line feed */
    enum field field;
    struct buffer values[FIELD_COUNT];
    unsigned seen[FIELD_COUNT];
    int error;  /* of a callback */
    bool ended; /* nothing more is taken */
    bool complete;
};

static enum field field_of(const struct http_reader *r)
{
    static const char *const names[FIELD_COUNT] = {
        [FIELD_HOST] = "host",
        [FIELD_CONNECTION] = "connection",
        [FIELD_UPGRADE] = "upgrade",
        [FIELD_AUTHORIZATION] = "authorization",
        [FIELD_TRANSFER_ENCODING] = "transfer-encoding",
    };
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (names[i] && strlen(names[i]) == r->name_len &&
            strncasecmp(names[i], r->name, r->name_len) == 0)
            return (enum field)i;
    return FIELD_OTHER;
}

static int reader_append(struct http_reader *r, struct buffer *b, const char *data, size_t len)
{
    r->error = buffer_append(b, data, len);
    return r->error < 0 ? -1 : 0;
}

static int on_url(http_parser *p, const char *data, size_t len)
{
    struct http_reader *r = p->data;
    return reader_append(r, &r->target, data, len);
}

static int on_header_field(http_parser *p, const char *data, size_t len)
{
    struct http_reader *r = p->data;
    if (r->in_value) {
        r->in_value = false;
        r->name_len = 0;
    }
    /* White space in or behind a name: RFC 9112 5.1, for the reason given at folded(). */
    if (memchr(data, ' ', len) || memchr(data, '\t', len)) {
        r->error = -EBADMSG;
        return -1;
    }
    for (size_t i = 0; i < len && r->name_len + i < sizeof r->name; i++)
        r->name[r->name_len + i] = data[i];
    r->name_len += len;
    return 0;
}

static int on_header_value(http_parser *p, const char *data, size_t len)
{
    struct http_reader *r = p->data;
    if (!r->in_value) {
        r->in_value = true;
        r->field = field_of(r);
        r->seen[r->field]++;
        /* The same list field given twice is one list. */
        if (r->values[r->field].len > 0 && reader_append(r, &r->values[r->field], ",", 1) < 0)
            return -1;
    }
    if (r->field == FIELD_OTHER)
        return 0;
    return reader_append(r, &r->values[r->field], data, len);
}

/* Is `token` an element of a comma-separated list (RFC 9110 5.6.1), case ignored? */
static bool list_has(struct bytes list, const char *token)
{
    size_t len = strlen(token);
    size_t i = 0;
    while (i < list.len) {
        const uint8_t *comma = memchr(list.data + i, ',', list.len - i);
        size_t end = comma ? (size_t)(comma - list.data) : list.len;
        size_t from = i, to = end;
        while (from < to && (list.data[from] == ' ' || list.data[from] == '\t'))
            from++;
        while (to > from && (list.data[to - 1] == ' ' || list.data[to - 1] == '\t'))
            to--;
        if (to - from == len && strncasecmp((const char *)list.data + from, token, len) == 0)
            return true;
        i = end + 1;
    }
    return false;
}

static int on_headers_complete(http_parser *p)
{
    struct http_reader *r = p->data;
    struct http_request *q = &r->request;
    (void)snprintf(q->method, sizeof q->method, "%s", http_method_str(p->method));
    const uint8_t *query = r->target.len ? memchr(r->target.data, '?', r->target.len) : NULL;
    size_t len = query ? (size_t)(query - r->target.data) : r->target.len;
    if (len >= sizeof q->path)
        len = sizeof q->path - 1;
    if (len > 0)
        memcpy(q->path, r->target.data, len);
    q->path[len] = '\0';
    q->http_1_1 = p->http_major == 1 && p->http_minor == 1;
    q->body = (p->flags & F_CHUNKED) || (p->content_length != 0 && p->content_length != UINT64_MAX);
    /* An HTTP/1.0 Upgrade is to be ignored (RFC 9110 7.8). */
    q->upgrade = q->http_1_1 && r->seen[FIELD_UPGRADE] > 0 &&
                 list_has(buffer_view(&r->values[FIELD_CONNECTION]), "upgrade");
    q->upgrade_berth = q->upgrade && list_has(buffer_view(&r->values[FIELD_UPGRADE]), "berth/1");
    q->authorization = buffer_view(&r->values[FIELD_AUTHORIZATION]);
    /* RFC 9112 3.2: exactly one Host. Two credentials are one too many to judge by. No request
     * here has a body, and a proxy may read one's length otherwise than we would. */
    if ((q->http_1_1 && r->seen[FIELD_HOST] != 1) || r->seen[FIELD_AUTHORIZATION] > 1 ||
        p->http_major != 1)
        r->error = -EBADMSG;
    else if (r->seen[FIELD_TRANSFER_ENCODING] > 0)
        r->error = -EPROTO;
    r->complete = true;
    /* 2: what follows is not HTTP; the parser stops right behind the header. */
    return 2;
}

static const http_parser_settings settings = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
};

int http_reader_new(struct http_reader **ret)
{
    struct http_reader *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    http_parser_init(&r->parser, HTTP_REQUEST);
    r->parser.data = r;
    *ret = r;
    return 0;
}

void http_reader_free(struct http_reader *r)
{
    if (!r)
        return;
    struct buffer *secret = &r->values[FIELD_AUTHORIZATION];
    if (secret->data)
        explicit_bzero(secret->data, secret->allocated);
    for (size_t i = 0; i < FIELD_COUNT; i++)
        buffer_release(&r->values[i]);
    buffer_release(&r->target);
    free(r);
}

/* A line that begins with white space: a folded field (RFC 9112 5.2). Proxies read it in several
 * ways; refusing it stops a request from being one thing to them and another to us. */
static bool folded(struct http_reader *r, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (r->line_ended && (data[i] == ' ' || data[i] == '\t'))
            return true;
        r->line_ended = data[i] == '\n';
    }
    return false;
}

int http_reader_feed(struct http_reader *r, const void *data, size_t len, size_t *ret_used)
{
    if (r->ended)
        return -EBADMSG;
    if (len == 0) /* means end of stream to the parser */
        return 0;
    size_t room = HTTP_HEADER_MAX - r->taken;
    size_t take = len < room ? len : room;
    size_t used = http_parser_execute(&r->parser, &settings, data, take);
    r->taken += used;
    enum http_errno error = HTTP_PARSER_ERRNO(&r->parser);
    /* First, so that the answer does not depend on how the bytes came: the parser may have gone on
     * beyond such a line. */
    if (folded(r, data, used))
        r->error = -EPROTO;
    if (r->error < 0) {
        r->ended = true;
        return r->error;
    }
    if (error != HPE_OK) {
        r->ended = true;
        return error == HPE_HEADER_OVERFLOW ? -EMSGSIZE : -EBADMSG;
    }
    if (r->complete) {
        r->ended = true;
        *ret_used = used;
        return 1;
    }
    if (r->taken == HTTP_HEADER_MAX) {
        r->ended = true;
        return -EMSGSIZE;
    }
    *ret_used = used;
    return 0;
}

const struct http_request *http_reader_request(const struct http_reader *r)
{
    return &r->request;
}

bool http_reader_untouched(const struct http_reader *r)
{
    return r->taken == 0;
}

int http_answer_text(struct buffer *b, const char *text, bool head_only)
{
    return buffer_printf(b,
                         "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
                         "Content-Length: %zu\r\nCache-Control: no-store\r\n"
                         "Connection: close\r\n\r\n%s",
                         strlen(text), head_only ? "" : text);
}

static const char *status_title(int status)
{
    switch (status) {
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 426:
        return "Upgrade Required";
    case 431:
        return "Request Header Fields Too Large";
    case 503:
        return "Service Unavailable";
    }
    return "Error";
}

/* JSON string content. Details are our own text, in which bytes of the peer's are already
 * escaped by log_escape: what is left to escape here is the backslashes of that and quotes. */
static int append_json(struct buffer *b, const char *text)
{
    for (; *text; text++) {
        int r;
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            r = buffer_printf(b, "\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            r = buffer_printf(b, "\\u%04x", c);
        else
            r = buffer_append_u8(b, c);
        if (r < 0)
            return r;
    }
    return 0;
}

int http_answer_problem(struct buffer *b, int status, const char *detail, const char *fields)
{
    _cleanup_buffer_ struct buffer body = {0};
    int r = buffer_printf(&body,
                          "{\"type\":\"about:blank\",\"title\":\"%s\",\"status\":%d,"
                          "\"detail\":\"",
                          status_title(status), status);
    if (r == 0)
        r = append_json(&body, detail);
    if (r == 0)
        r = buffer_printf(&body, "\",\"retry\":%s,\"effect\":\"none\"}\n",
                          status == 503 || status == 429 ? "true" : "false");
    if (r < 0)
        return r;
    return buffer_printf(b,
                         "HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\n"
                         "Content-Length: %zu\r\nCache-Control: no-store\r\n"
                         "Connection: %s\r\n%s\r\n%.*s",
                         status, status_title(status), body.len,
                         status == 426 ? "close, Upgrade" : "close", fields, (int)body.len,
                         (const char *)body.data);
}
