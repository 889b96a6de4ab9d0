#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "control/private.h"

/* A request of a peer's under another tag in the session that it was passed on to. Answered or
 * given up once; the client's callbacks own it. */
struct forward {
    struct peer *peer; /* NULL: gone */
    struct control *control;
    uint64_t tag;        /* the peer's */
    uint64_t client_tag; /* 0: waits to be sent */
    uint64_t generation; /* of control->client */
    uint32_t credit_in;  /* item bytes the peer may send */
    uint32_t credit_out; /* and we let the service send */
    bool cancel;         /* to be sent when it has a tag */
    STAILQ_HEAD(, held_frame) held;
};

/* What comes before the request has gone out; as much as the credit lets come, and signals. */
struct held_frame {
    STAILQ_ENTRY(held_frame) link;
    struct wire_frame *frame;
};

/* Frames held at most: stops a peer from using up memory with signals to a call that waits. */
#define HELD_MAX 64

static void release_held(struct forward *f)
{
    struct held_frame *h;
    while ((h = STAILQ_FIRST(&f->held))) {
        STAILQ_REMOVE_HEAD(&f->held, link);
        wire_frame_free(h->frame);
        free(h);
    }
}

static void forward_free(struct forward *f)
{
    if (f->peer)
        (void)table_take(&f->peer->forwards, f->tag);
    release_held(f);
    free(f);
}

static struct client *client_of(const struct forward *f)
{
    return f->generation == f->control->generation ? f->control->client : NULL;
}

static void send_cancel(struct forward *f)
{
    /* It lingers, as after the loss of a connection of its own: its program may come back. */
    const struct wire_message cancel = {.type = WIRE_CANCEL, .cancel.flags = WIRE_CANCEL_LEAVE};
    struct client *client = client_of(f);
    f->cancel = f->client_tag == 0;
    if (client && f->client_tag)
        (void)client_send(client, f->client_tag, &cancel);
}

/* --- from the service -------------------------------------------------------------- */

static void on_reply(void *context, int error, const struct wire_message *reply)
{
    struct forward *f = context;
    struct peer *p = f->peer;
    uint64_t tag = f->tag;
    forward_free(f);
    if (!p)
        return;
    /* What became of it nobody knows. */
    int r = reply ? session_send(p->session, tag, reply) : error;
    if (r == -EMSGSIZE)
        r = session_send_error(p->session, tag, r, NULL);
    if (r < 0 && r != -ENOENT)
        peer_end(p, r, "the connection to the service is lost");
    else
        peer_flush(p);
}

static void drop_item(struct forward *f, uint64_t tag, const struct wire_message *item)
{
    struct client *client = client_of(f);
    if (client && item->type == WIRE_EXEC_OUTPUT)
        (void)client_grant(client, tag,
                           session_item_cost(WIRE_EXEC_OUTPUT, item->exec_output.data.len));
}

static void on_item(void *context, uint64_t tag, const struct wire_message *item)
{
    struct forward *f = context;
    struct peer *p = f->peer;
    if (!p) {
        drop_item(f, tag, item);
        return;
    }
    size_t before = session_credit(p->session, f->tag);
    int r = session_send(p->session, f->tag, item);
    f->credit_out -= (uint32_t)(before - session_credit(p->session, f->tag));
    if (r < 0 && r != -ENOENT)
        peer_end(p, r, "a message of the service cannot be passed on");
    else
        peer_flush(p);
}

/* The peer is to have the credit that the service gives us. */
static void pass_credit(struct forward *f)
{
    struct client *client = client_of(f);
    size_t credit = client ? client_credit(client, f->client_tag) : 0;
    if (!f->peer || credit <= f->credit_in)
        return;
    if (session_grant(f->peer->session, f->tag, credit - f->credit_in) < 0)
        return;
    f->credit_in = (uint32_t)credit;
    peer_flush(f->peer);
}

/* The service is to have the credit that the peer gives us. */
static void pass_grant(struct forward *f)
{
    struct client *client = client_of(f);
    size_t credit = f->peer ? session_credit(f->peer->session, f->tag) : 0;
    if (!client || !f->client_tag || credit <= f->credit_out)
        return;
    if (client_grant(client, f->client_tag, credit - f->credit_out) == 0)
        f->credit_out = (uint32_t)credit;
}

static int send_held(struct forward *f)
{
    int r = 0;
    struct held_frame *h;
    STAILQ_FOREACH(h, &f->held, link)
    if (r == 0)
        r = client_send(client_of(f), f->client_tag, &h->frame->message);
    release_held(f);
    return r;
}

static void on_writable(void *context, uint64_t tag)
{
    struct forward *f = context;
    f->client_tag = tag;
    if (send_held(f) < 0 && f->peer) {
        peer_end(f->peer, -EPROTO, "what was sent for a call could not be passed on");
        return;
    }
    if (f->cancel)
        send_cancel(f);
    pass_grant(f);
    pass_credit(f);
}

/* --- from the peer ----------------------------------------------------------------- */

/* What needs nothing of the session but the answer. */
static bool is_passed_on(enum wire_type type)
{
    switch ((uint32_t)type) {
    case WIRE_STATUS:
    case WIRE_WORKSPACE_CREATE:
    case WIRE_WORKSPACE_REMOVE:
    case WIRE_WORKSPACE_LIST:
    case WIRE_WORKSPACE_GET:
    case WIRE_WORKSPACE_SET:
    case WIRE_EXEC:
    case WIRE_EXEC_ATTACH:
    case WIRE_EXEC_LIST:
    case WIRE_EXEC_KILL:
    case WIRE_EXEC_POLICY:
    case WIRE_EXEC_LIFT:
    case WIRE_EXEC_POLICY_SET:
    case WIRE_EXEC_USAGE:
    case WIRE_EGRESS_LOG:
    case WIRE_SNAPSHOT_CREATE:
    case WIRE_SNAPSHOT_LIST:
    case WIRE_SNAPSHOT_REMOVE:
    case WIRE_WORKSPACE_RESTORE:
    case WIRE_WORKSPACE_VISIBILITY:
    case WIRE_WORKSPACE_SET_VISIBILITY:
        return true;
    default:
        return false;
    }
}

/* These take as long as they take. */
static bool is_lasting(const struct wire_message *m)
{
    return m->type == WIRE_EXEC || m->type == WIRE_EXEC_ATTACH || m->type == WIRE_EXEC_KILL ||
           m->type == WIRE_SNAPSHOT_CREATE || m->type == WIRE_SNAPSHOT_REMOVE ||
           m->type == WIRE_WORKSPACE_RESTORE;
}

int forward_open(struct peer *p, const struct wire_frame *frame)
{
    struct control *c = p->control;
    if (!is_passed_on(frame->message.type))
        return session_send_error(p->session, frame->tag, -EOPNOTSUPP,
                                  "this takes a connection of its own");
    if (session_credit(p->session, frame->tag) < CLIENT_WINDOW)
        return session_send_error(p->session, frame->tag, -EINVAL,
                                  "the window of this program is too small");
    struct forward *f = calloc(1, sizeof *f);
    int r = f ? table_put(&p->forwards, frame->tag, f, NULL) : -ENOMEM;
    if (r < 0) {
        free(f);
        return r;
    }
    *f = (struct forward){.peer = p,
                          .control = c,
                          .tag = frame->tag,
                          .generation = c->generation,
                          .credit_in = client_peer(c->client)->window,
                          .credit_out = CLIENT_WINDOW};
    STAILQ_INIT(&f->held);
    const struct client_call call = {.reply = on_reply,
                                     .item = on_item,
                                     .writable = on_writable,
                                     .context = f,
                                     .lasting = is_lasting(&frame->message)};
    r = client_call(c->client, &frame->message, &call, &f->client_tag);
    if (r < 0) {
        forward_free(f);
        return r == -ENOMEM ? r : session_send_error(p->session, frame->tag, r, NULL);
    }
    c->calls++;
    return 0;
}

int forward_message(struct peer *p, struct wire_frame **frame)
{
    struct forward *f = table_get(&p->forwards, (*frame)->tag);
    const struct wire_row *row = wire_row((*frame)->message.type);
    if (!f) /* it crossed the reply */
        return 0;
    if (row->class == WIRE_CLASS_ITEM) {
        size_t cost = (*frame)->payload.len;
        f->credit_in -= (uint32_t)(cost < f->credit_in ? cost : f->credit_in);
    }
    struct client *client = client_of(f);
    if (!client)
        return -ENOTCONN;
    if (f->client_tag) {
        int r = client_send(client, f->client_tag, &(*frame)->message);
        return r == -ENOENT ? 0 : r;
    }
    size_t count = 0;
    struct held_frame *h;
    STAILQ_FOREACH(h, &f->held, link)
    count++;
    if (count == HELD_MAX)
        return -EPROTO;
    h = calloc(1, sizeof *h);
    if (!h)
        return -ENOMEM;
    h->frame = take_ptr(*frame);
    STAILQ_INSERT_TAIL(&f->held, h, link);
    return 0;
}

void forward_credit(struct peer *p)
{
    size_t cursor = 0;
    struct forward *f;
    while ((f = table_next(&p->forwards, &cursor)))
        pass_grant(f);
}

void forward_leave(struct peer *p)
{
    size_t cursor = 0;
    struct forward *f;
    while ((f = table_next(&p->forwards, &cursor))) {
        f->peer = NULL;
        release_held(f);
        send_cancel(f);
    }
    table_release(&p->forwards);
}
