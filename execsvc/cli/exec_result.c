#include "cli/exec_result.h"

#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/clock.h"
#include "cli/text.h"

int exec_result_status(const struct wire_exec_exit *v)
{
    /* The number is the peer's: a cast to the enum would be a promise it has not made. */
    if (v->verdict == WIRE_VERDICT_EXITED)
        return (int)(v->code & 0xff);
    if (v->verdict == WIRE_VERDICT_TIMED_OUT)
        return EXEC_STATUS_TIMED_OUT;
    if (v->verdict == WIRE_VERDICT_NOT_STARTED)
        return v->code == 126 || v->code == 127 ? (int)v->code : EXEC_STATUS_NOT_STARTED;
    if ((v->verdict == WIRE_VERDICT_SIGNALED || v->verdict == WIRE_VERDICT_OOM_KILLED ||
         v->verdict == WIRE_VERDICT_KILLED) &&
        v->signal >= 1 && v->signal <= 64)
        return EXEC_STATUS_SIGNAL + (int)v->signal;
    return EXEC_STATUS_UNKNOWN;
}

static bool has_prefix(struct bytes text, const char *prefix)
{
    size_t len = strlen(prefix);
    return text.len >= len && memcmp(text.data, prefix, len) == 0;
}

/* The reason: the service's sentence, else what the error says. One that says by whom or why goes
 * on with the words before it. */
static int append_reason(struct buffer *b, const char *what, const struct wire_exec_exit *v)
{
    struct bytes text =
        v->text.len || !v->error ? v->text : bytes_of_string(strerror((int)v->error));
    bool goes_on = has_prefix(text, "by ") || has_prefix(text, "because ");
    int r = buffer_printf(b, "%s%s", what, text.len == 0 ? "" : goes_on ? " " : ": ");
    /* Paths and names that others chose: nothing in it may drive a terminal. */
    return r == 0 ? text_escape(b, text, TEXT_SENTENCE) : r;
}

static int append_verdict(struct buffer *b, const struct wire_exec_exit *v)
{
    char what[256], whose[128] = "";
    const char *stage = wire_stage_name(v->stage);
    switch ((uint32_t)v->verdict) {
    case WIRE_VERDICT_EXITED:
    case WIRE_VERDICT_SIGNALED:
        return 0;
    case WIRE_VERDICT_TIMED_OUT:
        /* Whose time it was stands beside it; what has gone wrong with its end, behind. */
        if (has_prefix(v->text, "the limit of "))
            (void)snprintf(whose, sizeof whose, ", %.*s", (int)v->text.len,
                           (const char *)v->text.data);
        (void)snprintf(what, sizeof what, "timed out after %g s%s; %u process%s removed",
                       (double)v->timeout_ms / 1000, whose, v->removed,
                       v->removed == 1 ? "" : "es");
        if (whose[0])
            return text_escape(b, bytes_of_string(what), TEXT_SENTENCE);
        break;
    case WIRE_VERDICT_OOM_KILLED:
        (void)snprintf(what, sizeof what, "killed: out of memory");
        break;
    case WIRE_VERDICT_KILLED:
        (void)snprintf(what, sizeof what, "killed");
        break;
    case WIRE_VERDICT_NOT_STARTED:
        (void)snprintf(what, sizeof what, "not started: %s", stage ? stage : "unknown stage");
        break;
    default:
        (void)snprintf(what, sizeof what, "outcome unknown");
    }
    return append_reason(b, what, v);
}

int exec_result_text(const struct wire_exec_exit *v, struct buffer *ret)
{
    bool ran = v->verdict >= WIRE_VERDICT_EXITED && v->verdict <= WIRE_VERDICT_KILLED;
    int r = append_verdict(ret, v);
    if (r < 0 || !ran || v->coherence != WIRE_COHERENCE_UNKNOWN)
        return r;
    return buffer_printf(ret, "%s a mount has not confirmed what it changed",
                         ret->len ? "; and" : "ended, but");
}

int exec_capture_append(struct exec_capture *c, struct bytes data)
{
    size_t room = (size_t)EXEC_CAPTURE_MAX - c->data.len;
    int r = buffer_append(&c->data, data.data, data.len < room ? data.len : room);
    if (r == 0)
        c->bytes += data.len;
    return r;
}

/* --- JSON ------------------------------------------------------------------------ */

static json_t *base64(struct bytes data)
{
    _cleanup_free_ char *text = malloc(base64_size(data.len) + 1);
    return text ? json_stringn_nocheck(text, base64_write(BASE64, data, text)) : NULL;
}

static int set(json_t *object, const char *prefix, const char *name, json_t *value)
{
    char key[64];
    (void)snprintf(key, sizeof key, "%s%s", prefix, name);
    return json_object_set_new(object, key, value);
}

static int set_stream(json_t *object, const char *name, const struct exec_capture *c,
                      uint64_t bytes)
{
    struct bytes data = buffer_view(&c->data);
    /* Fails for anything but UTF-8. */
    json_t *text = json_stringn((const char *)data.data, data.len);
    if (data.len == 0)
        text = json_string("");
    const char *encoding = text ? "utf-8" : "base64";
    if (!text)
        text = base64(data);
    return set(object, name, "", text) || set(object, name, "_encoding", json_string(encoding)) ||
           set(object, name, "_bytes", json_integer((json_int_t)bytes)) ||
           set(object, name, "_truncated", json_boolean(data.len < bytes));
}

static json_t *integer_if(bool applies, uint64_t value)
{
    return applies ? json_integer((json_int_t)value) : json_null();
}

static json_t *string_or_null(const char *text)
{
    return text ? json_string(text) : json_null();
}

static json_t *text_of(struct bytes text)
{
    json_t *value = text.len ? json_stringn((const char *)text.data, text.len) : json_null();
    if (value)
        return value;
    _cleanup_buffer_ struct buffer escaped = {0};
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] < 0x80 ? buffer_append_u8(&escaped, text.data[i]) < 0
                                : buffer_printf(&escaped, "\\x%02x", text.data[i]) < 0)
            return NULL;
    return json_stringn((const char *)escaped.data, escaped.len);
}

json_t *exec_result_json(const struct wire_exec_exit *v, int status, const struct exec_capture *out,
                         const struct exec_capture *err)
{
    bool not_started = v->verdict == WIRE_VERDICT_NOT_STARTED;
    json_t *o = json_object();
    if (!o)
        return NULL;
    const char *verdict = wire_verdict_name(v->verdict);
    int failed =
        set(o, "verdict", "", json_string(verdict ? verdict : "unknown")) ||
        set(o, "exit_status", "", json_integer(status)) ||
        set(o, "code", "", integer_if(v->verdict == WIRE_VERDICT_EXITED, v->code)) ||
        set(o, "signal", "", integer_if(v->signal != 0, v->signal)) ||
        set(o, "core", "", json_boolean(v->core != 0)) ||
        set(o, "stage", "",
            not_started ? string_or_null(wire_stage_name(v->stage)) : json_null()) ||
        set(o, "error", "", integer_if(v->error != 0, v->error)) ||
        set(o, "errno", "", string_or_null(v->error ? strerrorname_np((int)v->error) : NULL)) ||
        set(o, "text", "", text_of(v->text)) || set(o, "removed", "", json_integer(v->removed)) ||
        set(o, "left", "", json_integer(v->left)) ||
        set(o, "means", "", string_or_null(v->means ? wire_means_name(v->means) : NULL)) ||
        set(o, "duration_ms", "", json_real((double)v->duration_ns / (double)NSEC_PER_MSEC)) ||
        set(o, "timeout_ms", "", integer_if(v->timeout_ms != 0, v->timeout_ms)) ||
        set(o, "fs_seq", "", integer_if(v->fs_seq != 0, v->fs_seq)) ||
        set(o, "coherence", "", json_string(v->coherence ? "seen" : "unknown")) ||
        set_stream(o, "stdout", out, v->stdout_bytes) ||
        set_stream(o, "stderr", err, v->stderr_bytes) ||
        set(o, "stdout", "_dropped", json_integer((json_int_t)v->stdout_dropped)) ||
        set(o, "stderr", "_dropped", json_integer((json_int_t)v->stderr_dropped));
    if (failed) {
        json_decref(o);
        return NULL;
    }
    return o;
}
