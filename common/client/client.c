#include "client/private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

/* Per turn of the loop: a service that sends without end must not keep the loop from its other
 * descriptors. */
#define READ_BUDGET (16 * CLIENT_INPUT_SIZE)
#define ROOM_MIN 4096 /* from where on a payload is read past the input buffer */

static void read_input(struct client *c);
static void lose(struct client *c, int error, const char *reason);

static bool is_over(const struct client *c)
{
    return c->dead || c->suspended;
}

/* --- life ------------------------------------------------------------------------------- */

static void free_pending(struct pending_call *p)
{
    buffer_release(&p->payload);
    free(p);
}
DEFINE_CLEANUP(struct pending_call *, free_pending);

static void free_event(struct event **e)
{
    if (*e)
        event_free(*e);
    *e = NULL;
}

static void free_events(struct client *c)
{
    free_event(&c->readable);
    free_event(&c->writable);
    free_event(&c->command);
    free_event(&c->resume);
    free_event(&c->flush);
    free_event(&c->watch);
}

static void destroy(struct client *c)
{
    free_events(c);
    stream_close(c->stream);
    session_free(c->session);
    table_release(&c->calls);
    free(c->url);
    free(c);
}

/* What the loop calls is between these two. After leave the client may be gone. */
static void enter(struct client *c)
{
    c->depth++;
}

static void leave(struct client *c)
{
    if (--c->depth == 0 && c->freed)
        destroy(c);
}

static void close_call(struct client *c, struct pending_call *p)
{
    TAILQ_REMOVE(&c->open, p, link);
    (void)table_take(&c->calls, p->tag);
}

/* Answers every call once. A callback may free the client or try to call again, which fails
 * (dead is set), so both lists only get shorter. */
static void answer_all(struct client *c, int error)
{
    assert(c->dead);
    struct pending_call *p;
    while ((p = TAILQ_FIRST(&c->open))) {
        close_call(c, p);
        p->call.reply(p->call.context, error, NULL);
        free_pending(p);
    }
    while ((p = TAILQ_FIRST(&c->queued))) {
        TAILQ_REMOVE(&c->queued, p, link);
        p->call.reply(p->call.context, error, NULL);
        free_pending(p);
    }
}

/* --- output ------------------------------------------------------------------------------ */

int client_write_output(struct client *c)
{
    while (c->stream) {
        struct bytes out = session_output(c->session);
        stream_expect(c->stream, out.len);
        if (out.len == 0)
            return 0;
        ssize_t n = stream_write(c->stream, out.data, out.len);
        if (n < 0)
            return (int)n;
        session_output_done(c->session, (size_t)n);
    }
    return -EAGAIN;
}

static void send_output(struct client *c)
{
    if (c->dead || c->blocked)
        return;
    int r = client_write_output(c);
    if (r == -EAGAIN) {
        c->blocked = true;
        if (event_add(c->writable, NULL) < 0)
            lose(c, -ENOMEM, "no memory for an event");
    } else if (r < 0) {
        /* Why the service hung up may be there to read. */
        read_input(c);
        if (!is_over(c))
            lose(c, -ECONNRESET, NULL);
    }
}

/* Output made in one turn of the loop goes out together, at its end. */
static void schedule_flush(struct client *c)
{
    if (c->attached && !c->dead && !c->blocked)
        event_active(c->flush, EV_WRITE, 0);
}

static void on_flush(evutil_socket_t fd, short what, void *context)
{
    struct client *c = context;
    enter(c);
    send_output(c);
    leave(c);
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    struct client *c = context;
    enter(c);
    c->blocked = false;
    send_output(c);
    leave(c);
}

/* --- silence ------------------------------------------------------------------------------ */

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void arm_watch(struct client *c, uint64_t now, uint64_t due)
{
    /* Never moved back: it finds out itself when it is early, so a call need not touch it. */
    if (evtimer_pending(c->watch, NULL) && c->watch_due_ns <= due)
        return;
    uint64_t wait = due > now ? due - now : 0;
    struct timeval t = {.tv_sec = (time_t)(wait / NSEC_PER_SEC),
                        .tv_usec = (suseconds_t)(wait % NSEC_PER_SEC / 1000 + 1)};
    c->watch_due_ns = due;
    if (evtimer_add(c->watch, &t) < 0)
        log_warning("%s: no memory for a timer; a silent service will not be noticed", c->url);
}

/* When the next step is due if nothing comes: a PING, or, with one open, the end. */
static uint64_t watch_due(const struct client *c)
{
    uint64_t half = c->deadline_ns / 2;
    uint64_t ping_after = CLIENT_PING_AFTER_MS * NSEC_PER_MSEC;
    if (session_open_calls(c->session) == 0)
        return c->last_input_ns + ping_after;
    uint64_t base = later(c->last_input_ns, c->waiting_since_ns);
    if (c->ping_tag)
        /* Counted from the PING too: this process may have been stopped, not the service. */
        return later(c->ping_sent_ns + half, base + c->deadline_ns);
    return base + (half < ping_after ? half : ping_after);
}

static void note_call(struct client *c)
{
    if (c->suspended)
        return;
    if (session_open_calls(c->session) == 1)
        c->waiting_since_ns = clock_monotonic_ns();
    arm_watch(c, c->waiting_since_ns, watch_due(c));
}

static int send_ping(struct client *c, uint64_t now)
{
    struct wire_message ping = {.type = WIRE_PING, .ping = {.nonce = now}};
    int r = session_request(c->session, &ping, false, &c->ping_tag);
    if (r < 0)
        return r;
    c->ping_sent_ns = now;
    if (session_open_calls(c->session) == 1)
        c->waiting_since_ns = now;
    schedule_flush(c);
    return 0;
}

static void watch(struct client *c)
{
    bool looked = false;
    for (;;) {
        uint64_t now = clock_monotonic_ns();
        uint64_t due = watch_due(c);
        if (now < due) {
            arm_watch(c, now, due);
            return;
        }
        if (!c->ping_tag) {
            if (send_ping(c, now) < 0) {
                /* All calls that the service allows are open, or no memory: later. */
                arm_watch(c, now, now + CLIENT_PING_AFTER_MS * NSEC_PER_MSEC);
                return;
            }
        } else if (!looked) {
            /* Bytes that came while we were stopped or busy count. */
            looked = true;
            read_input(c);
            if (is_over(c))
                return;
        } else {
            char reason[96];
            (void)snprintf(reason, sizeof reason, "the service has been silent for %.3g s",
                           (double)c->deadline_ns / NSEC_PER_SEC);
            lose(c, -ETIMEDOUT, reason);
            return;
        }
    }
}

static void on_watch(evutil_socket_t fd, short what, void *context)
{
    struct client *c = context;
    enter(c);
    watch(c);
    leave(c);
}

void client_set_deadline_ms(struct client *c, uint32_t deadline_ms)
{
    if (deadline_ms < CLIENT_DEADLINE_MIN_MS)
        deadline_ms = CLIENT_DEADLINE_MIN_MS;
    c->deadline_ns = deadline_ms * NSEC_PER_MSEC;
    if (c->attached && !c->dead)
        arm_watch(c, clock_monotonic_ns(), watch_due(c));
}

/* --- calls --------------------------------------------------------------------------------- */

/* One slot of the service's limit is kept, so that PING never waits behind slow calls. */
static bool has_room(const struct client *c)
{
    uint32_t max = session_peer(c->session)->max_calls;
    return session_open_calls(c->session) < (max > 1 ? max - 1 : max);
}

/* Sends p's request; p is then in `open`. */
static int send_call(struct client *c, struct pending_call *p, const struct wire_message *request)
{
    /* Room in the table before the request is out and cannot be taken back. No tag is 0. */
    int r = table_put(&c->calls, 0, p, NULL);
    if (r < 0)
        return r;
    (void)table_take(&c->calls, 0);
    r = session_request(c->session, request, p->call.blocking, &p->tag);
    if (r < 0)
        return r;
    (void)table_put(&c->calls, p->tag, p, NULL);
    TAILQ_INSERT_TAIL(&c->open, p, link);
    note_call(c);
    schedule_flush(c);
    return 0;
}

static int queue_call(struct client *c, struct pending_call *p, const struct wire_message *request)
{
    const struct wire_row *row = wire_row(request->type);
    if (!row || row->class != WIRE_CLASS_REQUEST || !(row->from & WIRE_FROM_CLIENT) ||
        row->phase == WIRE_PHASE_HELLO)
        return -EINVAL;
    int r = wire_encode(&p->payload, request);
    if (r < 0)
        return r;
    if (p->payload.len > session_peer(c->session)->max_payload)
        return -EMSGSIZE;
    TAILQ_INSERT_TAIL(&c->queued, p, link);
    return 0;
}

int client_call(struct client *c, const struct wire_message *request,
                const struct client_call *call, uint64_t *ret_tag)
{
    if (c->dead || !c->attached)
        return -ENOTCONN;
    _cleanup_(free_pending_pointer) struct pending_call *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->call = *call;
    p->type = request->type;
    int r = -EAGAIN;
    if (TAILQ_EMPTY(&c->queued) && has_room(c))
        r = send_call(c, p, request);
    if (r == -EAGAIN)
        r = queue_call(c, p, request);
    if (r < 0)
        return r;
    if (ret_tag)
        *ret_tag = p->tag;
    (void)take_ptr(p);
    return 0;
}

static void send_queued(struct client *c)
{
    struct pending_call *p;
    while (!c->dead && (p = TAILQ_FIRST(&c->queued)) && has_room(c)) {
        struct wire_message request;
        int r = wire_decode(p->type, buffer_view(&p->payload), &request);
        TAILQ_REMOVE(&c->queued, p, link);
        if (r == 0)
            r = send_call(c, p, &request);
        buffer_release(&p->payload);
        if (r < 0) {
            p->call.reply(p->call.context, r, NULL);
            free_pending(p);
        } else if (p->call.writable) {
            p->call.writable(p->call.context, p->tag);
        }
    }
}

int client_send(struct client *c, uint64_t tag, const struct wire_message *message)
{
    if (c->dead)
        return -ENOTCONN;
    int r = session_send(c->session, tag, message);
    if (r == 0)
        schedule_flush(c);
    return r;
}

int client_grant(struct client *c, uint64_t tag, size_t bytes)
{
    if (c->dead)
        return -ENOTCONN;
    int r = session_grant(c->session, tag, bytes);
    if (r == 0)
        schedule_flush(c);
    return r;
}

size_t client_credit(const struct client *c, uint64_t tag)
{
    return c->dead ? 0 : session_credit(c->session, tag);
}

/* --- input ------------------------------------------------------------------------------- */

static void reply_received(struct client *c, const struct wire_frame *frame)
{
    if (frame->tag == c->ping_tag) {
        c->ping_tag = 0;
        return;
    }
    struct pending_call *p = table_get(&c->calls, frame->tag);
    if (!p) {
        if (c->events.late)
            c->events.late(c->events.context, &frame->message);
        return;
    }
    close_call(c, p);
    const struct wire_message *m = &frame->message;
    p->call.reply(p->call.context, m->type == WIRE_ERROR ? -(int)m->error.error : 0, m);
    free_pending(p);
}

void client_note_goodbye(struct client *c, const struct wire_goodbye *goodbye)
{
    (void)log_escape(goodbye->text.data, goodbye->text.len, c->goodbye, sizeof c->goodbye);
}

static void frame_received(struct client *c, const struct wire_frame *frame)
{
    switch (wire_row(frame->message.type)->class) {
    case WIRE_CLASS_REPLY:
        reply_received(c, frame);
        break;
    case WIRE_CLASS_ITEM:
    case WIRE_CLASS_CONTROL: {
        struct pending_call *p = table_get(&c->calls, frame->tag);
        if (p && p->call.item)
            p->call.item(p->call.context, frame->tag, &frame->message);
        break;
    }
    case WIRE_CLASS_NOTICE:
        if (frame->message.type == WIRE_GOODBYE)
            client_note_goodbye(c, &frame->message.goodbye);
        break;
    case WIRE_CLASS_REQUEST:
    case WIRE_CLASS_RECORD:
        break; /* the session takes none from a service */
    }
}

static void dispatch(struct client *c)
{
    struct wire_frame *frame;
    while (!c->dead && session_next(c->session, &frame)) {
        c->frame = frame;
        frame_received(c, frame);
        wire_frame_free(take_ptr(c->frame));
    }
}

struct wire_frame *client_take_frame(struct client *c)
{
    assert(c->frame);
    return take_ptr(c->frame);
}

static void notify_writable(struct client *c)
{
    if (c->dead || !session_credit_changed(c->session))
        return;
    for (uint64_t tag = 0; !c->dead && (tag = session_next_open(c->session, tag));) {
        struct pending_call *p = table_get(&c->calls, tag);
        if (p && p->call.writable && session_credit(c->session, tag) > 0)
            p->call.writable(p->call.context, tag);
    }
}

/* True when the service has broken the rules, or for want of memory: the client is lost. */
static bool refuse_input(struct client *c)
{
    int r = c->dead ? 0 : session_feed(c->session, "", 0);
    if (r < 0) {
        (void)client_write_output(c); /* its GOODBYE says why */
        lose(c, r, session_failure(c->session));
    }
    return r < 0;
}

/* Reads once, and gives it to the session. The result is that of stream_read. */
static ssize_t read_some(struct client *c)
{
    size_t room;
    void *to = session_room(c->session, &room);
    if (to && room < ROOM_MIN)
        to = NULL; /* what comes behind it can be had by the same call */
    ssize_t n = stream_read(c->stream, to ? to : c->input, to ? room : sizeof c->input);
    if (n > 0 && to)
        (void)session_room_filled(c->session, (size_t)n);
    else if (n > 0)
        (void)session_feed(c->session, c->input, (size_t)n);
    return n;
}

/* Reads what is there, up to the budget, and hands it on. */
static void read_input(struct client *c)
{
    ssize_t n = -EAGAIN;
    for (size_t total = 0; !c->dead && total < READ_BUDGET; total += (size_t)n) {
        n = read_some(c);
        if (n == -EAGAIN)
            break;
        if (n <= 0) {
            lose(c, n == -ENOMEM ? -ENOMEM : -ECONNRESET, NULL);
            return;
        }
        c->last_input_ns = clock_monotonic_ns();
        dispatch(c);
        if (refuse_input(c))
            return;
    }
    send_queued(c);
    notify_writable(c);
    if (is_over(c))
        return;
    if (session_output(c->session).len > 0)
        schedule_flush(c); /* an acknowledgement */
    /* TLS may hold decrypted bytes back, for which the descriptor never becomes readable. */
    static const struct timeval at_once = {0};
    if (n != -EAGAIN && evtimer_add(c->resume, &at_once) < 0)
        lose(c, -ENOMEM, "no memory for an event");
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    struct client *c = context;
    enter(c);
    dispatch(c); /* what came with the greeting */
    if (!refuse_input(c))
        read_input(c);
    leave(c);
}

static void on_command(evutil_socket_t fd, short what, void *context)
{
    struct client *c = context;
    /* The descriptor is closed at its end. */
    if (!stream_command_pump(c->stream))
        free_event(&c->command);
}

/* The stream is lost and the session is not, if that is possible. */
static bool suspend(struct client *c, int error, const char *reason)
{
    if (!c->events.suspended || c->freed || c->goodbye[0] || !session_resumable(c->session) ||
        (error != -ECONNRESET && error != -ETIMEDOUT))
        return false;
    char text[512];
    free_events(c);
    if (!reason)
        reason = stream_end_reason(c->stream, text, sizeof text);
    if (error == -ETIMEDOUT)
        stream_abandon(c->stream);
    stream_close(take_ptr(c->stream));
    c->suspended = true;
    c->blocked = true;
    c->events.suspended(c->events.context, reason);
    return true;
}

static void lose(struct client *c, int error, const char *reason)
{
    if (suspend(c, error, reason))
        return;
    c->dead = true;
    free_events(c);
    if (error == -ETIMEDOUT)
        stream_abandon(c->stream); /* so that freeing the client does not hold up the loop */
    char text[512];
    if (c->goodbye[0])
        reason = c->goodbye;
    else if (!reason)
        reason = stream_end_reason(c->stream, text, sizeof text);
    answer_all(c, error);
    if (!c->freed && c->events.lost)
        c->events.lost(c->events.context, error, reason);
}

/* --- attaching and freeing ----------------------------------------------------------------- */

static int open_events(struct client *c)
{
    static const struct timeval at_once = {0};
    int fd = stream_fd(c->stream);
    int command_fd = stream_command_fd(c->stream);
    c->readable = event_new(c->base, fd, EV_READ | EV_PERSIST, on_readable, c);
    c->writable = event_new(c->base, fd, EV_WRITE, on_writable, c);
    c->resume = evtimer_new(c->base, on_readable, c);
    c->flush = event_new(c->base, -1, 0, on_flush, c);
    c->watch = evtimer_new(c->base, on_watch, c);
    if (command_fd >= 0)
        c->command = event_new(c->base, command_fd, EV_READ | EV_PERSIST, on_command, c);
    if (!c->readable || !c->writable || !c->resume || !c->flush || !c->watch ||
        (command_fd >= 0 && (!c->command || event_add(c->command, NULL) < 0)) ||
        event_add(c->readable, NULL) < 0 || evtimer_add(c->resume, &at_once) < 0) {
        free_events(c);
        return -ENOMEM;
    }
    c->last_input_ns = clock_monotonic_ns();
    return 0;
}

int client_attach(struct client *c, struct event_base *base, const struct client_events *events)
{
    assert(!c->attached);
    if (c->dead)
        return -ENOTCONN;
    c->base = base;
    int r = open_events(c);
    if (r < 0)
        return r;
    c->events = *events;
    c->attached = true;
    arm_watch(c, c->last_input_ns, watch_due(c));
    schedule_flush(c);
    return 0;
}

/* --- suspended ----------------------------------------------------------------------------- */

struct session_resume client_resume_point(const struct client *c)
{
    struct session_resume point = {.received = session_received(c->session),
                                   .abandoned = c->abandoned};
    memcpy(point.key, session_peer(c->session)->key, sizeof point.key);
    return point;
}

int client_take_stream(struct client *c, struct client *from)
{
    assert(c->suspended && session_peer(from->session)->resumed);
    int r = session_resume(c->session, session_peer(from->session)->received);
    if (r == 0) {
        c->stream = take_ptr(from->stream);
        r = open_events(c);
    }
    if (r < 0) {
        if (c->stream)
            from->stream = take_ptr(c->stream);
        client_discard(from);
        return r;
    }
    size_t len = from->input_len;
    memcpy(c->input, from->input, len);
    client_discard(from);
    c->suspended = c->blocked = false;
    c->waiting_since_ns = c->ping_sent_ns = c->last_input_ns;
    arm_watch(c, c->last_input_ns, watch_due(c));
    /* What it says of a peer that breaks the rules is found in the loop's next turn. */
    if (len > 0)
        (void)session_feed(c->session, c->input, len);
    schedule_flush(c);
    return 0;
}

void client_abandon(struct client *c)
{
    struct pending_call *p;
    struct pending_list lasting = TAILQ_HEAD_INITIALIZER(lasting);
    assert(c->suspended);
    enter(c);
    c->abandoned = session_last_tag(c->session);
    while ((p = TAILQ_FIRST(&c->open))) {
        if (p->call.lasting) {
            TAILQ_REMOVE(&c->open, p, link);
            TAILQ_INSERT_TAIL(&lasting, p, link);
            continue;
        }
        close_call(c, p);
        p->call.reply(p->call.context, -ETIMEDOUT, NULL);
        free_pending(p);
    }
    TAILQ_CONCAT(&c->open, &lasting, link);
    while ((p = TAILQ_FIRST(&c->queued))) {
        TAILQ_REMOVE(&c->queued, p, link);
        p->call.reply(p->call.context, -ETIMEDOUT, NULL);
        free_pending(p);
    }
    leave(c);
}

void client_lose(struct client *c)
{
    assert(c->suspended);
    enter(c);
    c->dead = true;
    answer_all(c, -ECONNRESET);
    leave(c);
}

void client_discard(struct client *c)
{
    if (!c)
        return;
    enter(c);
    c->dead = c->freed = true;
    free_events(c);
    leave(c);
}

void client_free(struct client *c)
{
    if (!c || c->freed)
        return;
    enter(c);
    c->freed = true;
    if (!c->dead) {
        c->dead = true;
        free_events(c);
        answer_all(c, -ECANCELED);
        struct wire_message goodbye = {.type = WIRE_GOODBYE};
        (void)session_send(c->session, 0, &goodbye);
        (void)client_write_output(c);
    }
    leave(c);
}

const struct session_peer *client_peer(const struct client *c)
{
    return session_peer(c->session);
}

struct session_stats client_stats(const struct client *c)
{
    return session_stats(c->session);
}

uint64_t client_setup_ns(const struct client *c)
{
    return stream_setup_ns(c->stream);
}
