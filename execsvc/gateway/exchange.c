#include "gateway/private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/units.h"

/* --- the target ------------------------------------------------------------------------------ */

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Appends text percent-decoded, and a NUL. -EINVAL: a NUL in it, or no escape. */
static int append_decoded(struct buffer *b, struct bytes text, bool plus)
{
    int r = buffer_reserve(b, text.len + 1);
    for (size_t i = 0; r == 0 && i < text.len; i++) {
        int c = text.data[i];
        if (c == '%') {
            int high = i + 2 < text.len ? hex((char)text.data[i + 1]) : -1;
            int low = i + 2 < text.len ? hex((char)text.data[i + 2]) : -1;
            if (high < 0 || low < 0)
                return -EINVAL;
            c = high << 4 | low;
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        r = c == 0 ? -EINVAL : buffer_append_u8(b, (uint8_t)c);
    }
    return r < 0 ? r : buffer_append_u8(b, 0);
}

static int decode_query(struct exchange *x, const char *text)
{
    int r = 0;
    while (r == 0 && *text) {
        size_t len = strcspn(text, "&");
        size_t name = strcspn(text, "=&");
        if (len > 0) {
            r = append_decoded(&x->query, bytes_of(text, name), true);
            if (r == 0)
                r = append_decoded(&x->query,
                                   name < len ? bytes_of(text + name + 1, len - name - 1)
                                              : (struct bytes){0},
                                   true);
            x->query_count++;
        }
        text += text[len] == '&' ? len + 1 : len;
    }
    return r;
}

/* The target without scheme and authority (RFC 9112 3.2.2), which are not looked at. NULL: it is
 * none that has a path. */
static const char *path_of(const char *target)
{
    for (const char *p = target; *p; p++)
        if (*p <= ' ' || *p >= 0x7f || *p == '#')
            return NULL;
    if (target[0] == '/')
        return target;
    const char *authority = strstr(target, "://");
    return authority && authority < target + 8 ? strchr(authority + 3, '/') : NULL;
}

int exchange_begin_request(struct exchange *x, struct failure *f)
{
    struct route_match match;
    char allow[ROUTE_ALLOW_MAX];
    const char *at = path_of(x->request->target);
    if (!at) {
        exchange_close(x); /* CONNECT, or what somebody else may take for another target */
        return failure_set(f, -EINVAL, "the request's target has no path");
    }
    size_t len = strcspn(at, "?");
    _cleanup_free_ char *path = strndup(at, len);
    if (!path)
        return failure_set(f, -ENOMEM, "out of memory");
    x->route = route_find(x->request->method, path, &match, allow);
    if (!x->route && !allow[0])
        return exchange_refuse(x, 404, "there is nothing at %.200s", path);
    if (!x->route) {
        int r = exchange_add_field(x, "Allow", "%s", allow);
        return r < 0 ? r : exchange_refuse(x, 405, "%s is answered here", allow);
    }
    int r = at[len] == '?' ? decode_query(x, at + len + 1) : 0;
    for (size_t i = 0; r == 0 && i < match.param_count; i++) {
        r = append_decoded(&x->params[i], match.params[i], false);
        x->param_count++;
    }
    if (r < 0)
        return failure_set(f, r, "the request's target has a wrong percent-encoding");
    r = exchange_check_credentials(x, f);
    return r < 0 ? r : exchange_admit(x, f);
}

const char *exchange_method(const struct exchange *x)
{
    return exchange_is_head(x) ? "GET" : x->request->method;
}

bool exchange_is_head(const struct exchange *x)
{
    return x->request && strcmp(x->request->method, "HEAD") == 0;
}

struct bytes exchange_param(const struct exchange *x, size_t n)
{
    return n < x->param_count ? bytes_of(x->params[n].data, x->params[n].len - 1)
                              : (struct bytes){0};
}

const char *exchange_param_string(const struct exchange *x, size_t n)
{
    return n < x->param_count ? (const char *)x->params[n].data : "";
}

const char *exchange_query_nth(const struct exchange *x, const char *name, size_t n)
{
    const char *at = (const char *)x->query.data;
    for (size_t i = 0; i < x->query_count; i++) {
        const char *value = at + strlen(at) + 1;
        if (strcmp(at, name) == 0 && n-- == 0)
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

const char *exchange_query(const struct exchange *x, const char *name)
{
    return exchange_query_nth(x, name, 0);
}

int exchange_query_u64(struct exchange *x, const char *name, uint64_t min, uint64_t max,
                       uint64_t *ret, struct failure *f)
{
    const char *text = exchange_query(x, name);
    char *end;
    if (!text)
        return 0;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || value < min || value > max)
        return failure_set(f, -EINVAL, "%s is a number from %llu to %llu", name,
                           (unsigned long long)min, (unsigned long long)max);
    *ret = value;
    return 0;
}

const char *exchange_field(const struct exchange *x, const char *name)
{
    return http_reader_field(x->reader, name);
}

bool exchange_field_at(const struct exchange *x, size_t n, const char **ret_name,
                       const char **ret_value)
{
    return http_reader_field_at(x->reader, n, ret_name, ret_value);
}

/* --- the body -------------------------------------------------------------------------------- */

bool exchange_has_body(const struct exchange *x)
{
    return x->request->body;
}

uint64_t exchange_body_size(const struct exchange *x)
{
    return x->request->chunked ? UINT64_MAX : x->request->length;
}

static int send_continue(struct exchange *x)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct iovec part = {.iov_base = (void *)(uintptr_t)text, .iov_len = sizeof text - 1};
    if (x->continued || !x->request->expects_continue || x->status)
        return 0;
    x->continued = true;
    return conversation_send(x->conversation, &part, 1);
}

int exchange_next(struct exchange *x, struct bytes *ret, struct failure *f)
{
    struct conversation *c = x->conversation;
    struct bytes content = {0};
    int r = 0;
    while (content.len == 0 && !http_body_ended(&x->body)) {
        struct bytes in = conversation_input(c);
        if (in.len == 0) {
            r = send_continue(x);
            if (r == 0)
                r = conversation_receive(c, CONVERSATION_STALL_S * 1000);
            if (r == -ETIMEDOUT) {
                exchange_close(x);
                return exchange_refuse(x, 408, "no more of the request's body came for %d seconds",
                                       CONVERSATION_STALL_S);
            }
            if (r < 0) {
                exchange_close(x);
                return failure_set(f, -ECONNABORTED, "the client has gone amid its request");
            }
            continue;
        }
        size_t used = 0;
        r = http_body_feed(&x->body, in.data, in.len, &used, &content);
        if (r < 0) {
            exchange_close(x);
            return failure_set(f, -EBADMSG, "the request's body is not in chunks as it says");
        }
        conversation_take(c, used);
    }
    x->received += content.len;
    *ret = content;
    return content.len > 0;
}

int exchange_read_all(struct exchange *x, size_t max, struct buffer *ret, struct failure *f)
{
    struct bytes part;
    int r = 0;
    if (!x->request->chunked && x->request->length > max)
        return failure_set(f, -EMSGSIZE, "the request's body is larger than %zu bytes", max);
    while (r == 0 && (r = exchange_next(x, &part, f)) > 0) {
        r = part.len > max - ret->len
                ? failure_set(f, -EMSGSIZE, "the request's body is larger than %zu bytes", max)
                : buffer_append(ret, part.data, part.len);
        if (r == -ENOMEM)
            return failure_set(f, r, "out of memory");
    }
    return r;
}

static bool is_json(const char *type)
{
    size_t len = strcspn(type, "; \t");
    return (len == 16 && strncasecmp(type, "application/json", len) == 0) ||
           (len > 5 && strncasecmp(type + len - 5, "+json", 5) == 0);
}

int exchange_read_json(struct exchange *x, size_t max, json_t **ret, struct failure *f)
{
    _cleanup_buffer_ struct buffer body = {0};
    json_error_t error;
    const char *type = exchange_field(x, "content-type");
    /* A form or plain text is what a page of any site can make a browser send. */
    if (type && !(x->route->flags & (ROUTE_E2B | ROUTE_CONNECT | ROUTE_STREAM)) && !is_json(type))
        return exchange_refuse(x, 415, "application/json is taken here");
    int r = exchange_read_all(x, max, &body, f);
    if (r < 0)
        return r;
    json_t *value =
        body.len > 0 ? json_loadb((const char *)body.data, body.len, JSON_REJECT_DUPLICATES, &error)
                     : json_object();
    if (!value && body.len == 0)
        return failure_set(f, -ENOMEM, "out of memory");
    if (!value)
        return failure_set(f, -EINVAL, "the request's body is not JSON: line %d: %s", error.line,
                           strstr(error.text, "JSON_ALLOW_NUL") ? "a string has a NUL in it"
                                                                : error.text);
    if (!json_is_object(value)) {
        json_decref(value);
        return failure_set(f, -EINVAL, "the request's body is not a JSON object");
    }
    *ret = value;
    return 0;
}

/* For the next request: what is left of the body, if it is little and there already. */
static void skip_body(struct exchange *x)
{
    struct conversation *c = x->conversation;
    uint64_t left = EXCHANGE_UNREAD_MAX;
    while (!c->closing && !http_body_ended(&x->body)) {
        struct bytes in = conversation_input(c), content;
        size_t used = 0;
        bool waits = x->request->expects_continue && !x->continued;
        if (in.len == 0 && (waits || conversation_receive(c, 1000) < 0)) {
            exchange_close(x);
            return;
        }
        in = conversation_input(c);
        if (http_body_feed(&x->body, in.data, in.len, &used, &content) < 0 || used > left) {
            exchange_close(x);
            return;
        }
        conversation_take(c, used);
        left -= used;
    }
}

/* --- the end --------------------------------------------------------------------------------- */

void exchange_set_effect(struct exchange *x, enum exchange_effect effect)
{
    x->effect = effect;
}

void exchange_close(struct exchange *x)
{
    x->conversation->closing = true;
}

int exchange_client_fd(const struct exchange *x)
{
    return x->conversation->fd;
}

void exchange_release(struct exchange *x)
{
    if (x->request && !x->conversation->closing)
        skip_body(x);
    for (size_t i = 0; i < ROUTE_PARAMS_MAX; i++)
        buffer_release(&x->params[i]);
    buffer_release(&x->query);
    buffer_release(&x->tags[0]);
    buffer_release(&x->tags[1]);
    buffer_release(&x->fields);
    buffer_release(&x->head);
    buffer_release(&x->content);
    if (x->token)
        explicit_bzero(x->token, strlen(x->token));
    free(x->token);
    http_reader_free(x->reader);
}
