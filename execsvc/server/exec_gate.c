#include "server/exec_gate.h"

#include "base/buffer.h"
#include "base/cleanup.h"
#include "server/connection.h"
#include "server/held.h"

struct waiter {
    struct exec_service *exec;
    struct call *call;
    struct barrier *barrier;
    struct buffer request;
    struct held held; /* what has come for the command before it is started */
};

static void waiter_free(struct waiter *w)
{
    held_release(&w->held);
    buffer_release(&w->request);
    free(w);
}

static void on_message(void *context, const struct wire_message *m)
{
    struct waiter *w = context;
    if (held_add(&w->held, m) < 0)
        connection_end(w->call->connection, LOG_LEVEL_ERROR, "no memory for a message");
}

static void on_gone(void *context)
{
    struct waiter *w = context;
    barrier_cancel(w->barrier);
    waiter_free(w);
}

/* What has come for the command meanwhile. The call ends when it cannot be started. */
static void pass_on(struct waiter *w, struct connection *c, uint64_t tag)
{
    struct held_message *held;
    while ((held = held_take(&w->held))) {
        struct call *call = connection_find_call(c, tag);
        struct wire_message m;
        if (call && call->events.message && held_message_read(held, &m))
            call->events.message(call->events.context, &m);
        held_message_free(held);
    }
}

static void on_synced(void *context, bool all)
{
    struct waiter *w = context;
    struct connection *c = w->call->connection;
    uint64_t tag = w->call->tag;
    struct wire_message m;
    const struct call_events none = {0};
    call_set_events(w->call, &none);
    if (wire_decode(WIRE_EXEC, buffer_view(&w->request), &m) < 0)
        call_reply_error(w->call, -ENOMEM, NULL);
    else
        exec_service_start(w->exec, w->call, &m, all);
    pass_on(w, c, tag);
    waiter_free(w);
}

void exec_gate_enter(struct exec_service *exec, struct subscribers *subscribers, struct call *call,
                     const struct wire_message *request)
{
    if (subscribers_are_synced(subscribers)) {
        exec_service_start(exec, call, request, true);
        return;
    }
    struct waiter *w = calloc(1, sizeof *w);
    if (!w || wire_encode(&w->request, request) < 0) {
        free(w);
        call_reply_error(call, -ENOMEM, NULL);
        return;
    }
    w->exec = exec;
    w->call = call;
    held_init(&w->held);
    const struct call_events events = {.message = on_message, .gone = on_gone, .context = w};
    call_set_events(call, &events);
    struct barrier *barrier;
    subscribers_sync(subscribers, 0, on_synced, w, &barrier);
    if (barrier)
        w->barrier = barrier;
}
