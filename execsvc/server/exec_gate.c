#include "server/exec_gate.h"

#include <sys/queue.h>

#include "base/buffer.h"
#include "base/cleanup.h"
#include "server/connection.h"

/* Messages that may come for a command before it is started, in bytes of their payloads and what
 * each costs: its input up to the window, and signals. Stops a client from using up memory with
 * signals; what comes after is not passed on. */
#define HELD_MAX (2 * CONNECTION_WINDOW)

struct held_message {
    STAILQ_ENTRY(held_message) link;
    enum wire_type type;
    struct buffer payload;
};

struct waiter {
    struct exec_service *exec;
    struct call *call;
    struct barrier *barrier;
    struct buffer request;
    STAILQ_HEAD(, held_message) messages;
    size_t held;
};

static void waiter_free(struct waiter *w)
{
    struct held_message *held;
    while ((held = STAILQ_FIRST(&w->messages))) {
        STAILQ_REMOVE_HEAD(&w->messages, link);
        buffer_release(&held->payload);
        free(held);
    }
    buffer_release(&w->request);
    free(w);
}

static void on_message(void *context, const struct wire_message *m)
{
    struct waiter *w = context;
    if (w->held > HELD_MAX)
        return;
    struct held_message *held = calloc(1, sizeof *held);
    if (!held || wire_encode(&held->payload, m) < 0) {
        free(held);
        connection_end(w->call->connection, LOG_LEVEL_ERROR, "no memory for a message");
        return;
    }
    held->type = m->type;
    w->held += sizeof *held + held->payload.len;
    STAILQ_INSERT_TAIL(&w->messages, held, link);
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
    STAILQ_FOREACH(held, &w->messages, link)
    {
        struct call *call = connection_find_call(c, tag);
        struct wire_message m;
        if (call && call->events.message &&
            wire_decode(held->type, buffer_view(&held->payload), &m) == 0)
            call->events.message(call->events.context, &m);
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
        exec_service_start(w->exec, w->call, &m.exec, all);
    pass_on(w, c, tag);
    waiter_free(w);
}

void exec_gate_enter(struct exec_service *exec, struct subscribers *subscribers, struct call *call,
                     const struct wire_message *request)
{
    if (subscribers_are_synced(subscribers)) {
        exec_service_start(exec, call, &request->exec, true);
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
    STAILQ_INIT(&w->messages);
    const struct call_events events = {.message = on_message, .gone = on_gone, .context = w};
    call_set_events(call, &events);
    struct barrier *barrier;
    subscribers_sync(subscribers, on_synced, w, &barrier);
    if (barrier)
        w->barrier = barrier;
}
