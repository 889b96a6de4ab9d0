#include "stream/private.h"

#include <errno.h>
#include <http_parser.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"

#define PROTOCOL "berth/1"

/* The answer while it is parsed. */
struct answer {
    char name[32]; /* of the header line being read; longer names are none we look for */
    size_t name_len;
    char value[64];
    size_t value_len;
    unsigned retry_s; /* Retry-After */
    bool in_value;
    bool upgrades; /* Upgrade: berth/1 */
    bool headers_done;
    bool done;
    struct buffer body; /* its start */
    bool no_memory;
};

static bool is_named(const struct answer *a, const char *name)
{
    return a->in_value && a->name_len == strlen(name) &&
           strncasecmp(a->name, name, a->name_len) == 0;
}

static void end_header(struct answer *a)
{
    if (is_named(a, "upgrade") && a->value_len == strlen(PROTOCOL) &&
        memcmp(a->value, PROTOCOL, a->value_len) == 0)
        a->upgrades = true;
    if (is_named(a, "retry-after") && a->value_len < 6) {
        a->value[a->value_len] = '\0';
        a->retry_s = (unsigned)strtoul(a->value, NULL, 10);
    }
    a->name_len = 0;
    a->value_len = 0;
    a->in_value = false;
}

/* Appends what fits, but counts all of it, so that a longer text equals no shorter one. */
static void append_part(char *to, size_t size, size_t *len, const char *from, size_t count)
{
    if (*len < size)
        memcpy(to + *len, from, count < size - *len ? count : size - *len);
    *len += count;
}

static int on_name(http_parser *p, const char *at, size_t len)
{
    struct answer *a = p->data;
    if (a->in_value)
        end_header(a);
    append_part(a->name, sizeof a->name, &a->name_len, at, len);
    return 0;
}

static int on_value(http_parser *p, const char *at, size_t len)
{
    struct answer *a = p->data;
    a->in_value = true;
    append_part(a->value, sizeof a->value, &a->value_len, at, len);
    return 0;
}

static int on_headers(http_parser *p)
{
    struct answer *a = p->data;
    end_header(a);
    a->headers_done = true;
    return 0;
}

static int on_body(http_parser *p, const char *at, size_t len)
{
    struct answer *a = p->data;
    size_t room = UPGRADE_BODY_MAX - a->body.len;
    if (buffer_append(&a->body, at, len < room ? len : room) < 0)
        a->no_memory = true;
    return 0;
}

static int on_message(http_parser *p)
{
    struct answer *a = p->data;
    a->done = true;
    return 0;
}

static const http_parser_settings answer_callbacks = {
    .on_header_field = on_name,
    .on_header_value = on_value,
    .on_headers_complete = on_headers,
    .on_body = on_body,
    .on_message_complete = on_message,
};

static int send_request(struct stream *s, const struct stream_options *o)
{
    _cleanup_buffer_ struct buffer request = {0};
    int r = buffer_printf(&request, "GET /v1/stream HTTP/1.1\r\nHost: ");
    if (r == 0 && s->parts.host[0])
        r = buffer_printf(&request, "%s:%u", s->parts.host, s->parts.port);
    else if (r == 0)
        r = buffer_printf(&request, "localhost");
    if (r == 0)
        r = buffer_printf(&request, "\r\nUpgrade: " PROTOCOL "\r\nConnection: Upgrade\r\n"
                                    "User-Agent: berth/" BERTH_VERSION "\r\n");
    if (r == 0 && o->caller)
        r = buffer_printf(&request, "Berth-Caller: %s\r\n", o->caller);
    if (r == 0 && o->token)
        r = buffer_printf(&request, "Authorization: Bearer %s\r\n", o->token);
    if (r == 0)
        r = buffer_printf(&request, "\r\n");
    if (r == 0 && stream_is_local(s))
        r = buffer_append(&request, o->first.data, o->first.len);
    for (size_t sent = 0; r == 0 && sent < request.len;) {
        ssize_t n = stream_write(s, request.data + sent, request.len - sent);
        if (n == -EAGAIN)
            r = stream_wait(s, POLLOUT);
        else if (n < 0)
            r = (int)n;
        else
            sent += (size_t)n;
    }
    if (request.data)
        explicit_bzero(request.data, request.allocated); /* the token */
    return r;
}

/* The reason in a refusal's body: the detail of a problem document (RFC 9457). */
static void read_reason(const struct answer *a, char *text, size_t size)
{
    text[0] = '\0';
    json_t *problem = json_loadb((const char *)a->body.data, a->body.len, 0, NULL);
    const char *detail = json_string_value(json_object_get(problem, "detail"));
    if (!detail)
        detail = json_string_value(json_object_get(problem, "title"));
    if (detail)
        (void)log_escape(detail, strlen(detail), text, size);
    json_decref(problem);
}

/* Reads until the answer is complete or it is clear that there will be none. */
static int read_answer(struct stream *s, http_parser *p, struct answer *a, struct failure *f)
{
    char chunk[4096];
    uint8_t start[48]; /* for the text when it is not HTTP */
    size_t start_len = 0;
    size_t header_bytes = 0;
    while (!a->done) {
        ssize_t n = stream_read(s, chunk, sizeof chunk);
        if (n == -EAGAIN) {
            int r = stream_wait(s, POLLIN);
            if (r == -ETIMEDOUT && a->headers_done)
                return 0; /* the status is known; the rest of the body is not worth more */
            if (r == -ETIMEDOUT)
                return stream_failure_timeout(s, f);
            if (r < 0)
                return failure_set(f, r, "%s: cannot wait for the answer: %s", s->url,
                                   strerror(-r));
            continue;
        }
        if (n <= 0) {
            if (a->headers_done)
                return 0;
            return stream_failure_end(s, (int)n, start_len > 0, f);
        }
        size_t len = (size_t)n;
        stream_note_answer(s);
        if (start_len < sizeof start) {
            size_t more = len < sizeof start - start_len ? len : sizeof start - start_len;
            memcpy(start + start_len, chunk, more);
            start_len += more;
        }
        size_t used = http_parser_execute(p, &answer_callbacks, chunk, len);
        if (a->no_memory)
            return failure_set(f, -ENOMEM, "%s: out of memory", s->url);
        if (p->upgrade && HTTP_PARSER_ERRNO(p) == HPE_OK) {
            /* What follows the header are frames. */
            if (buffer_append(&s->early, chunk + used, len - used) < 0)
                return failure_set(f, -ENOMEM, "%s: out of memory", s->url);
            return 0;
        }
        if (HTTP_PARSER_ERRNO(p) != HPE_OK) {
            if (a->headers_done)
                return 0;
            return stream_failure_not_http(s, bytes_of(start, start_len), f);
        }
        header_bytes += len;
        if (!a->headers_done && header_bytes > UPGRADE_HEADER_MAX)
            return failure_set(f, -EPROTO,
                               "%s: the answer's header is longer than %d bytes; this is not a "
                               "Berth service. Check the URL",
                               s->url, UPGRADE_HEADER_MAX);
        if (a->body.len >= UPGRADE_BODY_MAX)
            return 0;
    }
    return 0;
}

int stream_upgrade(struct stream *s, const struct stream_options *o, struct failure *ret_failure)
{
    int r = send_request(s, o);
    if (r == -ETIMEDOUT)
        return stream_failure_timeout(s, ret_failure);
    if (r == -ENOMEM)
        return failure_set(ret_failure, r, "%s: out of memory", s->url);
    /* Another failure to send does not say why: the peer's refusal may be there to read. */
    http_parser parser;
    struct answer a = {0};
    http_parser_init(&parser, HTTP_RESPONSE);
    parser.data = &a;
    r = read_answer(s, &parser, &a, ret_failure);
    if (r == 0 && !(parser.status_code == 101 && parser.upgrade && a.upgrades)) {
        char reason[256];
        read_reason(&a, reason, sizeof reason);
        if (o->refusal) {
            *o->refusal =
                (struct stream_refusal){.status = parser.status_code, .retry_s = a.retry_s};
            (void)snprintf(o->refusal->reason, sizeof o->refusal->reason, "%s", reason);
        }
        r = stream_failure_status(s, parser.status_code, reason, ret_failure);
    }
    buffer_release(&a.body);
    return r;
}
