#include "cli/exec_result.h"

#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "cli/text.h"

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

json_t *exec_result_json(const struct wire_exec_exit *v, int status, const struct exec_capture *out,
                         const struct exec_capture *err)
{
    json_t *o = verdict_json(v, status);
    if (o &&
        verdict_add_output(o, "stdout", buffer_view(&out->data), v->stdout_bytes,
                           v->stdout_dropped) == 0 &&
        verdict_add_output(o, "stderr", buffer_view(&err->data), v->stderr_bytes,
                           v->stderr_dropped) == 0)
        return o;
    json_decref(o);
    return NULL;
}
