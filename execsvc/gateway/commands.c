/* Routes of commands: /v1/workspaces/{id}/exec. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/clock.h"
#include "exec/verdict.h"
#include "gateway/documents.h"
#include "gateway/files.h"
#include "gateway/invocation.h"
#include "gateway/routes.h"

/* A request to run a command, with its arguments, environment and first input. */
#define BODY_MAX (4u << 20)

/* Bytes of each stream in an answer that is no stream; of the rest the end is told. Bounds the
 * memory of a request whose command prints for ever. */
#define OUTPUT_MAX ((size_t)4 << 20)

/* A stream has a line at least so often, so that a client sees that it is not lost, and we that it
 * is gone. */
#define ALIVE_MS 10000

#define STREAM_TYPE "application/x-ndjson"

/* --- what is asked --------------------------------------------------------------------------- */

struct run_request {
    json_t *body;
    struct wire_exec exec;
    struct buffer argv, env; /* lists */
    uint8_t *input;
    size_t input_len;
    bool input_open; /* more may follow by other requests */
};

static void run_request_release(struct run_request *q)
{
    json_decref(q->body);
    buffer_release(&q->argv);
    buffer_release(&q->env);
    free(q->input);
}
#define _cleanup_run_ _cleanup_(run_request_release)

static struct bytes json_bytes(const json_t *s)
{
    return bytes_of(json_string_value(s), json_string_length(s));
}

static int take_argv(struct run_request *q, const json_t *argv, struct failure *f)
{
    size_t i;
    json_t *word;
    json_array_foreach(
        argv, i,
        word) if (!json_is_string(word) ||
                  memchr(json_string_value(word), 0,
                         json_string_length(
                             word))) return failure_set(f, -EINVAL,
                                                        "argv is an array of strings without NUL");
    else if (wire_list_append(&q->argv, json_bytes(word)) < 0) return failure_set(f, -ENOMEM,
                                                                                  "out of memory");
    if (json_array_size(argv) == 0)
        return failure_set(f, -EINVAL, "argv needs a program");
    q->exec.argv = wire_list_of(&q->argv, (uint32_t)json_array_size(argv));
    return 0;
}

static int take_env(struct run_request *q, json_t *env, struct failure *f)
{
    _cleanup_buffer_ struct buffer pair = {0};
    const char *name;
    json_t *value;
    json_object_foreach(env, name, value)
    {
        pair.len = 0;
        if (!json_is_string(value))
            return failure_set(f, -EINVAL, "env is an object of strings");
        if (buffer_printf(&pair, "%s=%s", name, json_string_value(value)) < 0 ||
            wire_list_append(&q->env, buffer_view(&pair)) < 0)
            return failure_set(f, -ENOMEM, "out of memory");
    }
    q->exec.env = wire_list_of(&q->env, (uint32_t)json_object_size(env));
    return 0;
}

static int take_input(struct run_request *q, const json_t *input, const char *encoding,
                      struct failure *f)
{
    struct bytes text = json_bytes(input);
    bool base64 = encoding && strcmp(encoding, "base64") == 0;
    if (encoding && !base64 && strcmp(encoding, "utf-8") != 0)
        return failure_set(f, -EINVAL, "stdin_encoding is utf-8 or base64");
    q->input = malloc(text.len + 2);
    if (!q->input)
        return failure_set(f, -ENOMEM, "out of memory");
    memcpy(q->input, text.data, text.len);
    q->input_len = text.len;
    if (base64 && base64_read(text, q->input, &q->input_len) < 0)
        return failure_set(f, -EINVAL, "stdin is no base64");
    return 0;
}

static int take_terminal(struct run_request *q, json_t *pty, struct failure *f)
{
    json_error_t error;
    int rows = 24, columns = 80;
    if (json_unpack_ex(pty, &error, JSON_STRICT, "{s?i,s?i}", "rows", &rows, "columns", &columns) <
            0 ||
        rows < 1 || rows > UINT16_MAX || columns < 1 || columns > UINT16_MAX)
        return failure_set(f, -EINVAL, "pty has rows and columns, from 1 to 65535");
    q->exec.flags |= WIRE_EXEC_PTY;
    q->exec.rows = (uint32_t)rows;
    q->exec.columns = (uint32_t)columns;
    return 0;
}

static uint32_t flag_if(int set, uint32_t flag)
{
    return set ? flag : 0;
}

static int take_limits(struct run_request *q, const json_int_t numbers[5], struct failure *f)
{
    static const char *const names[] = {"timeout_ms", "max_output", "linger_ms", "memory_max",
                                        "processes_max"};
    uint64_t *fields[] = {&q->exec.timeout_ms, &q->exec.max_output, &q->exec.linger_ms,
                          &q->exec.memory_max, &q->exec.processes_max};
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        if (numbers[i] < 0)
            return failure_set(f, -EINVAL, "%s is not negative", names[i]);
        *fields[i] = (uint64_t)numbers[i];
    }
    return 0;
}

static int read_run(struct exchange *x, struct run_request *q, struct failure *f)
{
    json_t *argv = NULL, *env = NULL, *input = NULL, *pty = NULL;
    const char *cwd = "", *id = "", *encoding = NULL, *path = NULL;
    int merge = 0, detach = 0, keep = 0, durable = 0, open = 0;
    json_int_t numbers[5] = {0};
    static const char *const names[] = {
        "argv",           "env",           "cwd",        "id",         "stdin",
        "stdin_encoding", "stdin_open",    "pty",        "merge",      "detach",
        "keep",           "durable",       "timeout_ms", "max_output", "linger_ms",
        "memory_max",     "processes_max", "mount_path", NULL};
    json_error_t error;
    int r = exchange_read_json(x, BODY_MAX, &q->body, f);
    if (r == 0)
        r = document_check(q->body, names, f);
    if (r < 0)
        return r;
    if (json_unpack_ex(q->body, &error, JSON_STRICT,
                       "{s:o,s?o,s?s,s?s,s?o,s?s,s?b,s?o,s?b,s?b,s?b,s?b,s?I,s?I,s?I,s?I,s?I,s?s}",
                       "argv", &argv, "env", &env, "cwd", &cwd, "id", &id, "stdin", &input,
                       "stdin_encoding", &encoding, "stdin_open", &open, "pty", &pty, "merge",
                       &merge, "detach", &detach, "keep", &keep, "durable", &durable, "timeout_ms",
                       &numbers[0], "max_output", &numbers[1], "linger_ms", &numbers[2],
                       "memory_max", &numbers[3], "processes_max", &numbers[4], "mount_path",
                       &path) < 0)
        return failure_set(f, -EINVAL, "%s", error.text);
    if (!json_is_array(argv) || (env && !json_is_object(env)) || (input && !json_is_string(input)))
        return failure_set(f, -EINVAL, "argv is an array, env an object, and stdin a string");
    q->exec.workspace = exchange_param(x, 0);
    q->exec.cwd = bytes_of_string(cwd);
    q->exec.id = bytes_of_string(id);
    q->exec.mount_path = bytes_of_string(path);
    q->exec.flags = flag_if(path != NULL, WIRE_EXEC_PATH) | flag_if(merge, WIRE_EXEC_MERGE) |
                    flag_if(detach, WIRE_EXEC_DETACH) | flag_if(keep, WIRE_EXEC_KEEP) |
                    flag_if(durable, WIRE_EXEC_DURABLE) |
                    flag_if(input || open || pty, WIRE_EXEC_STDIN);
    q->input_open = open || (pty && !input);
    r = take_argv(q, argv, f);
    if (r == 0 && env)
        r = take_env(q, env, f);
    if (r == 0 && input)
        r = take_input(q, input, encoding, f);
    if (r == 0 && pty)
        r = take_terminal(q, pty, f);
    if (r == 0 && input && detach)
        r = failure_set(f, -EINVAL,
                        "stdin cannot be given to a command that is detached: see input");
    return r < 0 ? r : take_limits(q, numbers, f);
}

/* --- telling it ------------------------------------------------------------------------------ */

/* What is being told, whole at the end or line by line. */
struct report {
    struct exchange *x;
    struct invocation *invocation;
    struct bytes workspace;
    bool stream;
    bool forget;   /* nobody will ask again */
    bool detached; /* RUNNING is what was asked for */
    char id[WIRE_EXEC_ID_MAX + 1];
    uint64_t from[2]; /* offsets where what is told begins */
    struct buffer output[2];
    bool hole[2];    /* not all of what follows could be kept */
    uint64_t end[2]; /* of what has come */
};

static int told(int r, struct failure *f)
{
    return r < 0 ? failure_set(f, r, "%s", strerror(-r)) : 0;
}

/* Takes value. */
static int write_line(struct report *p, json_t *value, struct failure *f)
{
    _cleanup_free_ char *text =
        value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(value);
    if (!text)
        return told(-ENOMEM, f);
    int r = exchange_has_begun(p->x) ? 0 : exchange_begin(p->x, 200, STREAM_TYPE, EXCHANGE_STREAM);
    if (r == 0)
        r = exchange_write(p->x, text, strlen(text));
    if (r == 0)
        r = exchange_write(p->x, "\n", 1);
    if (r == 0)
        r = exchange_flush(p->x);
    return told(r, f);
}

/* null: not known any more, or not to be told in JSON. */
static json_t *path_json(struct bytes path)
{
    json_t *text = path.len ? json_stringn((const char *)path.data, path.len) : NULL;
    return text ? text : json_null();
}

static int on_started(struct report *p, const struct wire_exec_started *s, struct failure *f)
{
    (void)snprintf(p->id, sizeof p->id, "%.*s", (int)s->id.len, (const char *)s->id.data);
    exchange_set_effect(p->x, EXCHANGE_EFFECT_DONE);
    if (!p->stream)
        return 0;
    return write_line(p,
                      json_pack("{s:s,s:s,s:I,s:b,s:I,s:o}", "event", "started", "id", p->id, "pid",
                                (json_int_t)s->pid, "attached", (int)s->attached, "input",
                                (json_int_t)s->input, "path", path_json(s->path)),
                      f);
}

static int on_output(struct report *p, const struct wire_exec_output *o, struct failure *f)
{
    size_t i = o->stream == 2;
    p->end[i] = o->offset + o->data.len;
    if (!p->stream) {
        /* What was asked for is not kept: it goes on where something is. */
        if (p->output[i].len == 0 && !p->hole[i])
            p->from[i] = o->offset;
        size_t room = OUTPUT_MAX - p->output[i].len;
        p->hole[i] = p->hole[i] || o->offset != p->from[i] + p->output[i].len;
        size_t n = p->hole[i] ? 0 : o->data.len < room ? o->data.len : room;
        return told(buffer_append(&p->output[i], o->data.data, n), f);
    }
    const char *encoding;
    json_t *data = verdict_output_json(o->data, &encoding);
    return write_line(p,
                      json_pack("{s:s,s:s,s:I,s:o,s:s}", "event", "output", "stream",
                                i ? "stderr" : "stdout", "offset", (json_int_t)o->offset, "data",
                                data, "encoding", encoding),
                      f);
}

/* Not a verdict to tell, but the request's own failure. 0: it is none. */
static int refusal(const struct wire_exec_exit *v, struct failure *f)
{
    if (v->verdict != WIRE_VERDICT_NOT_STARTED ||
        (v->stage != WIRE_STAGE_REQUEST && v->stage != WIRE_STAGE_WORKSPACE))
        return 0;
    int error = v->error ? -(int)v->error : -EINVAL;
    return failure_set(f, error, "%.*s", v->text.len ? (int)v->text.len : 64,
                       v->text.len ? (const char *)v->text.data : strerror(-error));
}

/* The output that was kept; of a stream of events only how much there was. */
static int add_output(struct report *p, json_t *o, size_t i, uint64_t bytes, uint64_t dropped)
{
    const char *name = i ? "stderr" : "stdout";
    char key[32];
    int r = 0;
    if (!p->stream) {
        r = verdict_add_output(o, name, buffer_view(&p->output[i]), bytes, dropped);
        (void)snprintf(key, sizeof key, "%s_truncated", name);
        uint64_t end = p->from[i] + p->output[i].len;
        p->forget = p->forget && end >= bytes; /* the rest can be asked for by the ID */
        if (r == 0 && json_object_set_new(o, key, json_boolean(end < bytes)) < 0)
            r = -ENOMEM;
        (void)snprintf(key, sizeof key, "%s_offset", name);
        if (r == 0 && json_object_set_new(o, key, json_integer((json_int_t)p->from[i])) < 0)
            r = -ENOMEM;
        return r;
    }
    (void)snprintf(key, sizeof key, "%s_bytes", name);
    r = json_object_set_new(o, key, json_integer((json_int_t)bytes));
    (void)snprintf(key, sizeof key, "%s_dropped", name);
    return r < 0 || json_object_set_new(o, key, json_integer((json_int_t)dropped)) < 0 ? -ENOMEM
                                                                                       : 0;
}

static json_t *ended_json(struct report *p, const struct wire_exec_exit *v, bool running)
{
    json_t *o = verdict_json(v, running ? 0 : verdict_status(v));
    const char *event = running ? "running" : "ended";
    if (o && running)
        (void)json_object_set_new(o, "exit_status", json_null());
    if (o && json_object_set_new(o, "id", p->id[0] ? json_string(p->id) : json_null()) == 0 &&
        (!p->stream || json_object_set_new(o, "event", json_string(event)) == 0) &&
        (p->detached ||
         (add_output(p, o, 0, running ? p->end[0] : v->stdout_bytes, v->stdout_dropped) == 0 &&
          add_output(p, o, 1, running ? p->end[1] : v->stderr_bytes, v->stderr_dropped) == 0)))
        return o;
    json_decref(o);
    return NULL;
}

static int on_ended(struct report *p, const struct wire_exec_exit *v, struct failure *f)
{
    bool running = v->verdict == WIRE_VERDICT_RUNNING;
    int r = refusal(v, f);
    if (r == -ESHUTDOWN && v->stage == WIRE_STAGE_WORKSPACE && !exchange_has_begun(p->x)) {
        exchange_set_effect(p->x, EXCHANGE_EFFECT_NONE);
        return exchange_refuse(p->x, 409, "%s", f->text); /* it stays so until somebody starts it */
    }
    if (r < 0)
        return r;
    exchange_set_effect(p->x, EXCHANGE_EFFECT_DONE);
    json_t *o = ended_json(p, v, running);
    if (p->stream)
        return write_line(p, o, f);
    return told(exchange_reply_json(p->x, p->detached && running ? 202 : 200, o), f);
}

/* From the invocation's first event to its last. */
static int report(struct report *p, struct failure *f)
{
    bool ended = false;
    int r = 0;
    while (r == 0 && !ended) {
        struct invocation_event event;
        r = invocation_next(p->invocation, p->stream ? ALIVE_MS : -1, &event, f);
        if (r == -EAGAIN) {
            r = write_line(p, json_pack("{s:s}", "event", "alive"), f);
            continue;
        }
        if (r < 0)
            break;
        switch (event.kind) {
        case INVOCATION_STARTED:
            r = on_started(p, &event.started, f);
            break;
        case INVOCATION_OUTPUT:
            r = on_output(p, &event.output, f);
            break;
        case INVOCATION_ENDED:
            r = on_ended(p, &event.exit, f);
            ended = true;
            break;
        }
    }
    if (r == 0 && p->forget && p->id[0]) {
        struct upstream *u;
        if (exchange_upstream(p->x, &u, f) == 0)
            invocation_forget(u, p->workspace, 0, bytes_of_string(p->id));
    }
    for (size_t i = 0; i < ARRAY_SIZE(p->output); i++)
        buffer_release(&p->output[i]);
    invocation_free(take_ptr(p->invocation));
    return r;
}

static bool wants_stream(const struct exchange *x)
{
    const char *accept = exchange_field(x, "accept");
    return accept && strstr(accept, STREAM_TYPE);
}

/* --- routes ---------------------------------------------------------------------------------- */

int exec_run(struct exchange *x, struct failure *f)
{
    _cleanup_run_ struct run_request q = {0};
    struct upstream *u;
    int r = read_run(x, &q, f);
    if (r == 0)
        r = exchange_upstream(x, &u, f);
    if (r < 0)
        return r;
    struct report p = {.x = x,
                       .workspace = q.exec.workspace,
                       .stream = wants_stream(x),
                       .detached = q.exec.flags & WIRE_EXEC_DETACH,
                       .forget = q.exec.id.len == 0 &&
                                 !(q.exec.flags & (WIRE_EXEC_DETACH | WIRE_EXEC_KEEP))};
    (void)snprintf(p.id, sizeof p.id, "%.*s", (int)q.exec.id.len, (const char *)q.exec.id.data);
    exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    r = invocation_start(u, &q.exec, bytes_of(q.input, q.input_len), !q.input_open, &p.invocation,
                         f);
    r = r < 0 ? r : report(&p, f);
    if (r < 0 && !upstream_is_lost(u) && r != -ECONNABORTED)
        exchange_set_effect(x, EXCHANGE_EFFECT_NONE); /* the service has said so */
    return r;
}

static struct bytes id_of(const struct exchange *x)
{
    return exchange_param(x, 1);
}

/* What it prints, from these offsets on, and its verdict: with follow to the end, else as it is. */
int exec_attach(struct exchange *x, struct failure *f)
{
    struct upstream *u;
    bool follow;
    struct wire_exec_attach m = {
        .flags = WIRE_ATTACH_OUTPUT, .workspace = exchange_param(x, 0), .id = id_of(x)};
    int r = files_query_flag(x, "follow", &follow, f);
    if (r == 0)
        r = exchange_query_u64(x, "stdout", 0, UINT64_MAX, &m.from_stdout, f);
    if (r == 0)
        r = exchange_query_u64(x, "stderr", 0, UINT64_MAX, &m.from_stderr, f);
    if (r == 0)
        r = exchange_upstream(x, &u, f);
    if (r < 0)
        return r;
    if (follow)
        m.flags |= WIRE_ATTACH_FOLLOW | WIRE_ATTACH_HOLD;
    struct report p = {.x = x,
                       .workspace = m.workspace,
                       .stream = wants_stream(x),
                       .from = {m.from_stdout, m.from_stderr},
                       .end = {m.from_stdout, m.from_stderr}};
    (void)snprintf(p.id, sizeof p.id, "%.*s", (int)m.id.len, (const char *)m.id.data);
    r = invocation_attach(u, &m, &p.invocation, f);
    return r < 0 ? r : report(&p, f);
}

/* Attaches to a command that has not ended: *ret_started. */
static int attach_to_running(struct exchange *x, const struct wire_exec_attach *m,
                             struct invocation **ret, struct invocation_event *ret_started,
                             struct failure *f)
{
    struct upstream *u;
    int r = exchange_upstream(x, &u, f);
    if (r == 0)
        r = invocation_attach(u, m, ret, f);
    if (r == 0)
        r = invocation_next(*ret, -1, ret_started, f);
    if (r < 0)
        return r;
    return ret_started->kind == INVOCATION_STARTED && ret_started->started.pid != 0
               ? 0
               : failure_set(f, -ESRCH, "the command has ended");
}

/* Everything that is in the body, at the input's present end; or at an offset, of which what was
 * received already is dropped. */
int exec_input(struct exchange *x, struct failure *f)
{
    _cleanup_invocation_ struct invocation *v = NULL;
    struct invocation_event event;
    struct bytes data;
    bool end;
    uint64_t received;
    const struct wire_exec_attach m = {.flags = WIRE_ATTACH_INPUT | WIRE_ATTACH_FOLLOW,
                                       .workspace = exchange_param(x, 0),
                                       .id = id_of(x)};
    int r = files_query_flag(x, "end", &end, f);
    if (r == 0)
        r = attach_to_running(x, &m, &v, &event, f);
    if (r < 0)
        return r;
    received = event.started.input;
    exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    while ((r = exchange_next(x, &data, f)) > 0) {
        r = invocation_feed(v, data, false, f);
        if (r < 0)
            return r == -EPIPE ? failure_set(f, -ESRCH, "the command has ended") : r;
        received += data.len;
    }
    if (r == 0 && end)
        r = invocation_feed(v, (struct bytes){0}, true, f);
    if (r == 0)
        r = invocation_leave(take_ptr(v), f);
    if (r < 0)
        return r;
    exchange_set_effect(x, EXCHANGE_EFFECT_DONE);
    return exchange_reply_json(x, 200, json_pack("{s:I}", "input", (json_int_t)received));
}

static int signal_number(const json_t *value)
{
    static const struct {
        const char *name;
        int number;
    } names[] = {{"HUP", SIGHUP},    {"INT", SIGINT},   {"QUIT", SIGQUIT}, {"KILL", SIGKILL},
                 {"USR1", SIGUSR1},  {"USR2", SIGUSR2}, {"TERM", SIGTERM}, {"CONT", SIGCONT},
                 {"STOP", SIGSTOP},  {"TSTP", SIGTSTP}, {"PIPE", SIGPIPE}, {"ALRM", SIGALRM},
                 {"WINCH", SIGWINCH}};
    if (json_is_integer(value) && json_integer_value(value) >= 1 && json_integer_value(value) <= 64)
        return (int)json_integer_value(value);
    const char *text = json_string_value(value);
    if (!text)
        return 0;
    text += strncmp(text, "SIG", 3) == 0 ? 3 : 0;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(names[i].name, text) == 0)
            return names[i].number;
    return 0;
}

static int kill_command(struct exchange *x, uint32_t signal, uint64_t grace_ms, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    struct upstream *u;
    const struct wire_message m = {.type = WIRE_EXEC_KILL,
                                   .exec_kill = {.signal = signal,
                                                 .grace_ms = grace_ms,
                                                 .workspace = exchange_param(x, 0),
                                                 .id = id_of(x),
                                                 .by = bytes_of_string("an HTTP request")}};
    int r = exchange_upstream(x, &u, f);
    if (r == 0)
        r = upstream_call(u, &m, &reply, f);
    if (r < 0)
        return r;
    exchange_set_effect(x, EXCHANGE_EFFECT_DONE);
    const struct wire_exec_killed *k = &reply->message.exec_killed;
    const char *means = k->means ? wire_means_name(k->means) : NULL;
    json_t *o = json_pack("{s:I,s:I,s:s?}", "removed", (json_int_t)k->removed, "left",
                          (json_int_t)k->left, "means", means);
    if (o && files_set_bytes(o, "text", k->text) < 0) {
        json_decref(o);
        o = NULL;
    }
    return exchange_reply_json(x, 200, o);
}

/* {"signal"}: to its process group. */
int exec_signal(struct exchange *x, struct failure *f)
{
    json_t *body = NULL;
    int r = exchange_read_json(x, 4096, &body, f);
    int signal = r == 0 ? signal_number(json_object_get(body, "signal")) : 0;
    json_decref(body);
    if (r < 0)
        return r;
    return signal ? kill_command(x, (uint32_t)signal, 0, f)
                  : failure_set(f, -EINVAL, "signal is a name, as TERM, or a number");
}

/* {"grace_ms"}: ends all that belongs to it. */
int exec_kill(struct exchange *x, struct failure *f)
{
    json_t *body = NULL;
    json_error_t error;
    json_int_t grace = 0;
    int r = exchange_read_json(x, 4096, &body, f);
    if (r == 0 &&
        (json_unpack_ex(body, &error, JSON_STRICT, "{s?I}", "grace_ms", &grace) < 0 || grace < 0))
        r = failure_set(f, -EINVAL, "grace_ms is a number of milliseconds");
    json_decref(body);
    return r < 0 ? r : kill_command(x, 0, (uint64_t)grace, f);
}

/* {"rows", "columns"} */
int exec_resize(struct exchange *x, struct failure *f)
{
    _cleanup_invocation_ struct invocation *v = NULL;
    struct invocation_event event;
    json_t *body = NULL;
    json_error_t error;
    int rows = 0, columns = 0;
    const struct wire_exec_attach m = {
        .flags = WIRE_ATTACH_FOLLOW, .workspace = exchange_param(x, 0), .id = id_of(x)};
    int r = exchange_read_json(x, 4096, &body, f);
    if (r == 0 && (json_unpack_ex(body, &error, JSON_STRICT, "{s:i,s:i}", "rows", &rows, "columns",
                                  &columns) < 0 ||
                   rows < 1 || rows > UINT16_MAX || columns < 1 || columns > UINT16_MAX))
        r = failure_set(f, -EINVAL, "rows and columns are numbers from 1 to 65535");
    json_decref(body);
    if (r == 0)
        r = attach_to_running(x, &m, &v, &event, f);
    if (r < 0)
        return r;
    if (invocation_resize(v, (uint32_t)rows, (uint32_t)columns) < 0)
        return failure_set(f, -ESRCH, "the command has ended");
    r = invocation_leave(take_ptr(v), f);
    return r < 0 ? r : exchange_reply_empty(x, 204);
}

/* --- listing --------------------------------------------------------------------------------- */

static json_t *words_json(struct bytes argv)
{
    json_t *words = json_array();
    for (size_t at = 0; words && at < argv.len;) {
        size_t n = strnlen((const char *)argv.data + at, argv.len - at);
        const char *encoding;
        (void)json_array_append_new(words,
                                    verdict_output_json(bytes_of(argv.data + at, n), &encoding));
        at += n + 1;
    }
    return words;
}

static json_t *command_json(const struct wire_exec_command *c)
{
    const struct wire_exec_exit v = {.verdict = c->verdict,
                                     .code = c->code,
                                     .signal = c->signal,
                                     .core = c->core,
                                     .stage = c->stage,
                                     .error = c->error,
                                     .removed = c->removed,
                                     .left = c->left,
                                     .means = c->means,
                                     .duration_ns = c->duration_ns,
                                     .timeout_ms = c->timeout_ms,
                                     .text = c->text};
    bool running = c->verdict == WIRE_VERDICT_RUNNING;
    json_t *o = verdict_json(&v, running ? 0 : verdict_status(&v));
    if (o && files_set_bytes(o, "id", c->id) == 0 &&
        json_object_set_new(o, "argv", words_json(c->argv)) == 0 &&
        json_object_set_new(o, "pid", json_integer((json_int_t)c->pid)) == 0 &&
        json_object_set_new(o, "processes", json_integer(c->processes)) == 0 &&
        json_object_set_new(o, "attached", json_integer(c->attached)) == 0 &&
        json_object_set_new(o, "started_at", files_time_json(&c->started_at)) == 0 &&
        json_object_set_new(o, "stdout_bytes", json_integer((json_int_t)c->stdout_bytes)) == 0 &&
        json_object_set_new(o, "stderr_bytes", json_integer((json_int_t)c->stderr_bytes)) == 0 &&
        json_object_del(o, "fs_seq") == 0 && json_object_del(o, "coherence") == 0)
        return o;
    json_decref(o);
    return NULL;
}

static int list_page(const struct wire_exec_commands *page, json_t *commands)
{
    uint32_t offset = 0;
    struct bytes element;
    while (wire_list_next(&page->items, &offset, &element)) {
        struct wire_message m;
        if (wire_decode(WIRE_EXEC_COMMAND, element, &m) < 0)
            return -EPROTO;
        if (json_array_append_new(commands, command_json(&m.exec_command)) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* In the order in which they were started, a page at a time. */
int exec_list(struct exchange *x, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    struct upstream *u;
    uint64_t count = 1000, after = 0;
    int r = exchange_query_u64(x, "limit", 1, 1000, &count, f);
    if (r == 0)
        r = exchange_query_u64(x, "after", 0, UINT64_MAX, &after, f);
    if (r == 0)
        r = exchange_upstream(x, &u, f);
    if (r < 0)
        return r;
    const struct wire_message m = {
        .type = WIRE_EXEC_LIST,
        .exec_list = {.count = (uint32_t)count, .after = after, .workspace = exchange_param(x, 0)}};
    r = upstream_call(u, &m, &reply, f);
    if (r < 0)
        return r;
    char next[24];
    const struct wire_exec_commands *page = &reply->message.exec_commands;
    json_t *commands = json_array();
    (void)snprintf(next, sizeof next, "%" PRIu64, page->after);
    r = commands ? list_page(page, commands) : -ENOMEM;
    if (r < 0) {
        json_decref(commands);
        return told(r, f);
    }
    return exchange_reply_json(x, 200,
                               json_pack("{s:o,s:o}", "commands", commands, "next",
                                         page->more ? json_string(next) : json_null()));
}
