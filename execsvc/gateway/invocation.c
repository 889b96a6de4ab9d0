#include "gateway/invocation.h"

#include <string.h>

#include "base/clock.h"

/* Bytes of one EXEC_INPUT. */
#define INPUT_CHUNK 65536

struct invocation {
    struct upstream *upstream;
    struct upstream_call *call;
    struct wire_frame *frame; /* what was told last */
    struct buffer input;      /* not sent yet, */
    size_t input_at;          /* from here on */
    uint64_t input_offset;    /* of that */
    bool input_ends;          /* behind it, */
    bool input_ended;         /* and that was said */
    bool started;
};

static int open_call(struct upstream *u, const struct wire_message *m, struct invocation **ret,
                     struct failure *f)
{
    _cleanup_invocation_ struct invocation *c = calloc(1, sizeof *c);
    if (!c)
        return failure_set(f, -ENOMEM, "out of memory");
    c->upstream = u;
    int r = upstream_start(u, m, &c->call);
    if (r < 0)
        return failure_set(f, r, "the request cannot be sent: %s", strerror(-r));
    *ret = take_ptr(c);
    return 0;
}

int invocation_start(struct upstream *u, const struct wire_exec *request, struct bytes input,
                     bool input_ends, struct invocation **ret, struct failure *ret_failure)
{
    const struct wire_message m = {.type = WIRE_EXEC, .exec = *request};
    _cleanup_invocation_ struct invocation *c = NULL;
    int r = open_call(u, &m, &c, ret_failure);
    if (r < 0)
        return r;
    if (buffer_append(&c->input, input.data, input.len) < 0)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    c->input_ends = input_ends;
    *ret = take_ptr(c);
    return 0;
}

int invocation_attach(struct upstream *u, const struct wire_exec_attach *request,
                      struct invocation **ret, struct failure *ret_failure)
{
    const struct wire_message m = {.type = WIRE_EXEC_ATTACH, .exec_attach = *request};
    return open_call(u, &m, ret, ret_failure);
}

/* As much as there is credit for. -EAGAIN: there is more; -ENOENT: the command has ended. */
static int send_input(struct invocation *c)
{
    size_t overhead = session_item_cost(WIRE_EXEC_INPUT, 0);
    while (c->started && !c->input_ended) {
        size_t left = c->input.len - c->input_at;
        size_t credit = upstream_credit(c->call);
        if (left == 0 && !c->input_ends)
            return 0;
        if (upstream_is_answered(c->call))
            return -ENOENT;
        if (credit <= overhead)
            return -EAGAIN;
        size_t n = left < INPUT_CHUNK ? left : INPUT_CHUNK;
        n = n < credit - overhead ? n : credit - overhead;
        bool end = n == left && c->input_ends;
        const struct wire_message m = {
            .type = WIRE_EXEC_INPUT,
            .exec_input = {.end = end,
                           .offset = c->input_offset,
                           .data = n > 0 ? bytes_of(c->input.data + c->input_at, n)
                                         : (struct bytes){0}}};
        int r = upstream_send(c->call, &m);
        if (r < 0)
            return r;
        c->input_at += n;
        c->input_offset += n;
        c->input_ended = end;
    }
    return 0;
}

/* One that was started may have had input already: it is the same command, asked for again. */
static void note_started(struct invocation *c, const struct wire_exec_started *started)
{
    size_t left = c->input.len - c->input_at;
    c->started = true;
    if (started->input < c->input_offset)
        return;
    uint64_t there = started->input - c->input_offset;
    c->input_at += there < left ? (size_t)there : left;
    c->input_offset = started->input;
}

/* 1: *ret is the next event; 0: none has come. */
static int look(struct invocation *c, struct invocation_event *ret, struct failure *f)
{
    int r = upstream_next(c->call, 0, &c->frame);
    if (r == -EAGAIN)
        return 0;
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    if (r == 0) {
        r = upstream_finish(take_ptr(c->call), &c->frame, f);
        if (r < 0)
            return r;
        *ret = (struct invocation_event){.kind = INVOCATION_ENDED,
                                         .exit = c->frame->message.exec_exit};
        return 1;
    }
    const struct wire_message *m = &c->frame->message;
    if (m->type == WIRE_EXEC_STARTED) {
        note_started(c, &m->exec_started);
        *ret = (struct invocation_event){.kind = INVOCATION_STARTED, .started = m->exec_started};
    } else if (m->type == WIRE_EXEC_OUTPUT) {
        *ret = (struct invocation_event){.kind = INVOCATION_OUTPUT, .output = m->exec_output};
    } else {
        wire_frame_free(take_ptr(c->frame));
        return look(c, ret, f);
    }
    return 1;
}

/* Waits, until the deadline, for anything. */
static int wait_for_more(struct invocation *c, uint64_t deadline_ns, struct failure *f)
{
    int timeout_ms = -1;
    if (deadline_ns != UINT64_MAX) {
        uint64_t now = clock_monotonic_ns();
        if (now >= deadline_ns)
            return -EAGAIN;
        timeout_ms = (int)((deadline_ns - now) / NSEC_PER_MSEC) + 1;
    }
    int r = upstream_wait(c->upstream, timeout_ms);
    /* What was lost with the connection the call tells. */
    if (r < 0 && upstream_is_answered(c->call))
        return 0;
    return r == -EAGAIN || r == 0 ? r : failure_set(f, r, "%s", strerror(-r));
}

int invocation_next(struct invocation *c, int timeout_ms, struct invocation_event *ret,
                    struct failure *ret_failure)
{
    uint64_t deadline =
        timeout_ms < 0 ? UINT64_MAX : clock_monotonic_ns() + (uint64_t)timeout_ms * NSEC_PER_MSEC;
    wire_frame_free(take_ptr(c->frame));
    if (!c->call)
        return failure_set(ret_failure, -ESHUTDOWN, "the command's end was told");
    for (;;) {
        int r = send_input(c);
        if (r < 0 && r != -EAGAIN && r != -ENOENT)
            return failure_set(ret_failure, r, "%s", strerror(-r));
        r = look(c, ret, ret_failure);
        if (r != 0)
            return r < 0 ? r : 0;
        r = wait_for_more(c, deadline, ret_failure);
        if (r < 0)
            return r;
    }
}

int invocation_feed(struct invocation *c, struct bytes data, bool end, struct failure *ret_failure)
{
    buffer_consume(&c->input, c->input_at);
    c->input_at = 0;
    int r = c->call ? buffer_append(&c->input, data.data, data.len) : -EPIPE;
    c->input_ends = c->input_ends || end;
    while (r == 0) {
        r = send_input(c);
        if (r == 0)
            return 0;
        if (r == -EAGAIN)
            r = wait_for_more(c, UINT64_MAX, ret_failure);
    }
    if (r == -ENOENT || r == -EPIPE)
        return failure_set(ret_failure, -EPIPE, "the command has ended");
    return failure_set(ret_failure, r, "%s", strerror(-r));
}

int invocation_signal(struct invocation *c, int signal)
{
    const struct wire_message m = {.type = WIRE_EXEC_SIGNAL,
                                   .exec_signal.signal = (uint32_t)signal};
    return c->call ? upstream_send(c->call, &m) : -ENOENT;
}

int invocation_resize(struct invocation *c, uint32_t rows, uint32_t columns)
{
    const struct wire_message m = {.type = WIRE_EXEC_RESIZE,
                                   .exec_resize = {.rows = rows, .columns = columns}};
    return c->call ? upstream_send(c->call, &m) : -ENOENT;
}

int invocation_leave(struct invocation *c, struct failure *ret_failure)
{
    const struct wire_message m = {.type = WIRE_CANCEL, .cancel.flags = WIRE_CANCEL_LEAVE};
    struct wire_frame *reply = NULL;
    int r = 0;
    if (c->call) {
        (void)upstream_send(c->call, &m);
        r = upstream_finish(take_ptr(c->call), &reply, ret_failure);
        wire_frame_free(reply);
    }
    invocation_free(c);
    /* It is told so that nobody waits. */
    return r == -ECANCELED ? 0 : r;
}

void invocation_free(struct invocation *c)
{
    if (!c)
        return;
    upstream_drop(c->call, WIRE_CANCEL_LEAVE);
    upstream_flush(c->upstream);
    wire_frame_free(c->frame);
    buffer_release(&c->input);
    free(c);
}

void invocation_forget(struct upstream *u, struct bytes workspace, uint32_t workspace_flags,
                       struct bytes id)
{
    const struct wire_message m = {
        .type = WIRE_EXEC_FORGET,
        .exec_forget = {.workspace_flags = workspace_flags, .workspace = workspace, .id = id}};
    (void)upstream_notify(u, &m);
    upstream_flush(u);
}
