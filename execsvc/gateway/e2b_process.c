/* process.Process: commands, as E2B's clients start, follow and end them. Every one goes on when
 * its client is gone, however that goes, until it ends or is ended; its output is kept for who
 * comes back. */
#include "gateway/e2b_request.h"
#include "gateway/routes.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "gateway/invocation.h"

/* What the SDK gives every command that it is given no timeout for, also one in the background. It
 * is taken for none: its client stops waiting then, and the command goes on. */
#define DEFAULT_TIMEOUT_MS 60000

/* So long before its client's deadline a command is ended, so that its output and end arrive: a
 * tenth of the time, within these. */
#define MARGIN_MIN_MS 100
#define MARGIN_MAX_MS 1000

#define KEEPALIVE_DEFAULT_S 50
#define KEEPALIVE_MAX_S 3600

/* A working directory outside of the workspace is entered by the command itself. */
static const char enter_script[] = "cd -- \"$0\" && exec \"$@\"";
static const char try_script[] = "cd -- \"$0\"";

/* --- following -------------------------------------------------------------------------------- */

struct run {
    struct e2b_stream_out out;
    struct upstream *upstream;
    struct bytes workspace;
    struct invocation *invocation;
    char id[WIRE_EXEC_ID_MAX + 1];
    uint32_t pid;
    bool pty;
    uint64_t timeout_ms;  /* 0: none */
    uint64_t deadline_ns; /* when it is ended; 0: never, or it was */
    bool timed_out;
    struct upstream_call *kill;
    uint64_t keepalive_ns; /* how often something is to be said */
    uint64_t said_ns;      /* when it was last */
};

static void run_release(struct run *r)
{
    upstream_drop(r->kill, 0);
    invocation_free(r->invocation);
    e2b_stream_release(&r->out);
}
#define _cleanup_run_ _cleanup_(run_release)

static int begin_answer(struct run *r)
{
    r->said_ns = clock_monotonic_ns();
    int e = exchange_begin(r->out.x, 200, CONNECT_STREAM_TYPE, EXCHANGE_STREAM);
    if (e == 0)
        e = e2b_event_start(&r->out.json, r->pid);
    if (e == 0)
        e = e2b_send(&r->out, 0);
    return e < 0 ? e : exchange_flush(r->out.x);
}

static int send_output(struct run *r, const struct wire_exec_output *o)
{
    enum e2b_stream stream = r->pty ? E2B_PTY : o->stream == 2 ? E2B_STDERR : E2B_STDOUT;
    int e = e2b_event_data(&r->out.json, stream, o->data);
    return e < 0 ? e : e2b_send(&r->out, 0);
}

static int send_end(struct run *r, struct wire_exec_exit *exit)
{
    char text[1200];
    (void)snprintf(text, sizeof text, "%.*s", (int)exit->text.len, (const char *)exit->text.data);
    if (exit->verdict == WIRE_VERDICT_UNKNOWN || exit->verdict == WIRE_VERDICT_NOT_STARTED ||
        exit->verdict == WIRE_VERDICT_RUNNING)
        return e2b_end(&r->out, exit->verdict == WIRE_VERDICT_NOT_STARTED ? -EINVAL : -EIO,
                       *text ? text : "how the command ended is not known");
    if (r->timed_out && exit->verdict == WIRE_VERDICT_KILLED) {
        exit->verdict = WIRE_VERDICT_TIMED_OUT;
        exit->timeout_ms = r->timeout_ms;
    }
    int e = e2b_event_end(&r->out.json, exit);
    if (e == 0)
        e = e2b_send(&r->out, 0);
    return e < 0 ? e : e2b_end(&r->out, 0, NULL);
}

/* Everything of it, at once: the output that there is must arrive in time. */
static int end_at_deadline(struct run *r)
{
    const struct wire_message m = {.type = WIRE_EXEC_KILL,
                                   .exec_kill = {.workspace = r->workspace,
                                                 .id = bytes_of_string(r->id),
                                                 .by = bytes_of_string("its timeout")}};
    r->deadline_ns = 0;
    r->timed_out = true;
    return upstream_start(r->upstream, &m, &r->kill);
}

/* Until what is to be done next, but reading; < 0: nothing is. */
static int next_wait_ms(const struct run *r, uint64_t now)
{
    uint64_t next = r->said_ns + r->keepalive_ns;
    if (r->deadline_ns > 0 && r->deadline_ns < next)
        next = r->deadline_ns;
    return next <= now ? 0 : (int)((next - now) / NSEC_PER_MSEC) + 1;
}

static int on_silence(struct run *r)
{
    uint64_t now = clock_monotonic_ns();
    int e = exchange_flush(r->out.x);
    if (e == 0 && r->deadline_ns > 0 && now >= r->deadline_ns)
        e = end_at_deadline(r);
    if (e == 0 && now - r->said_ns >= r->keepalive_ns) {
        r->said_ns = now;
        e = buffer_printf(&r->out.json, "{\"event\":{\"keepalive\":{}}}");
        if (e == 0)
            e = e2b_send(&r->out, 0);
        if (e == 0)
            e = exchange_flush(r->out.x);
    }
    return e;
}

/* Events up to the end; the answer has begun. */
static int follow(struct run *r, struct failure *f)
{
    struct invocation_event event;
    bool silent = true;
    for (;;) {
        int wait = silent ? next_wait_ms(r, clock_monotonic_ns()) : 0;
        int e = invocation_next(r->invocation, wait, &event, f);
        if (e == -EAGAIN) {
            e = on_silence(r);
            silent = true;
        } else if (e == 0 && event.kind == INVOCATION_OUTPUT) {
            e = send_output(r, &event.output);
            r->said_ns = clock_monotonic_ns();
            silent = false;
        } else if (e == 0 && event.kind == INVOCATION_ENDED) {
            return send_end(r, &event.exit);
        }
        /* One that prints without end has a deadline, too. */
        if (e == 0 && r->deadline_ns > 0 && clock_monotonic_ns() >= r->deadline_ns)
            e = end_at_deadline(r);
        if (e < 0)
            return e;
    }
}

/* After the answer has begun, a failure is told in its last frame. */
static int conclude(struct run *r, int result, struct failure *f)
{
    if (result == 0 || result == -ECONNABORTED || !exchange_has_begun(r->out.x))
        return result;
    return e2b_end(&r->out, result, *f->text ? f->text : strerror(-result));
}

static int read_pace(struct run *r, struct failure *f)
{
    const char *text = exchange_field(r->out.x, "keepalive-ping-interval");
    uint64_t seconds = KEEPALIVE_DEFAULT_S;
    if (connect_timeout_ms(exchange_field(r->out.x, "connect-timeout-ms"), &r->timeout_ms) < 0)
        return failure_set(f, -EINVAL, "Connect-Timeout-Ms must be a number of milliseconds");
    if (r->timeout_ms == DEFAULT_TIMEOUT_MS)
        r->timeout_ms = 0;
    if (text && connect_timeout_ms(text, &seconds) < 0)
        seconds = KEEPALIVE_DEFAULT_S;
    if (seconds == 0 || seconds > KEEPALIVE_MAX_S)
        seconds = KEEPALIVE_DEFAULT_S;
    r->keepalive_ns = seconds * NSEC_PER_SEC;
    return 0;
}

static void set_deadline(struct run *r, uint64_t began_ns)
{
    uint64_t margin = r->timeout_ms / 10;
    if (r->timeout_ms == 0)
        return;
    margin = margin < MARGIN_MIN_MS   ? MARGIN_MIN_MS
             : margin > MARGIN_MAX_MS ? MARGIN_MAX_MS
                                      : margin;
    margin = margin > r->timeout_ms / 2 ? r->timeout_ms / 2 : margin;
    r->deadline_ns = began_ns + (r->timeout_ms - margin) * NSEC_PER_MSEC;
}

/* --- Start ------------------------------------------------------------------------------------ */

/* The script, which enters cwd, with argv behind it. */
static int append_shell(struct buffer *argv, const char *script, const char *cwd)
{
    const char *const words[] = {"/bin/sh", "-c", script, cwd};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(words); i++)
        r = wire_list_append(argv, bytes_of_string(words[i]));
    return r;
}
#define SHELL_WORDS 4

/* Puts words before argv. */
static int enter_outside(struct e2b_start *s)
{
    _cleanup_buffer_ struct buffer argv = {0};
    int r = append_shell(&argv, enter_script, s->cwd);
    if (r == 0)
        r = buffer_append(&argv, s->argv.data, s->argv.len);
    if (r < 0)
        return r;
    struct buffer old = s->argv;
    s->argv = argv;
    argv = old;
    s->argv_count += SHELL_WORDS;
    return 0;
}

/* What the sandbox was made with, by its label, before what the command is given: the last of a
 * name counts. */
static int read_given(struct run *r, struct e2b_start *s, struct failure *f)
{
    struct wire_frame *frame;
    const struct wire_message m = {.type = WIRE_WORKSPACE_GET,
                                   .workspace_get = {.key = r->workspace}};
    int e = upstream_call(r->upstream, &m, &frame, f);
    if (e < 0) /* who may not read it may run commands all the same */
        return e == -EACCES ? 0 : e;
    const struct bytes text = frame->message.workspace.labels;
    json_t *labels = json_loadb((const char *)text.data, text.len, 0, NULL);
    const char *given = json_string_value(json_object_get(labels, E2B_ENVIRONMENT_LABEL));
    json_t *envs = given ? json_loads(given, 0, NULL) : NULL;
    json_decref(labels);
    wire_frame_free(frame);
    e = envs ? e2b_start_put_before(s, envs, f) : 0;
    json_decref(envs);
    return e;
}

/* HOME first, so that the client's own counts. */
static int with_home(const struct e2b_start *s, struct buffer *ret)
{
    int r = wire_list_append(ret, bytes_of_string("HOME=" E2B_HOME));
    return r < 0 ? r : buffer_append(ret, s->env.data, s->env.len);
}

static int new_id(struct run *r)
{
    uint32_t n;
    if (getrandom(&n, sizeof n, 0) != (ssize_t)sizeof n)
        return -EIO;
    r->pid = E2B_PID_FIRST | (n & (E2B_PID_FIRST - 1));
    e2b_exec_id(r->pid, r->id);
    return 0;
}

/* Asks once, and waits for the first event, which is in *ret. */
static int try_start(struct run *r, const struct e2b_start *s, struct bytes cwd, bool at_home,
                     struct invocation_event *ret, struct failure *f)
{
    _cleanup_buffer_ struct buffer env = {0};
    int e = new_id(r);
    if (e == 0)
        e = at_home ? with_home(s, &env) : buffer_append(&env, s->env.data, s->env.len);
    if (e < 0)
        return failure_set(f, e, "%s", strerror(-e));
    const struct wire_exec request = {
        .flags = WIRE_EXEC_KEEP | (at_home ? WIRE_EXEC_PATH | WIRE_EXEC_PATH_ONLY : 0U) |
                 (s->stdin_open ? WIRE_EXEC_STDIN : 0U) | (s->pty ? WIRE_EXEC_PTY : 0U),
        .rows = s->rows,
        .columns = s->columns,
        .timeout_ms = r->timeout_ms,
        .workspace = r->workspace,
        .id = bytes_of_string(r->id),
        .cwd = cwd,
        .mount_path = at_home ? bytes_of_string(E2B_HOME) : (struct bytes){0},
        .argv = wire_list_of(&s->argv, s->argv_count),
        .env = wire_list_of(&env, s->env_count + at_home)};
    invocation_free(take_ptr(r->invocation));
    e = invocation_start(r->upstream, &request, (struct bytes){0}, false, &r->invocation, f);
    return e < 0 ? e : invocation_next(r->invocation, -1, ret, f);
}

static bool is_not_started(const struct invocation_event *event, unsigned stage)
{
    return event->kind == INVOCATION_ENDED && event->exit.verdict == WIRE_VERDICT_NOT_STARTED &&
           event->exit.stage == stage;
}

/* Where the sandbox cannot have the workspace at E2B_HOME, it is where it is. */
static int start(struct run *r, const struct e2b_start *s, struct bytes cwd, struct failure *f)
{
    struct invocation_event event;
    int e = try_start(r, s, cwd, true, &event, f);
    if (e == 0 &&
        (is_not_started(&event, WIRE_STAGE_REQUEST) || is_not_started(&event, WIRE_STAGE_CONFINE)))
        e = try_start(r, s, cwd, false, &event, f);
    if (e < 0)
        return e;
    if (event.kind == INVOCATION_STARTED && !event.started.attached)
        return 0;
    if (event.kind != INVOCATION_ENDED)
        return failure_set(f, -EAGAIN, "another command has this number; try again");
    const struct wire_exec_exit *exit = &event.exit;
    int error = exit->stage == WIRE_STAGE_WORKSPACE && exit->error == ENOENT ? -ENOENT
                : exit->stage == WIRE_STAGE_EXECVE || exit->stage == WIRE_STAGE_CWD ||
                        exit->stage == WIRE_STAGE_REQUEST
                    ? -EINVAL
                    : -ESHUTDOWN;
    return failure_set(f, error, "%.*s", (int)exit->text.len, (const char *)exit->text.data);
}

/* Whether commands can enter it: the sandbox alone knows. Else it would be the command that failed,
 * and not the request. */
static int check_outside(struct run *r, const char *cwd, struct failure *f)
{
    _cleanup_start_ struct e2b_start s = {.cwd = "", .argv_count = SHELL_WORDS};
    struct invocation_event event;
    int e = append_shell(&s.argv, try_script, cwd);
    if (e < 0)
        return failure_set(f, e, "out of memory");
    e = start(r, &s, (struct bytes){0}, f);
    if (e < 0)
        return e;
    do
        e = invocation_next(r->invocation, -1, &event, f);
    while (e == 0 && event.kind != INVOCATION_ENDED);
    if (e < 0)
        return e;
    bool entered = event.exit.verdict == WIRE_VERDICT_EXITED && event.exit.code == 0;
    invocation_forget(r->upstream, r->workspace, 0, bytes_of_string(r->id));
    return entered ? 0 : failure_set(f, -EINVAL, "cwd '%s' is no directory of the sandbox", cwd);
}

int e2b_process_start(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_run_ struct run r = {.out.x = x};
    _cleanup_start_ struct e2b_start s = {0};
    struct bytes cwd = {0};
    uint64_t began = clock_monotonic_ns();
    json_t *body = NULL;
    int e = read_pace(&r, ret_failure);
    if (e == 0)
        e = e2b_read(x, true, &body, ret_failure);
    if (e == 0)
        e = e2b_start_read(body, &s, ret_failure);
    bool outside = e == 0 && e2b_path(s.cwd, &cwd) == -ENXIO;
    if (outside && enter_outside(&s) < 0)
        e = failure_set(ret_failure, -ENOMEM, "out of memory");
    while (cwd.len > 0 && *cwd.data == '/')
        cwd = bytes_of(cwd.data + 1, cwd.len - 1);
    r.pty = s.pty;
    if (e == 0)
        e = e2b_enter(x, &r.upstream, &r.workspace, ret_failure);
    if (e == 0 && outside)
        e = check_outside(&r, s.cwd, ret_failure);
    if (e == 0)
        e = read_given(&r, &s, ret_failure);
    if (e == 0)
        e = start(&r, &s, cwd, ret_failure);
    json_decref(body);
    set_deadline(&r, began);
    if (e == 0)
        e = begin_answer(&r);
    if (e == 0)
        e = follow(&r, ret_failure);
    return conclude(&r, e, ret_failure);
}

/* --- finding one ------------------------------------------------------------------------------ */

/* One page of commands; fn answers 1 to stop. */
typedef int command_fn(void *context, const struct wire_exec_command *command);

static int each_command(struct upstream *u, struct bytes workspace, const char *id, command_fn *fn,
                        void *context, struct failure *f)
{
    uint64_t after = 0;
    bool more = true;
    int r = 0;
    while (r == 0 && more) {
        const struct wire_message m = {
            .type = WIRE_EXEC_LIST,
            .exec_list = {.workspace = workspace, .id = bytes_of_string(id), .after = after}};
        struct wire_frame *frame;
        struct wire_message element;
        struct bytes bytes;
        uint32_t offset = 0;
        r = upstream_call(u, &m, &frame, f);
        if (r < 0)
            return r;
        const struct wire_exec_commands *page = &frame->message.exec_commands;
        while (r == 0 && wire_list_next(&page->items, &offset, &bytes))
            r = wire_decode(WIRE_EXEC_COMMAND, bytes, &element) < 0
                    ? failure_set(f, -EPROTO, "the service's answer makes no sense")
                    : fn(context, &element.exec_command);
        more = page->more;
        after = page->after;
        wire_frame_free(frame);
    }
    return r < 0 ? r : 0;
}

struct sought {
    uint32_t pid; /* 0: by its ID */
    bool found;
    char id[WIRE_EXEC_ID_MAX + 1];
    uint32_t flags;
};

static int look_at(void *context, const struct wire_exec_command *c)
{
    struct sought *s = context;
    bool ours = e2b_exec_pid(c->id) != 0;
    if (s->pid && (ours || c->pid != s->pid || c->verdict != WIRE_VERDICT_RUNNING))
        return 0;
    s->found = true;
    s->flags = c->flags;
    (void)snprintf(s->id, sizeof s->id, "%.*s", (int)c->id.len, (const char *)c->id.data);
    return 1;
}

/* The command that a request selects; flags, as it was started with, are asked for when wanted. */
static int find(struct upstream *u, struct bytes workspace, uint32_t pid, bool want_flags,
                struct sought *ret, struct failure *f)
{
    bool ours = pid >= E2B_PID_FIRST && pid <= INT32_MAX;
    *ret = (struct sought){.pid = ours ? 0 : pid};
    e2b_exec_id(ours ? pid : 0, ret->id);
    if (ours && !want_flags)
        return 0;
    char id[E2B_EXEC_ID_SIZE];
    e2b_exec_id(pid, id);
    int r = each_command(u, workspace, ours ? id : "", look_at, ret, f);
    if (r == 0 && !ret->found)
        r = failure_set(f, -ENOENT, "process with pid %u not found", pid);
    return r;
}

/* The request's JSON, the service, the workspace and the command. */
static int select_command(struct exchange *x, bool stream, bool want_flags, json_t **ret_body,
                          struct upstream **ret_upstream, struct bytes *ret_workspace,
                          struct sought *ret, uint32_t *ret_pid, struct failure *f)
{
    int r = e2b_read(x, stream, ret_body, f);
    if (r == 0)
        r = e2b_selector(*ret_body, ret_pid, f);
    if (r == 0)
        r = e2b_enter(x, ret_upstream, ret_workspace, f);
    if (r == 0)
        r = find(*ret_upstream, *ret_workspace, *ret_pid, want_flags, ret, f);
    return r;
}

static int reply_nothing(struct exchange *x)
{
    return exchange_reply(x, 200, "application/json", "{}", 2);
}

/* --- Connect ---------------------------------------------------------------------------------- */

int e2b_process_connect(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_run_ struct run r = {.out.x = x};
    struct invocation_event event;
    struct sought found;
    json_t *body = NULL;
    int e = read_pace(&r, ret_failure);
    if (e == 0)
        e = select_command(x, true, true, &body, &r.upstream, &r.workspace, &found, &r.pid,
                           ret_failure);
    json_decref(body);
    if (e == 0) {
        /* Whoever waits for it is told all that is kept of it, from its first byte. */
        const struct wire_exec_attach request = {.flags = WIRE_ATTACH_OUTPUT | WIRE_ATTACH_FOLLOW |
                                                          WIRE_ATTACH_HOLD,
                                                 .workspace = r.workspace,
                                                 .id = bytes_of_string(found.id)};
        r.pty = found.flags & WIRE_EXEC_PTY;
        e = invocation_attach(r.upstream, &request, &r.invocation, ret_failure);
    }
    if (e == 0)
        e = invocation_next(r.invocation, -1, &event, ret_failure);
    if (e == 0)
        e = begin_answer(&r);
    if (e == 0 && event.kind == INVOCATION_ENDED)
        return send_end(&r, &event.exit);
    if (e == 0)
        e = follow(&r, ret_failure);
    return conclude(&r, e, ret_failure);
}

/* --- unary ------------------------------------------------------------------------------------ */

struct listing {
    json_t *processes;
};

/* What was put before a command's words is not told. */
static json_t *config_of(const struct wire_exec_command *c)
{
    json_t *args = json_array(), *cmd = NULL;
    struct bytes left = c->argv;
    size_t skip = 0, n = 0;
    for (; left.len > 0; n++) {
        const uint8_t *end = memchr(left.data, '\0', left.len);
        struct bytes word = bytes_of(left.data, end ? (size_t)(end - left.data) : left.len);
        if (n == 2 && bytes_equal(word, bytes_of_string(enter_script)))
            skip = 4;
        if (n == skip) {
            json_decref(cmd);
            cmd = e2b_string(word);
            (void)json_array_clear(args);
        } else {
            (void)json_array_append_new(args, e2b_string(word));
        }
        left = end ? bytes_of(end + 1, left.len - word.len - 1) : (struct bytes){0};
    }
    return json_pack("{s:o,s:o,s:{}}", "cmd", cmd ? cmd : json_string(""), "args", args, "envs");
}

static int list_one(void *context, const struct wire_exec_command *c)
{
    struct listing *l = context;
    uint32_t pid = e2b_exec_pid(c->id);
    if (c->verdict != WIRE_VERDICT_RUNNING)
        return 0;
    return json_array_append_new(l->processes, json_pack("{s:o,s:I}", "config", config_of(c), "pid",
                                                         (json_int_t)(pid ? pid : c->pid))) < 0
               ? -ENOMEM
               : 0;
}

int e2b_process_list(struct exchange *x, struct failure *ret_failure)
{
    struct listing l = {0};
    struct upstream *u;
    struct bytes workspace;
    int r = e2b_enter(x, &u, &workspace, ret_failure);
    if (r < 0)
        return r;
    l.processes = json_array();
    r = each_command(u, workspace, "", list_one, &l, ret_failure);
    if (r < 0) {
        json_decref(l.processes);
        return r;
    }
    return exchange_reply_json(x, 200, json_pack("{s:o}", "processes", l.processes));
}

/* Attached to as the one that gives its input; nothing of its output. */
static int attach_input(struct upstream *u, struct bytes workspace, const char *id, unsigned flags,
                        struct invocation **ret, struct failure *f)
{
    struct invocation_event event;
    const struct wire_exec_attach request = {.flags = flags | WIRE_ATTACH_FOLLOW,
                                             .from_stdout = UINT64_MAX,
                                             .from_stderr = UINT64_MAX,
                                             .workspace = workspace,
                                             .id = bytes_of_string(id)};
    int r = invocation_attach(u, &request, ret, f);
    if (r == 0)
        r = invocation_next(*ret, -1, &event, f);
    if (r == 0 && (event.kind != INVOCATION_STARTED || event.started.pid == 0))
        r = failure_set(f, -ENOENT, "the process has ended");
    return r;
}

static int feed(struct exchange *x, bool end, struct failure *f)
{
    _cleanup_invocation_ struct invocation *c = NULL;
    _cleanup_buffer_ struct buffer data = {0};
    struct upstream *u;
    struct bytes workspace;
    struct sought found;
    uint32_t pid;
    bool pty = false;
    json_t *body = NULL;
    int r = select_command(x, false, true, &body, &u, &workspace, &found, &pid, f);
    if (r == 0 && !end)
        r = e2b_input(body, &pty, &data, f);
    json_decref(body);
    if (r < 0)
        return r;
    if ((found.flags & WIRE_EXEC_PTY) && (end || !pty))
        return failure_set(f, -EPIPE,
                           "the process has a terminal: its input is sent there, and "
                           "Ctrl+D (0x04) ends it");
    if (!(found.flags & WIRE_EXEC_PTY) && pty)
        return failure_set(f, -EPIPE, "the process has no terminal");
    if (!(found.flags & (WIRE_EXEC_STDIN | WIRE_EXEC_PTY)))
        return failure_set(f, -EPIPE, "the process was started without standard input");
    exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    r = attach_input(u, workspace, found.id, WIRE_ATTACH_INPUT, &c, f);
    if (r == 0)
        r = invocation_feed(c, buffer_view(&data), end, f);
    if (r == 0)
        r = invocation_leave(take_ptr(c), f);
    return r < 0 ? r : reply_nothing(x);
}

int e2b_process_send_input(struct exchange *x, struct failure *ret_failure)
{
    return feed(x, false, ret_failure);
}

int e2b_process_close_stdin(struct exchange *x, struct failure *ret_failure)
{
    return feed(x, true, ret_failure);
}

int e2b_process_send_signal(struct exchange *x, struct failure *ret_failure)
{
    struct upstream *u;
    struct bytes workspace;
    struct sought found;
    struct wire_frame *frame;
    uint32_t pid;
    int number = 0;
    json_t *body = NULL;
    int r = select_command(x, false, false, &body, &u, &workspace, &found, &pid, ret_failure);
    if (r == 0)
        r = e2b_signal(body, &number, ret_failure);
    json_decref(body);
    if (r < 0)
        return r;
    /* KILL is for all that it has started as well. */
    const struct wire_message m = {
        .type = WIRE_EXEC_KILL,
        .exec_kill = {.signal = number == SIGKILL ? 0 : (uint32_t)number,
                      .workspace = workspace,
                      .id = bytes_of_string(found.id),
                      .by = bytes_of_string("a client of E2B's dialect")}};
    exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    r = upstream_call(u, &m, &frame, ret_failure);
    if (r == -ENOENT || r == -ESRCH || r == -ESTALE)
        return failure_set(ret_failure, -ENOENT, "process with pid %u not found", pid);
    if (r < 0)
        return r;
    wire_frame_free(frame);
    return reply_nothing(x);
}

int e2b_process_update(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_invocation_ struct invocation *c = NULL;
    struct upstream *u;
    struct bytes workspace;
    struct sought found;
    uint32_t pid, rows = 0, columns = 0;
    json_t *body = NULL;
    int r = select_command(x, false, true, &body, &u, &workspace, &found, &pid, ret_failure);
    if (r == 0)
        r = e2b_size(body, &rows, &columns, ret_failure);
    json_decref(body);
    if (r == 0 && !(found.flags & WIRE_EXEC_PTY))
        r = failure_set(ret_failure, -EPIPE, "the process has no terminal");
    if (r == 0)
        r = attach_input(u, workspace, found.id, 0, &c, ret_failure);
    if (r == 0)
        r = invocation_resize(c, rows, columns);
    if (r == 0)
        r = invocation_leave(take_ptr(c), ret_failure);
    return r < 0 ? r : reply_nothing(x);
}
