#include "exec/command.h"

#include <assert.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/log.h"
#include "confine/confinement.h"
#include "exec/input.h"
#include "exec/kill.h"
#include "exec/streams.h"
#include "exec/strings.h"
#include "exec/termination.h"

/* How long after the leader's end its streams may stay open before they are given up: long
 * enough for a pipeline's last writer to be scheduled on a busy machine, short enough not to
 * be noticed by the caller of `server &`. */
#define DRAIN_MS 100

/* A year: keeps sums of times far from overflow. */
#define TIMEOUT_MAX_MS (UINT64_C(365) * 24 * 3600 * 1000)

/* How often whoever watches the leader is woken, once that has ended, until he says so. */
#define WAKE_MS 50

/* The largest number that kill() takes. */
#define SIGNAL_MAX 64

/* Bytes of one read: what a pipe holds. */
#define OUTPUT_READ_MAX 65536

enum command_state {
    COMMAND_STARTING, /* the child sets itself up */
    COMMAND_RUNNING,
    COMMAND_DRAINING, /* the leader has ended, its streams have not */
    COMMAND_ENDED,
};

static const char *const state_names[] = {
    [COMMAND_STARTING] = "starting",
    [COMMAND_RUNNING] = "running",
    [COMMAND_DRAINING] = "draining",
    [COMMAND_ENDED] = "ended",
};

static const bool transitions[4][4] = {
    [COMMAND_STARTING] = {[COMMAND_RUNNING] = true, [COMMAND_ENDED] = true},
    [COMMAND_RUNNING] = {[COMMAND_DRAINING] = true},
    [COMMAND_DRAINING] = {[COMMAND_ENDED] = true},
};

struct output {
    struct command *command;
    uint32_t number; /* 1 or 2 */
    int fd;          /* -1: at its end, or never there */
    struct event *readable;
    uint64_t offset;
    uint64_t owed; /* offset up to which bytes were there when the leader ended */
};

struct command {
    struct event_base *base;
    struct command_events events;
    enum command_state state;
    struct spawn_child child;
    struct event *report_readable;
    struct event *exited;
    struct event *dead; /* the leader has ended, which `exited` does not tell yet; then a timer */
    struct event *timeout;
    const char *timeout_text;
    struct event *drain;
    bool drained; /* the time for the streams to end is over */

    bool terminal;
    bool discard;
    struct output outputs[2];
    struct input *input; /* NULL: /dev/null */

    struct kill_set *kill_set;
    struct termination *termination; /* NULL: it ends by itself */
    bool terminated;                 /* the termination has its receipt */

    uint64_t started_ns;
    uint64_t ended_ns;
    struct strings programs; /* for texts: what was tried, the name as given, the directory */
    struct strings names;
    struct command_verdict verdict;
};

enum { NAME_PROGRAM, NAME_DIRECTORY };

static void command_set_state(struct command *c, enum command_state state)
{
    assert(transitions[c->state][state]);
    log_debug("exec: pid %d: %s -> %s", c->child.pid, state_names[c->state], state_names[state]);
    c->state = state;
}

static void event_release(struct event **e)
{
    if (*e)
        event_free(*e);
    *e = NULL;
}

static void timer_add(struct event *timer, uint64_t ms)
{
    const struct timeval time = {.tv_sec = (time_t)(ms / 1000),
                                 .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    (void)event_add(timer, &time);
}

static uint64_t timeout_bounded(uint64_t ms)
{
    return ms < TIMEOUT_MAX_MS ? ms : TIMEOUT_MAX_MS;
}

/* --- verdicts -------------------------------------------------------------------- */

/* What a shell's $? would be: 127 when there is no such file, 126 when it cannot be run, and
 * 125 when the command was not even looked for. */
static int not_started_code(enum wire_exec_stage stage, int error)
{
    if (error == -E2BIG)
        return 126;
    switch (stage) {
    case WIRE_STAGE_EXECVE:
        return error == -ENOENT ? 127 : 126;
    case WIRE_STAGE_NONE:
    case WIRE_STAGE_REQUEST:
    case WIRE_STAGE_WORKSPACE:
    case WIRE_STAGE_PIPES:
    case WIRE_STAGE_FORK:
    case WIRE_STAGE_SETUP:
    case WIRE_STAGE_CONFINE:
    case WIRE_STAGE_CWD:
    case WIRE_STAGE_ATTEST:
        return 125;
    }
    return 125;
}

void command_verdict_not_started(struct command_verdict *v, enum wire_exec_stage stage, int error,
                                 const char *format, ...)
{
    va_list args;
    *v = (struct command_verdict){.verdict = WIRE_VERDICT_NOT_STARTED,
                                  .stage = stage,
                                  .error = error,
                                  .code = not_started_code(stage, error)};
    va_start(args, format);
    (void)vsnprintf(v->text, sizeof v->text, format, args);
    va_end(args);
}

static void verdict_from_report(struct command *c, const struct spawn_report *report)
{
    struct command_verdict *v = &c->verdict;
    const char *reason = strerror(-report->error);
    const char *directory = c->names.items[NAME_DIRECTORY];
    const char *name = c->names.items[NAME_PROGRAM];
    const char *program =
        report->program < c->programs.count ? c->programs.items[report->program] : name;
    uint64_t timeout_ms = v->timeout_ms;
    if (report->stage == WIRE_STAGE_CWD && report->error == -EXDEV)
        command_verdict_not_started(v, report->stage, report->error,
                                    "%s: leads out of the workspace", directory);
    else if (report->stage == WIRE_STAGE_CWD)
        command_verdict_not_started(v, report->stage, report->error, "%s: %s",
                                    directory[0] ? directory : ".", reason);
    else if (report->stage == WIRE_STAGE_ATTEST && report->error == -EPERM)
        command_verdict_not_started(v, report->stage, report->error,
                                    "what holds the workspace's commands was changed: %s",
                                    restraint_step_name(report->program));
    else if (report->stage == WIRE_STAGE_ATTEST ||
             (report->stage == WIRE_STAGE_CONFINE && report->exists))
        command_verdict_not_started(v, report->stage, report->error, "%s: %s",
                                    restraint_step_name(report->program), reason);
    else if (report->stage == WIRE_STAGE_EXECVE && report->exists)
        command_verdict_not_started(v, report->stage, report->error,
                                    "%s: %s (the interpreter or loader that it names)", program,
                                    reason);
    else if (report->stage == WIRE_STAGE_EXECVE && report->error == -ENOENT && !strchr(name, '/'))
        command_verdict_not_started(v, report->stage, report->error, "%s: not found in PATH", name);
    else if (report->stage == WIRE_STAGE_EXECVE)
        command_verdict_not_started(v, report->stage, report->error, "%s: %s", program, reason);
    else
        command_verdict_not_started(v, report->stage, report->error, "%s", reason);
    v->timeout_ms = timeout_ms;
}

/* --- output ---------------------------------------------------------------------- */

static void command_settle(struct command *c);

static void output_close(struct output *o)
{
    event_release(&o->readable);
    close_fd(&o->fd);
}

/* One read, so that a command that writes all the time does not keep others from the loop. */
static void on_output(evutil_socket_t fd, short what, void *context)
{
    struct output *o = context;
    struct command *c = o->command;
    size_t room = c->discard ? OUTPUT_READ_MAX : c->events.room(c->events.context, o->number);
    if (room == 0) {
        (void)event_del(o->readable);
        return;
    }
    uint8_t data[OUTPUT_READ_MAX];
    ssize_t n = read(o->fd, data, room < sizeof data ? room : sizeof data);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        /* A terminal says EIO when nobody has it open any more. */
        output_close(o);
        command_settle(c);
        return;
    }
    uint64_t offset = o->offset;
    o->offset += (uint64_t)n;
    if (!c->discard)
        c->events.output(c->events.context, o->number, offset, bytes_of(data, (size_t)n));
    if (c->state == COMMAND_DRAINING)
        command_settle(c);
}

static int output_open(struct command *c, size_t i, int *fd)
{
    struct output *o = &c->outputs[i];
    *o = (struct output){.command = c, .number = (uint32_t)i + 1, .fd = -1};
    if (*fd < 0)
        return 0;
    o->readable = event_new(c->base, *fd, EV_READ | EV_PERSIST, on_output, o);
    if (!o->readable)
        return -ENOMEM;
    o->fd = take_fd(fd);
    return 0;
}

static void outputs_read(struct command *c)
{
    for (size_t i = 0; i < ARRAY_SIZE(c->outputs); i++)
        if (c->outputs[i].readable)
            (void)event_add(c->outputs[i].readable, NULL);
}

void command_resume(struct command *c)
{
    if (c->state == COMMAND_RUNNING || c->state == COMMAND_DRAINING)
        outputs_read(c);
}

void command_discard_output(struct command *c)
{
    c->discard = true;
    command_resume(c);
}

/* --- the end --------------------------------------------------------------------- */

static bool outputs_done(const struct command *c)
{
    for (size_t i = 0; i < ARRAY_SIZE(c->outputs); i++) {
        const struct output *o = &c->outputs[i];
        if (o->fd >= 0 && (!c->drained || o->offset < o->owed))
            return false;
    }
    return true;
}

static void command_end(struct command *c)
{
    command_set_state(c, COMMAND_ENDED);
    struct command_verdict *v = &c->verdict;
    v->stdout_bytes = c->outputs[0].offset;
    v->stderr_bytes = c->outputs[1].offset;
    v->duration_ns = c->ended_ns - c->started_ns;
    for (size_t i = 0; i < ARRAY_SIZE(c->outputs); i++)
        output_close(&c->outputs[i]);
    event_release(&c->timeout);
    event_release(&c->drain);
    c->events.ended(c->events.context, v);
}

/* Ends the command if nothing is left to wait for. Must be the caller's last act: the owner
 * may free the command in it. */
static void command_settle(struct command *c)
{
    if (c->state == COMMAND_DRAINING && outputs_done(c) && (!c->termination || c->terminated))
        command_end(c);
}

static void on_drained(evutil_socket_t fd, short what, void *context)
{
    struct command *c = context;
    c->drained = true;
    command_settle(c);
}

static void start_draining(struct command *c)
{
    command_set_state(c, COMMAND_DRAINING);
    for (size_t i = 0; i < ARRAY_SIZE(c->outputs); i++) {
        struct output *o = &c->outputs[i];
        int there = 0;
        if (o->fd >= 0 && ioctl(o->fd, FIONREAD, &there) == 0 && there > 0)
            o->owed = o->offset + (uint64_t)there;
    }
    timer_add(c->drain, DRAIN_MS);
}

static void verdict_from_wait(struct command *c, const siginfo_t *info)
{
    struct command_verdict *v = &c->verdict;
    bool exited = info->si_code == CLD_EXITED;
    v->code = exited ? info->si_status : 0;
    v->signal = exited ? 0 : info->si_status;
    v->core = info->si_code == CLD_DUMPED;
    /* Set by command_terminate: a reason of ours. */
    if (v->verdict == 0)
        v->verdict = exited ? WIRE_VERDICT_EXITED : WIRE_VERDICT_SIGNALED;
    /* The kernel kills what its limit is for, whole; the receipt says whether that is so. */
    if (v->verdict == WIRE_VERDICT_SIGNALED && v->signal == SIGKILL &&
        kill_set_out_of_memory(c->kill_set))
        command_terminate_within(c, 0, WIRE_VERDICT_OOM_KILLED, "it needed more than its limit");
}

static void on_report(evutil_socket_t fd, short what, void *context);

static void on_wake(evutil_socket_t fd, short what, void *context)
{
    const struct command *c = context;
    kill_set_wake(c->kill_set);
}

/* Mostly he says so at the same moment. */
static void on_dead(evutil_socket_t fd, short what, void *context)
{
    const struct timeval time = {.tv_usec = WAKE_MS * 1000};
    struct command *c = context;
    event_release(&c->dead);
    c->dead = event_new(c->base, -1, EV_PERSIST, on_wake, c);
    if (c->dead)
        (void)event_add(c->dead, &time);
}

static void on_exited(evutil_socket_t fd, short what, void *context);

static int wait_on(struct command *c, int fd)
{
    struct event *exited = event_new(c->base, fd, EV_READ | EV_PERSIST, on_exited, c);
    if (!exited)
        return -ENOMEM;
    event_release(&c->exited);
    c->exited = exited;
    return event_add(exited, NULL) < 0 ? -ENOMEM : 0;
}

static void on_exited(evutil_socket_t fd, short what, void *context)
{
    struct command *c = context;
    /* The child is dead, so its report is complete; its event may come after this one. */
    if (c->state == COMMAND_STARTING && c->report_readable)
        on_report(c->child.report, EV_READ, c);
    siginfo_t info = {0};
    int r = kill_set_wait(c->kill_set, &info);
    if (r == -EAGAIN) {
        int now = kill_set_ended_fd(c->kill_set);
        if (now != fd && wait_on(c, now) < 0)
            command_terminate(c, WIRE_VERDICT_UNKNOWN, strerror(ENOMEM));
        return;
    }
    if (r < 0) {
        c->verdict.verdict = WIRE_VERDICT_UNKNOWN;
        c->verdict.error = r;
        (void)snprintf(c->verdict.text, sizeof c->verdict.text,
                       "the process that watched it was killed");
    } else if (c->state != COMMAND_STARTING) {
        verdict_from_wait(c, &info);
    }
    event_release(&c->exited);
    event_release(&c->dead);
    event_release(&c->timeout);
    c->ended_ns = clock_monotonic_ns();
    if (c->state == COMMAND_STARTING) {
        command_end(c);
        return;
    }
    start_draining(c);
    if (c->termination && !c->terminated)
        termination_look(c->termination);
    command_settle(c);
}

static void on_report(evutil_socket_t fd, short what, void *context)
{
    struct command *c = context;
    struct spawn_report report;
    if (spawn_report_read(c->child.report, &report) == -EAGAIN)
        return;
    event_release(&c->report_readable);
    close_fd(&c->child.report);
    if (report.stage != WIRE_STAGE_NONE) {
        verdict_from_report(c, &report);
        return;
    }
    command_set_state(c, COMMAND_RUNNING);
    c->events.started(c->events.context, c->child.pid);
    outputs_read(c);
}

/* --- termination ----------------------------------------------------------------- */

static void on_terminated(void *context, const struct kill_receipt *receipt)
{
    struct command *c = context;
    struct command_verdict *v = &c->verdict;
    v->removed = receipt->removed;
    v->left = receipt->left;
    v->means = receipt->means;
    size_t len = strlen(v->text);
    if (receipt->left > 0)
        (void)snprintf(v->text + len, sizeof v->text - len,
                       receipt->left == 1 ? "%s%zu process that does not die is left"
                                          : "%s%zu processes that do not die are left",
                       len ? "; " : "", receipt->left);
    len = strlen(v->text);
    if (receipt->means == WIRE_MEANS_TREE)
        (void)snprintf(v->text + len, sizeof v->text - len,
                       "%sthe process that watched it was killed, and others may be left",
                       len ? "; " : "");
    c->terminated = true;
    command_settle(c);
}

void command_terminate(struct command *c, enum wire_verdict why, const char *text)
{
    command_terminate_within(c, TERMINATION_GRACE_MS, why, text);
}

void command_terminate_within(struct command *c, uint64_t grace_ms, enum wire_verdict why,
                              const char *text)
{
    if (c->termination || !c->exited)
        return;
    c->verdict.verdict = why;
    (void)snprintf(c->verdict.text, sizeof c->verdict.text, "%s", text ? text : "");
    event_release(&c->timeout);
    if (termination_start(c->base, c->kill_set, grace_ms, on_terminated, c, &c->termination) < 0)
        kill_set_kill(c->kill_set);
}

static void on_timeout(evutil_socket_t fd, short what, void *context)
{
    struct command *c = context;
    uint64_t deadline_ns = c->started_ns + timeout_bounded(c->verdict.timeout_ms) * NSEC_PER_MSEC;
    uint64_t now = clock_monotonic_ns();
    /* The loop's clock is coarse: it may be early by a tick. */
    if (now < deadline_ns)
        timer_add(c->timeout, (deadline_ns - now) / NSEC_PER_MSEC + 1);
    else
        command_terminate(c, WIRE_VERDICT_TIMED_OUT, c->timeout_text);
}

int command_signal(struct command *c, uint32_t signal)
{
    if (signal == 0 || signal > SIGNAL_MAX)
        return -EINVAL;
    int number = signal == SIGTSTP && !c->terminal ? SIGSTOP : (int)signal;
    return kill_set_signal_group(c->kill_set, number);
}

int command_resize(struct command *c, uint32_t rows, uint32_t columns)
{
    if (!c->terminal || c->outputs[0].fd < 0)
        return -ENOTTY;
    return streams_resize(c->outputs[0].fd, rows, columns);
}

/* --- input ----------------------------------------------------------------------- */

static void on_input_taken(void *context, size_t bytes)
{
    struct command *c = context;
    c->events.input_taken(c->events.context, bytes);
}

int command_input(struct command *c, struct bytes data, bool end)
{
    return c->input ? input_append(c->input, data, end) : -EPIPE;
}

/* --- birth and death ------------------------------------------------------------- */

static int command_copy_names(struct command *c, const struct command_options *options)
{
    int r = strings_append(&c->names, bytes_of_string(options->argv[0]));
    if (r < 0)
        return r;
    r = strings_append(&c->names, bytes_of_string(options->cwd));
    if (r < 0)
        return r;
    for (char *const *p = options->programs; p && *p; p++) {
        r = strings_append(&c->programs, bytes_of_string(*p));
        if (r < 0)
            return r;
    }
    return 0;
}

static int command_make_events(struct command *c)
{
    c->report_readable = event_new(c->base, c->child.report, EV_READ | EV_PERSIST, on_report, c);
    c->exited =
        event_new(c->base, kill_set_ended_fd(c->kill_set), EV_READ | EV_PERSIST, on_exited, c);
    if (!c->report_readable || !c->exited || event_add(c->report_readable, NULL) < 0 ||
        event_add(c->exited, NULL) < 0)
        return -ENOMEM;
    if (kill_set_ended_fd(c->kill_set) == c->child.pidfd)
        return 0;
    c->dead = event_new(c->base, c->child.pidfd, EV_READ, on_dead, c);
    return !c->dead || event_add(c->dead, NULL) < 0 ? -ENOMEM : 0;
}

/* All that can be had before the fork is, so that little can fail behind it. */
static int command_prepare(struct command *c, const struct command_options *options,
                           struct streams *streams)
{
    int r = command_copy_names(c, options);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(c->outputs); i++) {
        r = output_open(c, i, &streams->output[i]);
        if (r < 0)
            return r;
    }
    if (streams->input >= 0) {
        r = input_new(c->base, streams->input, c->terminal, on_input_taken, c, &c->input);
        if (r < 0)
            return r;
        (void)take_fd(&streams->input);
    }
    c->timeout = evtimer_new(c->base, on_timeout, c);
    c->drain = evtimer_new(c->base, on_drained, c);
    if (!c->timeout || !c->drain)
        return -ENOMEM;
    return kill_set_new(options->confinement, options->cell, options->view, &c->kill_set);
}

static void command_release(struct command *c)
{
    event_release(&c->report_readable);
    event_release(&c->exited);
    event_release(&c->dead);
    event_release(&c->timeout);
    event_release(&c->drain);
    termination_free(c->termination);
    for (size_t i = 0; i < ARRAY_SIZE(c->outputs); i++)
        output_close(&c->outputs[i]);
    input_free(c->input);
    kill_set_free(c->kill_set);
    close_fd(&c->child.report);
    strings_release(&c->programs);
    strings_release(&c->names);
    free(c);
}

int command_start(struct event_base *base, const struct command_options *options,
                  const struct command_events *events, struct command **ret,
                  struct command_verdict *ret_verdict)
{
    enum wire_exec_stage stage = WIRE_STAGE_PIPES;
    bool unlimited = false;
    struct streams streams;
    const struct streams_options wanted = {
        .flags = options->flags,
        .rows = options->rows,
        .columns = options->columns,
        .terminals = options->cell ? cell_terminals(options->cell) : -1,
    };
    struct failure why;
    int r = streams_open(&wanted, &streams, &why);
    if (r < 0) {
        command_verdict_not_started(ret_verdict, stage, r, "%s", why.text);
        return r;
    }
    struct command *c = calloc(1, sizeof *c);
    if (!c) {
        streams_release(&streams);
        command_verdict_not_started(ret_verdict, stage, -ENOMEM, "%s", strerror(ENOMEM));
        return -ENOMEM;
    }
    *c = (struct command){.base = base,
                          .events = *events,
                          .state = COMMAND_STARTING,
                          .child = SPAWN_CHILD_NONE,
                          .terminal = options->flags & WIRE_EXEC_PTY,
                          .outputs = {{.fd = -1}, {.fd = -1}},
                          .timeout_text = options->timeout_text,
                          .verdict.timeout_ms = options->timeout_ms};
    r = command_prepare(c, options, &streams);
    if (r == 0) {
        const struct spawn_options spawn = {
            .programs = options->programs,
            .argv = options->argv,
            .envp = options->envp,
            .root = options->root,
            .cwd = options->cwd,
            .root_path = options->root_path,
            .streams = {streams.child[0], streams.child[1], streams.child[2]},
            .terminal = c->terminal,
            .limits = options->limits,
        };
        c->started_ns = clock_monotonic_ns();
        stage = WIRE_STAGE_CONFINE;
        r = kill_set_limit(c->kill_set, &options->together);
        unlimited = r == -EOPNOTSUPP;
        if (r == 0)
            r = kill_set_spawn(c->kill_set, &spawn, &c->child, &stage);
    }
    /* Also ours of the child's ends: an end of file must reach us. */
    streams_release(&streams);
    if (r == 0) {
        stage = WIRE_STAGE_FORK;
        r = command_make_events(c);
    }
    if (r < 0) {
        (void)failure_set(&why, r, "limits take a cgroup");
        if (unlimited && options->confinement)
            (void)confinement_check_limits(options->confinement, &options->together, &why);
        command_verdict_not_started(ret_verdict, stage, r, "%s",
                                    unlimited ? why.text : strerror(-r));
        command_free(c);
        return r;
    }
    if (options->timeout_ms > 0)
        timer_add(c->timeout, timeout_bounded(options->timeout_ms));
    *ret = c;
    return 0;
}

uint64_t command_output_bytes(const struct command *c, uint32_t stream)
{
    return c->outputs[stream - 1].offset;
}

size_t command_processes(struct command *c)
{
    return kill_set_alive(c->kill_set);
}

struct kill_set *command_kill_set(struct command *c)
{
    return c->kill_set;
}

void command_free(struct command *c)
{
    if (c)
        command_release(c);
}
