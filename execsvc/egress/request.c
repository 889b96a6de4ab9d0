#include "egress/request.h"

#include <http_parser.h>
#include <stdio.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "egress/message.h"

/* Longest part of a target that an answer shows. */
#define SHOWN_MAX 100

/* Fields that are for the next hop alone, beside those that Connection names (RFC 9110 7.6.1), and
 * Host, which is made anew. Transfer-Encoding stays with the body that it tells of. */
static const char *const dropped[] = {
    "connection",       "host", "keep-alive", "proxy-authenticate", "proxy-authorization",
    "proxy-connection", "te",   "upgrade",
};

struct field {
    struct bytes name;
    struct bytes value;
};

/* More than any client sends; with it, what is done for each of them is bounded. */
#define FIELDS_MAX 128

struct reading {
    struct bytes target;
    struct field fields[FIELDS_MAX];
    size_t count;
    bool in_value;
    const char *why;
    char method[16];
    bool http_1_1;
    bool complete;
};

int egress_request_find_end(struct bytes data, size_t *at)
{
    /* Empty lines before it are to be ignored (RFC 9112 2.2), but nobody sends them to a proxy. */
    for (size_t i = *at; i < data.len; i++) {
        uint8_t c = data.data[i];
        if (i == EGRESS_HEAD_MAX)
            return -EMSGSIZE;
        if (c == 0 || (c == '\n' && (i == 0 || data.data[i - 1] != '\r')) ||
            (c != '\n' && i > 0 && data.data[i - 1] == '\r'))
            return -EBADMSG;
        if (c == '\n' && i >= 3 && data.data[i - 2] == '\n') {
            *at = i + 1;
            return 1;
        }
        if (i == 1 && c == '\n')
            return -EBADMSG;
    }
    *at = data.len;
    return 0;
}

/* --- the parser's callbacks ------------------------------------------------------------------ */

/* The header is in one piece, and so is everything that is told of. */
static int on_url(http_parser *p, const char *data, size_t len)
{
    struct reading *r = p->data;
    r->target = bytes_of(data, len);
    return 0;
}

static int on_name(http_parser *p, const char *data, size_t len)
{
    struct reading *r = p->data;
    if (r->count == FIELDS_MAX) {
        r->why = "too many header fields";
        return -1;
    }
    /* RFC 9112 5.1: proxies read such a name in several ways. */
    if (memchr(data, ' ', len) || memchr(data, '\t', len)) {
        r->why = "white space in the name of a header field";
        return -1;
    }
    r->fields[r->count++].name = bytes_of(data, len);
    return 0;
}

static int on_value(http_parser *p, const char *data, size_t len)
{
    struct reading *r = p->data;
    r->fields[r->count - 1].value = bytes_of(data, len);
    return 0;
}

static int on_head(http_parser *p)
{
    struct reading *r = p->data;
    (void)snprintf(r->method, sizeof r->method, "%s", http_method_str(p->method));
    r->complete = true;
    r->http_1_1 = p->http_major == 1 && p->http_minor == 1;
    if (p->http_major != 1)
        r->why = "this is not HTTP/1";
    return 2; /* a body is somebody else's */
}

static const http_parser_settings callbacks = {
    .on_url = on_url,
    .on_header_field = on_name,
    .on_header_value = on_value,
    .on_headers_complete = on_head,
};

/* --- fields ---------------------------------------------------------------------------------- */

static bool is_named(struct bytes name, const char *other)
{
    return name.len == strlen(other) && strncasecmp((const char *)name.data, other, name.len) == 0;
}

static size_t count_fields(const struct reading *r, const char *name, struct bytes *ret_value)
{
    size_t n = 0;
    for (size_t i = 0; i < r->count; i++) {
        if (!is_named(r->fields[i].name, name))
            continue;
        *ret_value = r->fields[i].value;
        n++;
    }
    return n;
}

/* Does a Connection field name it? */
static bool is_for_this_hop(const struct reading *r, struct bytes name)
{
    for (size_t i = 0; i < r->count; i++) {
        if (!is_named(r->fields[i].name, "connection"))
            continue;
        struct bytes list = r->fields[i].value;
        for (size_t at = 0; at < list.len;) {
            while (at < list.len && strchr(" \t,", list.data[at]))
                at++;
            size_t end = at;
            while (end < list.len && !strchr(" \t,", list.data[end]))
                end++;
            if (end - at == name.len &&
                strncasecmp((const char *)list.data + at, (const char *)name.data, name.len) == 0)
                return true;
            at = end;
        }
    }
    return false;
}

/* Those that say how long the body is. Nobody can have them taken away. */
static bool is_framing(struct bytes name)
{
    return is_named(name, "content-length") || is_named(name, "transfer-encoding");
}

static bool is_dropped(const struct reading *r, struct bytes name)
{
    for (size_t i = 0; i < ARRAY_SIZE(dropped); i++)
        if (is_named(name, dropped[i]))
            return true;
    return !is_framing(name) && is_for_this_hop(r, name);
}

static const char *check_fields(const struct reading *r, bool connect)
{
    struct bytes value = {0};
    size_t hosts = count_fields(r, "host", &value);
    if (hosts > 1 || (hosts == 0 && r->http_1_1 && !connect))
        return hosts ? "more than one Host field" : "no Host field";
    size_t lengths = count_fields(r, "content-length", &value);
    size_t encodings = count_fields(r, "transfer-encoding", &value);
    if (connect && lengths + encodings > 0)
        return "CONNECT has no body";
    if (lengths + encodings > 1)
        return "more than one length of the body";
    if (encodings == 1 && !is_named(value, "chunked"))
        return "the only Transfer-Encoding that is taken is chunked";
    return NULL;
}

/* --- targets --------------------------------------------------------------------------------- */

static int parse_port(struct bytes text, uint16_t *ret)
{
    unsigned port = 0;
    if (text.len == 0 || text.len > 5 || text.data[0] == '0')
        return -EINVAL;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9')
            return -EINVAL;
        port = 10 * port + (unsigned)(text.data[i] - '0');
    }
    if (port > UINT16_MAX)
        return -EINVAL;
    *ret = (uint16_t)port;
    return 0;
}

/* HOST:PORT, or HOST with a default port. */
static int parse_authority(struct bytes text, uint16_t default_port, struct egress_request *ret,
                           const char **ret_why)
{
    size_t end = text.len;
    const uint8_t *bracket = memrchr(text.data, ']', text.len);
    const uint8_t *colon = memrchr(text.data, ':', text.len);
    *ret_why = "no port";
    ret->port = default_port;
    if (memchr(text.data, '@', text.len)) {
        *ret_why = "user names have no place here";
        return -EINVAL;
    }
    if (colon && (!bracket || colon > bracket)) {
        end = (size_t)(colon - text.data);
        *ret_why = "the port is no number from 1 to 65535";
        if (parse_port(bytes_of(colon + 1, text.len - end - 1), &ret->port) < 0)
            return -EINVAL;
    }
    if (ret->port == 0)
        return -EINVAL;
    return allow_host_parse(bytes_of(text.data, end), &ret->host, ret_why);
}

static int parse_url(struct bytes url, struct egress_request *ret, struct bytes *ret_path,
                     const char **ret_why)
{
    static const char scheme[] = "http://";
    size_t from = sizeof scheme - 1;
    *ret_why = "a proxy is asked by CONNECT HOST:PORT, or for a whole URL http://...";
    if (url.len < from || strncasecmp((const char *)url.data, scheme, from) != 0)
        return -EINVAL;
    size_t end = from;
    while (end < url.len && !strchr("/?#", url.data[end]))
        end++;
    *ret_path = bytes_of(url.data + end, url.len - end);
    if (memchr(ret_path->data, '#', ret_path->len)) {
        *ret_why = "a fragment (#) is nothing to be sent";
        return -EINVAL;
    }
    return parse_authority(bytes_of(url.data + from, end - from), 80, ret, ret_why);
}

static int append_host(const struct egress_request *q, struct buffer *b)
{
    bool brackets = q->host.is_address && q->host.address.family == AF_INET6;
    int r =
        buffer_printf(b, "Host: %s%s%s", brackets ? "[" : "", q->host.name, brackets ? "]" : "");
    if (r == 0 && q->port != 80)
        r = buffer_printf(b, ":%u", q->port);
    return r < 0 ? r : buffer_append(b, "\r\n", 2);
}

/* The header for the server. One request is sent on a connection, so that nothing that its client
 * sends behind it, for another server, goes to this one. */
static int write_forward(const struct reading *r, struct bytes path, struct egress_request *q)
{
    struct buffer *b = &q->forward;
    const char *lead = "";
    if (path.len == 0 && strcmp(q->method, "OPTIONS") == 0)
        lead = "*";
    else if (path.len == 0 || path.data[0] != '/')
        lead = "/";
    int result = buffer_printf(b, "%s %s", q->method, lead);
    if (result == 0)
        result = buffer_append(b, path.data, path.len);
    if (result == 0)
        result = buffer_printf(b, " HTTP/1.%d\r\n", r->http_1_1);
    if (result == 0)
        result = append_host(q, b);
    for (size_t i = 0; i < r->count && result == 0; i++) {
        const struct field *f = &r->fields[i];
        if (!is_dropped(r, f->name))
            result =
                buffer_printf(b, "%.*s: %.*s\r\n", (int)f->name.len, f->name.data,
                              (int)f->value.len, f->value.len ? (const char *)f->value.data : "");
    }
    if (result == 0)
        result = buffer_printf(b, "Via: 1.%d berth\r\nConnection: close\r\n\r\n", r->http_1_1);
    return result;
}

static int parse_target(const struct reading *r, struct egress_request *q, const char **ret_why)
{
    struct bytes path = {0};
    q->connect = strcmp(r->method, "CONNECT") == 0;
    q->head = strcmp(r->method, "HEAD") == 0;
    memcpy(q->method, r->method, sizeof q->method);
    *ret_why = check_fields(r, q->connect);
    if (*ret_why)
        return -EINVAL;
    if (q->connect)
        return parse_authority(r->target, 0, q, ret_why);
    int result = parse_url(r->target, q, &path, ret_why);
    if (result == 0)
        result = write_forward(r, path, q);
    if (result < 0)
        return result;
    /* Where it ends is looked for as it passes by: it must be found there what was found here. */
    struct message m;
    message_begin_request(&m);
    *ret_why = "the length of the body cannot be told";
    return message_feed(&m, q->forward.data, q->forward.len) == q->forward.len && !m.broken
               ? 0
               : -EINVAL;
}

int egress_request_parse(struct bytes head, struct egress_request *ret, char *ret_why,
                         size_t why_size)
{
    char shown[SHOWN_MAX];
    http_parser parser;
    struct reading *reading = calloc(1, sizeof *reading);
    struct egress_request q = {0};
    int r = reading ? 0 : -ENOMEM;
    const char *why = "this is no HTTP request";
    if (r == 0) {
        http_parser_init(&parser, HTTP_REQUEST);
        parser.data = reading;
        size_t used = http_parser_execute(&parser, &callbacks, (const char *)head.data, head.len);
        if (reading->why)
            why = reading->why;
        /* A line that begins with white space is a folded field (RFC 9112 5.2), which proxies read
         * in several ways. */
        if (memmem(head.data, head.len, "\n ", 2) || memmem(head.data, head.len, "\n\t", 2))
            why = "a folded header field";
        else if (used == head.len && HTTP_PARSER_ERRNO(&parser) == HPE_OK && !reading->why &&
                 reading->complete && reading->target.len > 0)
            why = NULL;
        if (why)
            r = -EINVAL;
    }
    if (r == 0)
        r = parse_target(reading, &q, &why);
    if (r == -EINVAL) {
        const struct bytes target = reading->target;
        (void)snprintf(ret_why, why_size, "%s%s%s",
                       log_escape(target.data, target.len, shown, sizeof shown),
                       target.len ? ": " : "", why);
    }
    free(reading);
    if (r < 0)
        egress_request_release(&q);
    else
        *ret = q;
    return r;
}

void egress_request_release(struct egress_request *r)
{
    buffer_release(&r->forward);
}
