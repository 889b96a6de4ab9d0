/* The answer of an exchange. */
#include "gateway/private.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#include "base/log.h"
#include "gateway/connect_rpc.h"
#include "gateway/e2b_shapes.h"
#include "gateway/problem.h"

/* Content that is gathered before it is sent. */
#define CONTENT_MAX (64u << 10)

/* --- the header ------------------------------------------------------------------------------ */

int exchange_add_field(struct exchange *x, const char *name, const char *format, ...)
{
    _cleanup_free_ char *value = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&value, format, args);
    va_end(args);
    if (n < 0)
        return -ENOMEM;
    x->cache_control = x->cache_control || strcmp(name, "Cache-Control") == 0;
    /* Anything else could end the line and start another. */
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return -EINVAL;
    return buffer_printf(&x->fields, "%s: %s\r\n", name, value);
}

static int make_head(struct exchange *x, int status, const char *type, uint64_t size)
{
    char date[64];
    struct tm tm;
    time_t now = time(NULL);
    bool http_1_1 = !x->request || x->request->http_1_1;
    x->bodyless = exchange_is_head(x) || status == 204 || status == 304;
    x->chunked = size == EXCHANGE_STREAM && http_1_1;
    if (size == EXCHANGE_STREAM && !http_1_1)
        exchange_close(x); /* the end of the stream is the connection's */
    if (!gmtime_r(&now, &tm) || strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm) == 0)
        return -EINVAL;
    int r = buffer_printf(&x->head, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, problem_title(status),
                          date);
    if (r == 0 && type)
        r = buffer_printf(&x->head, "Content-Type: %s\r\n", type);
    if (r == 0 && x->chunked)
        r = buffer_printf(&x->head, "Transfer-Encoding: chunked\r\n");
    else if (r == 0 && size != EXCHANGE_STREAM && status != 204 && status != 304)
        r = buffer_printf(&x->head, "Content-Length: %llu\r\n", (unsigned long long)size);
    /* A body that is not read, and not sent yet, is never read: the client may send it or not. */
    if (x->request && x->request->expects_continue && !x->continued)
        exchange_close(x);
    /* Nor is one that is so long. */
    if (x->request && !http_body_ended(&x->body) && x->body.left > EXCHANGE_UNREAD_MAX)
        exchange_close(x);
    if (r == 0 && !x->cache_control)
        r = buffer_printf(&x->head, "Cache-Control: no-store\r\n");
    if (r == 0 && x->conversation->closing)
        r = buffer_printf(&x->head, "Connection: close\r\n");
    if (r == 0)
        r = buffer_append(&x->head, x->fields.data, x->fields.len);
    return r < 0 ? r : buffer_append(&x->head, "\r\n", 2);
}

int exchange_begin(struct exchange *x, int status, const char *type, uint64_t size)
{
    if (x->status)
        return -EINVAL;
    int r = make_head(x, status, type, size);
    if (r < 0)
        return r;
    x->status = status;
    x->left = x->bodyless ? 0 : size;
    return 0;
}

bool exchange_has_begun(const struct exchange *x)
{
    return x->status != 0;
}

/* --- content --------------------------------------------------------------------------------- */

/* The header if it has not been sent, and this. end: the last chunk follows. */
static int send_content(struct exchange *x, struct bytes content, bool end)
{
    char size[24] = "";
    static const char last[] = "\r\n0\r\n\r\n";
    const bool chunk = x->chunked && !x->bodyless;
    const char *tail = !chunk ? "" : content.len == 0 ? (end ? last + 2 : "") : last;
    size_t tail_len = content.len > 0 && !end && chunk ? 2 : strlen(tail);
    if (x->broken < 0)
        return x->broken;
    if (chunk && content.len > 0)
        (void)snprintf(size, sizeof size, "%zx\r\n", content.len);
    struct iovec parts[] = {
        {.iov_base = x->head.data, .iov_len = x->head.len},
        {.iov_base = size, .iov_len = strlen(size)},
        {.iov_base = (void *)(uintptr_t)content.data, .iov_len = content.len},
        {.iov_base = (void *)(uintptr_t)tail, .iov_len = tail_len},
    };
    x->broken = conversation_send(x->conversation, parts, ARRAY_SIZE(parts));
    x->head.len = 0;
    x->sent += content.len;
    return x->broken;
}

int exchange_flush(struct exchange *x)
{
    int r = send_content(x, buffer_view(&x->content), false);
    x->content.len = 0;
    return r;
}

int exchange_write(struct exchange *x, const void *data, size_t len)
{
    if (x->bodyless)
        return x->broken;
    if (len > x->left)
        return -EINVAL;
    if (x->left != EXCHANGE_STREAM)
        x->left -= len;
    int r = 0;
    if (x->content.len + len >= CONTENT_MAX) {
        if (x->content.len > 0)
            r = exchange_flush(x);
        return r < 0 ? r : send_content(x, bytes_of(data, len), false);
    }
    return buffer_append(&x->content, data, len);
}

static void end(struct exchange *x)
{
    x->ended = true;
    if (x->left > 0 && x->left != EXCHANGE_STREAM)
        exchange_close(x); /* the client sees that it is not whole */
    if (send_content(x, buffer_view(&x->content), true) < 0)
        exchange_close(x);
    x->content.len = 0;
}

/* --- whole answers --------------------------------------------------------------------------- */

int exchange_reply(struct exchange *x, int status, const char *type, const void *data, size_t len)
{
    int r = exchange_begin(x, status, type, len);
    return r < 0 ? r : exchange_write(x, data, len);
}

int exchange_reply_empty(struct exchange *x, int status)
{
    return exchange_begin(x, status, NULL, 0);
}

int exchange_reply_json(struct exchange *x, int status, json_t *value)
{
    /* As many digits as a double has, and not one of rounding more. */
    _cleanup_free_ char *text =
        value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(value);
    if (!text)
        return -ENOMEM;
    size_t len = strlen(text);
    text[len] = '\n'; /* in the NUL's place */
    return exchange_reply(x, status, "application/json", text, len + 1);
}

static const char *effect_word(const struct exchange *x)
{
    return x->effect == EXCHANGE_EFFECT_DONE      ? "done"
           : x->effect == EXCHANGE_EFFECT_UNKNOWN ? "unknown"
                                                  : "none";
}

/* As clients of E2B's dialect want it. */
static int reply_dialect(struct exchange *x, int status, int error, const char *text)
{
    _cleanup_buffer_ struct buffer json = {0}, frame = {0};
    const char *type = "application/json";
    unsigned flags = x->route->flags;
    /* A refusal is none of what the calls do, whose errno it may share. */
    const char *code = connect_code(x->unauthorized ? 0 : error, status);
    int r = flags & ROUTE_STREAM ? buffer_printf(&json, "{\"error\":") : 0;
    if (r == 0)
        r = flags & ROUTE_E2B ? e2b_status_error(&json, status, text)
                              : e2b_error(&json, code, text);
    if (r == 0 && (flags & ROUTE_STREAM)) {
        r = buffer_printf(&json, "}");
        if (r == 0)
            r = connect_append_frame(&frame, CONNECT_END, buffer_view(&json));
        type = CONNECT_STREAM_TYPE;
        status = 200;
    }
    const struct buffer *body = flags & ROUTE_STREAM ? &frame : &json;
    return r < 0 ? r : exchange_reply(x, status, type, body->data, body->len);
}

/* Every byte but printable ASCII as \xNN. Backslashes stay: parts of the text were escaped where
 * they were put in. */
static void make_printable(const char *text, char *out, size_t size)
{
    size_t used = 0;
    for (; *text && size - used > 4; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte >= 0x20 && byte < 0x7f)
            out[used++] = (char)byte;
        else
            used += (size_t)snprintf(out + used, size - used, "\\x%02x", byte);
    }
    out[used] = '\0';
}

static int reply_problem(struct exchange *x, int status, int error, bool retry, const char *text)
{
    char detail[FAILURE_TEXT_MAX];
    const char *name = error < 0 ? strerrorname_np(-error) : NULL;
    if (x->route && (x->route->flags & (ROUTE_E2B | ROUTE_CONNECT | ROUTE_STREAM)))
        return reply_dialect(x, status, error, text);
    make_printable(text, detail, sizeof detail);
    json_t *problem = json_pack("{s:s,s:s,s:i,s:s,s:b,s:s}", "type", "about:blank", "title",
                                problem_title(status), "status", status, "detail", detail, "retry",
                                retry, "effect", effect_word(x));
    if (problem && name)
        (void)json_object_set_new(problem, "errno", json_string(name));
    _cleanup_free_ char *body = problem ? json_dumps(problem, JSON_COMPACT) : NULL;
    json_decref(problem);
    if (!body)
        return -ENOMEM;
    if (status == 401)
        (void)exchange_add_field(x, "WWW-Authenticate", "Bearer realm=\"berth\"");
    if (status == 429 || status == 503)
        (void)exchange_add_field(x, "Retry-After", "%u", x->retry_s > 0 ? x->retry_s : 5);
    size_t len = strlen(body);
    body[len] = '\n'; /* in the NUL's place */
    return exchange_reply(x, status, "application/problem+json", body, len + 1);
}

int exchange_refuse(struct exchange *x, int status, const char *format, ...)
{
    char text[FAILURE_TEXT_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    bool begun = x->status;
    if (begun || reply_problem(x, status, 0, problem_retry(status), text) < 0)
        exchange_close(x);
    if (!begun)
        end(x);
    x->ended = true; /* one that has begun is cut */
    return -ECANCELED;
}

/* Nobody knows what came of a request that changes something when its answer is lost. */
static bool is_lost(int error)
{
    return error == -ECONNRESET || error == -ETIMEDOUT || error == -ENOTCONN || error == -EPROTO;
}

void exchange_conclude(struct exchange *x, int result, const struct failure *failure)
{
    if (x->ended)
        return;
    if (result == -ECONNABORTED) {
        exchange_close(x);
        return;
    }
    if (result < 0 && x->status) {
        log_debug("an answer is cut: %s", failure->text);
        (void)exchange_flush(x);
        exchange_close(x);
        return;
    }
    if (result < 0 || !x->status) {
        struct problem_kind kind = problem_of(result);
        bool changes = x->route && (x->route->flags & ROUTE_CHANGES);
        if (is_lost(result) && changes && !x->unauthorized && x->effect == EXCHANGE_EFFECT_NONE)
            x->effect = EXCHANGE_EFFECT_UNKNOWN;
        if (x->unauthorized) {
            kind.status = x->unauthorized;
            kind.retry = problem_retry(x->unauthorized);
        }
        if (reply_problem(x, kind.status, result, kind.retry,
                          failure->text[0] ? failure->text : strerror(-result)) < 0)
            exchange_close(x);
    }
    end(x);
}
