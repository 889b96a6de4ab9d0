#include "server/delegations.h"

#include "base/clock.h"
#include "server/connection.h"
#include "server/dispatch.h"

/* A request that waits until another client has made all its names. */
struct waiter {
    struct connection *connection;
    struct call *call;
    struct wire_frame *frame;
    struct barrier *barrier;
};

/* Whether commands live there is asked for this client. */
struct question {
    struct server *server;
    const struct connection *connection; /* it may have gone */
    uint32_t slot;
};

/* The directory in which a request makes a name, or from which it takes a directory in which others
 * may make one; 0: it does neither. */
static uint64_t directory_of(const struct wire_message *m)
{
    switch ((uint32_t)m->type) {
    case WIRE_CREATE:
        return m->create.flags & WIRE_OPEN_UNNAMED ? 0 : m->create.parent;
    case WIRE_MKNOD:
        return m->mknod.parent;
    case WIRE_MKDIR:
        return m->mkdir.parent;
    case WIRE_SYMLINK:
        return m->symlink.parent;
    case WIRE_LINK:
        return m->link.parent;
    case WIRE_RMDIR:
        return m->rmdir.parent;
    case WIRE_RENAME:
        return m->rename.new_parent;
    case WIRE_PLACE:
        return m->place.parent;
    default:
        return 0;
    }
}

/* --- waiting ---------------------------------------------------------------------------- */

static void waiter_free(struct waiter *w)
{
    wire_frame_free(w->frame);
    free(w);
}

static void on_gone(void *context)
{
    struct waiter *w = context;
    barrier_cancel(w->barrier);
    waiter_free(w);
}

static void on_synced(void *context, bool all)
{
    static const struct call_events none = {0};
    struct waiter *w = context;
    call_set_events(w->call, &none);
    dispatch_submit(w->connection, w->call, take_ptr(w->frame));
    waiter_free(w);
}

/* Takes the frame. */
static void wait(struct connection *c, struct call *call, struct wire_frame *frame, uint32_t slot)
{
    struct waiter *w = malloc(sizeof *w);
    if (!w) {
        wire_frame_free(frame);
        call_reply_error(call, -ENOMEM, NULL);
        return;
    }
    *w = (struct waiter){.connection = c, .call = call, .frame = frame};
    const struct call_events events = {.gone = on_gone, .context = w};
    call_set_events(call, &events);
    struct barrier *barrier;
    subscribers_sync(connection_server(c)->subscribers, slot, on_synced, w, &barrier);
    if (barrier)
        w->barrier = barrier;
}

/* --- giving ----------------------------------------------------------------------------- */

static struct maker *maker_of(struct server *s, uint32_t slot)
{
    struct maker *m = &s->makers[slot % SERVER_MAKERS];
    if (m->slot != slot)
        *m = (struct maker){.slot = slot};
    return m;
}

static void on_idle(void *context, bool idle)
{
    struct question *q = context;
    const struct maker *m = maker_of(q->server, q->slot);
    if (idle && m->connection == q->connection && m->shared_until_ns <= clock_monotonic_ns())
        (void)subscribers_delegate(q->server->subscribers, connection_files(m->connection),
                                   q->slot);
    free(q);
}

void delegations_leave(const struct connection *c)
{
    struct server *s = connection_server(c);
    for (size_t i = 0; i < SERVER_MAKERS; i++)
        if (s->makers[i].connection == c)
            s->makers[i].connection = NULL;
}

/* It makes a name there. */
static void note(struct server *s, const struct connection *c, const struct workspace *workspace)
{
    const uint32_t slot = workspace_slot(workspace);
    struct maker *m = maker_of(s, slot);
    uint64_t now = clock_monotonic_ns();
    if (m->connection && m->connection != c)
        m->shared_until_ns = now + DELEGATIONS_PAUSE_MS * NSEC_PER_MSEC;
    m->connection = c;
    if (m->shared_until_ns > now || m->asked_ns + DELEGATIONS_ASK_MS * NSEC_PER_MSEC > now ||
        store_hides(connection_files(c), workspace) ||
        !subscribers_may_delegate(s->subscribers, connection_files(c), slot))
        return;
    struct question *q = malloc(sizeof *q);
    if (!q)
        return;
    *q = (struct question){.server = s, .connection = c, .slot = slot};
    m->asked_ns = now;
    exec_service_ask_idle(s->exec, workspace, on_idle, q);
}

/* True: it was taken. */
static bool take(struct connection *c, struct call *call, struct wire_frame *frame,
                 const struct workspace *workspace)
{
    struct server *s = connection_server(c);
    const struct wire_message *m = &frame->message;
    const struct file_session *session = connection_files(c);
    const uint32_t slot = workspace_slot(workspace);
    if (m->type == WIRE_PLACE && m->place.delegation &&
        !subscribers_has(s->subscribers, session, slot, m->place.delegation)) {
        wire_frame_free(frame);
        call_reply_error(call, -ESTALE, "others may make names there by now");
        return true;
    }
    bool waits = subscribers_others_have(s->subscribers, session, slot);
    note(s, c, workspace);
    if (waits)
        wait(c, call, frame, slot);
    return waits;
}

bool delegations_take(struct connection *c, struct call *call, struct wire_frame *frame)
{
    uint64_t directory = directory_of(&frame->message);
    struct workspace *workspace =
        directory ? store_node_workspace(connection_files(c), directory) : NULL;
    if (!workspace)
        return false;
    bool taken = take(c, call, frame, workspace);
    workspace_unref(workspace);
    return taken;
}
