#include "exec/verdict.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/clock.h"

int verdict_status(const struct wire_exec_exit *v)
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

json_t *verdict_output_json(struct bytes data, const char **ret_encoding)
{
    _cleanup_buffer_ struct buffer text = {0};
    /* Fails for anything but UTF-8. */
    json_t *value = data.len ? json_stringn((const char *)data.data, data.len) : json_string("");
    *ret_encoding = value ? "utf-8" : "base64";
    if (!value && base64_append(&text, BASE64, data) == 0)
        value = json_stringn_nocheck((const char *)text.data, text.len);
    return value;
}

static int set(json_t *object, const char *prefix, const char *name, json_t *value)
{
    char key[64];
    (void)snprintf(key, sizeof key, "%s%s", prefix, name);
    return json_object_set_new(object, key, value);
}

int verdict_add_output(json_t *object, const char *name, struct bytes data, uint64_t bytes,
                       uint64_t dropped)
{
    const char *encoding;
    json_t *text = verdict_output_json(data, &encoding);
    return set(object, name, "", text) || set(object, name, "_encoding", json_string(encoding)) ||
                   set(object, name, "_bytes", json_integer((json_int_t)bytes)) ||
                   set(object, name, "_truncated", json_boolean(data.len < bytes)) ||
                   set(object, name, "_dropped", json_integer((json_int_t)dropped))
               ? -ENOMEM
               : 0;
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

json_t *verdict_json(const struct wire_exec_exit *v, int status)
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
        set(o, "coherence", "", json_string(v->coherence ? "seen" : "unknown"));
    if (failed) {
        json_decref(o);
        return NULL;
    }
    return o;
}
