#include "stream/http.h"

#include <http_parser.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"

/* Fields of a request. Stops one of thousands from making each look at one slow. */
#define FIELDS_MAX 128

/* The fields that matter; others are parsed and forgotten. */
enum field {
    FIELD_OTHER,
    FIELD_HOST,
    FIELD_CONNECTION,
    FIELD_UPGRADE,
    FIELD_AUTHORIZATION,
    FIELD_TRANSFER_ENCODING,
    FIELD_CONTENT_LENGTH,
    FIELD_EXPECT,
    FIELD_SINGLE, /* must not be given twice: two readers might not take the same one */
};
#define FIELD_COUNT (FIELD_SINGLE + 1)

static const char *const single_fields[] = {
    "x-api-key",     "x-access-token", "content-type",     "content-encoding",
    "content-range", "e2b-sandbox-id", "e2b-sandbox-port", "berth-caller",
    "range",         "if-range",       "origin",           "sec-fetch-site",
};
#define FIELD_NAME_MAX 32 /* longer than any name that matters */

struct http_reader {
    http_parser parser;
    struct http_request request;
    size_t taken; /* bytes so far */
    struct buffer target;
    char name[FIELD_NAME_MAX];
    size_t name_len; /* may exceed the array: then it is no name that matters */
    bool in_value;
    bool twice;   /* a field that must not be */
    uint8_t last; /* byte, 0 at first */
    enum field field;
    struct buffer values[FIELD_COUNT]; /* not of OTHER and SINGLE */
    unsigned seen[FIELD_COUNT];
    struct buffer fields; /* of all: the name in lower case, NUL, the value, NUL */
    unsigned field_count;
    int error;  /* of a callback */
    bool ended; /* nothing more is taken */
    bool complete;
};

static bool is_named(const struct http_reader *r, const char *name)
{
    return strlen(name) == r->name_len && strncasecmp(name, r->name, r->name_len) == 0;
}

static enum field field_of(const struct http_reader *r)
{
    static const char *const names[FIELD_COUNT] = {
        [FIELD_HOST] = "host",
        [FIELD_CONNECTION] = "connection",
        [FIELD_UPGRADE] = "upgrade",
        [FIELD_AUTHORIZATION] = "authorization",
        [FIELD_TRANSFER_ENCODING] = "transfer-encoding",
        [FIELD_CONTENT_LENGTH] = "content-length",
        [FIELD_EXPECT] = "expect",
    };
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (names[i] && is_named(r, names[i]))
            return (enum field)i;
    for (size_t i = 0; i < ARRAY_SIZE(single_fields); i++)
        if (is_named(r, single_fields[i]))
            return FIELD_SINGLE;
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

/* White space behind a value is none of it (RFC 9110 5.5); the parser takes off what is before. */
static void trim(struct buffer *b)
{
    while (b->len > 0 && (b->data[b->len - 1] == ' ' || b->data[b->len - 1] == '\t'))
        b->len--;
}

static void end_value(struct http_reader *r)
{
    trim(&r->fields);
    trim(&r->values[r->field]);
    r->in_value = false;
    r->name_len = 0;
}

static int on_header_field(http_parser *p, const char *data, size_t len)
{
    struct http_reader *r = p->data;
    if (r->in_value)
        end_value(r);
    /* White space in or behind a name: RFC 9112 5.1, for the reason given at has_odd_line(). */
    if (memchr(data, ' ', len) || memchr(data, '\t', len)) {
        r->error = -EBADMSG;
        return -1;
    }
    for (size_t i = 0; i < len && r->name_len + i < sizeof r->name; i++)
        r->name[r->name_len + i] = data[i];
    if (r->name_len == 0 && r->field_count++ > 0 && reader_append(r, &r->fields, "", 1) < 0)
        return -1;
    r->name_len += len;
    for (size_t i = 0; i < len; i++) {
        const char c = data[i] >= 'A' && data[i] <= 'Z' ? (char)(data[i] - 'A' + 'a') : data[i];
        if (reader_append(r, &r->fields, &c, 1) < 0)
            return -1;
    }
    return 0;
}

const char *http_reader_field(const struct http_reader *r, const char *name)
{
    const char *at = (const char *)r->fields.data;
    for (unsigned i = 0; i < r->field_count; i++) {
        const char *value = at + strlen(at) + 1;
        if (strcmp(at, name) == 0)
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

bool http_reader_field_at(const struct http_reader *r, size_t n, const char **ret_name,
                          const char **ret_value)
{
    const char *at = (const char *)r->fields.data;
    if (n >= r->field_count)
        return false;
    for (; n > 0; n--) {
        at += strlen(at) + 1;
        at += strlen(at) + 1;
    }
    *ret_name = at;
    *ret_value = at + strlen(at) + 1;
    return true;
}

/* Whether a field of the name of the last, whose value has not begun, came before it. */
static bool named_before(const struct http_reader *r)
{
    const char *at = (const char *)r->fields.data;
    for (unsigned i = 1; i < r->field_count; i++) {
        if (is_named(r, at))
            return true;
        at += strlen(at) + 1;
        at += strlen(at) + 1;
    }
    return false;
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
        if (reader_append(r, &r->fields, "", 1) < 0)
            return -1;
        if (r->field == FIELD_SINGLE && r->field_count <= FIELDS_MAX && named_before(r))
            r->twice = true;
    }
    if (reader_append(r, &r->fields, data, len) < 0)
        return -1;
    if (r->field == FIELD_OTHER || r->field == FIELD_SINGLE)
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

/* How long the body is. 0, or -EPROTO: it may be read in two ways. */
static int judge_body(struct http_reader *r, const http_parser *p)
{
    struct http_request *q = &r->request;
    const struct bytes encoding = buffer_view(&r->values[FIELD_TRANSFER_ENCODING]);
    q->chunked = r->seen[FIELD_TRANSFER_ENCODING] > 0;
    if (q->chunked && (r->seen[FIELD_TRANSFER_ENCODING] > 1 || r->seen[FIELD_CONTENT_LENGTH] > 0 ||
                       !q->http_1_1 || encoding.len != strlen("chunked") ||
                       strncasecmp((const char *)encoding.data, "chunked", encoding.len) != 0))
        return -EPROTO;
    if (!q->chunked && r->seen[FIELD_CONTENT_LENGTH] > 0) {
        if (r->seen[FIELD_CONTENT_LENGTH] > 1 || p->content_length == UINT64_MAX)
            return -EPROTO;
        q->length = p->content_length;
    }
    q->body = q->chunked || q->length > 0;
    q->expects_continue =
        q->http_1_1 && q->body && list_has(buffer_view(&r->values[FIELD_EXPECT]), "100-continue");
    return 0;
}

static int on_headers_complete(http_parser *p)
{
    struct http_reader *r = p->data;
    struct http_request *q = &r->request;
    if (r->in_value)
        end_value(r);
    (void)snprintf(q->method, sizeof q->method, "%s", http_method_str(p->method));
    const uint8_t *query = r->target.len ? memchr(r->target.data, '?', r->target.len) : NULL;
    size_t len = query ? (size_t)(query - r->target.data) : r->target.len;
    if (len >= sizeof q->path)
        len = sizeof q->path - 1;
    if (len > 0)
        memcpy(q->path, r->target.data, len);
    q->path[len] = '\0';
    q->http_1_1 = p->http_major == 1 && p->http_minor == 1;
    q->keep_alive = q->http_1_1 && !list_has(buffer_view(&r->values[FIELD_CONNECTION]), "close");
    /* An HTTP/1.0 Upgrade is to be ignored (RFC 9110 7.8). */
    q->upgrade = q->http_1_1 && r->seen[FIELD_UPGRADE] > 0 &&
                 list_has(buffer_view(&r->values[FIELD_CONNECTION]), "upgrade");
    q->upgrade_berth = q->upgrade && list_has(buffer_view(&r->values[FIELD_UPGRADE]), "berth/1");
    q->authorization = buffer_view(&r->values[FIELD_AUTHORIZATION]);
    /* What a whole header is judged by is judged when it is whole, so that the answer does not
     * depend on how the bytes came. RFC 9112 3.2: exactly one Host. Two credentials are one too
     * many to judge by. */
    if ((q->http_1_1 && r->seen[FIELD_HOST] != 1) || r->seen[FIELD_AUTHORIZATION] > 1 ||
        p->http_major != 1)
        r->error = -EBADMSG;
    else if (r->field_count > FIELDS_MAX)
        r->error = -EMSGSIZE;
    else
        r->error = r->twice ? -EPROTO : judge_body(r, p);
    /* Strings, all of them. */
    if (r->error == 0 && ((r->field_count > 0 && reader_append(r, &r->fields, "", 1) < 0) ||
                          reader_append(r, &r->target, "", 1) < 0))
        return -1;
    q->target = (const char *)r->target.data;
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
    if (r->fields.data)
        explicit_bzero(r->fields.data, r->fields.allocated);
    buffer_release(&r->fields);
    free(r);
}

/* A line that begins with white space: a folded field (RFC 9112 5.2); or one that ends by a line
 * feed alone (2.2). Proxies read them in several ways; refusing them stops a request from being one
 * thing to them and another to us. */
static bool has_odd_line(struct http_reader *r, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if ((r->last == '\n' && (data[i] == ' ' || data[i] == '\t')) ||
            (data[i] == '\n' && r->last != '\r'))
            return true;
        r->last = (uint8_t)data[i];
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
    if (has_odd_line(r, data, used))
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
