#include "server/connection_private.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <sys/socket.h>

/* Output that is more than a few records. */
#define CORKED_MIN 0x10000

size_t connection_queued(const struct connection *c)
{
    size_t n = c->bev ? evbuffer_get_length(bufferevent_get_output(c->bev)) : 0;
    return c->session ? n + session_output(c->session).len : n;
}

bool connection_over_limit(const struct connection *c, size_t limit)
{
    return c->cost + connection_queued(c) >= limit;
}

void connection_update_flow(struct connection *c)
{
    if (!connection_speaks_frames(c))
        return;
    if (!c->paused && connection_over_limit(c, FLOW_LIMIT)) {
        c->paused = true;
        (void)bufferevent_disable(c->bev, EV_READ);
    } else if (c->paused && !connection_over_limit(c, FLOW_LIMIT / 2)) {
        c->paused = false;
        (void)bufferevent_enable(c->bev, EV_READ);
        bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
    }
}

void connection_charge(struct connection *c, size_t cost)
{
    c->cost += cost;
}

void connection_discharge(struct connection *c, size_t cost)
{
    c->cost -= cost;
    connection_update_flow(c);
}

/* Past the bufferevent while it has nothing queued: it would wait for the socket to become
 * writable first, which costs three system calls and as much time as a small request. */
static size_t write_directly(struct connection *c, struct bytes out)
{
    if (c->ssl || evbuffer_get_length(bufferevent_get_output(c->bev)) > 0)
        return 0;
    ssize_t n = send(c->fd, out.data, out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n < 0 ? 0 : (size_t)n; /* an error shows again in the bufferevent */
}

/* OpenSSL gives each record to the kernel by itself, and without delay each would be a segment of
 * its own, which costs both ends as much as one of four times its size. */
static void set_corked(struct connection *c, bool corked)
{
    const int value = corked;
    c->corked = corked;
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_CORK, &value, sizeof value);
}

static void uncork_if_drained(struct connection *c)
{
    if (c->corked && evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
        set_corked(c, false);
}

static void write_output(struct connection *c)
{
    struct bytes out = session_output(c->session);
    if (out.len == 0)
        return;
    if (c->ssl && !c->corked && out.len > CORKED_MIN)
        set_corked(c, true);
    size_t n = write_directly(c, out);
    if (n < out.len && bufferevent_write(c->bev, out.data + n, out.len - n) < 0)
        connection_end(c, LOG_LEVEL_ERROR, "no memory for output");
    else
        session_output_done(c->session, out.len);
}

void connection_flush(struct connection *c)
{
    struct server *s = c->server;
    if (!c->session || !c->bev || c->state >= CONNECTION_LINGER)
        return;
    /* Large replies must not pile up here: they would be held twice while they are copied. */
    if (session_output(c->session).len >= STREAM_QUEUE_MAX)
        write_output(c);
    if (c->dirty || c->state >= CONNECTION_LINGER)
        return;
    c->dirty = true;
    TAILQ_INSERT_TAIL(&s->dirty, c, dirty_link);
    /* Later in this turn of the loop, so that replies that come together leave together; in
     * the next turn when this one is flushing already, so that a stream which refills what was
     * just written cannot keep the loop to itself. */
    static const struct timeval next_turn = {0};
    if (s->flushing)
        (void)event_add(s->flush, &next_turn);
    else
        event_active(s->flush, EV_TIMEOUT, 0);
}

size_t connection_stream_room(struct connection *c)
{
    size_t queued = connection_queued(c);
    c->starved = c->starved || queued >= STREAM_QUEUE_MAX;
    return queued < STREAM_QUEUE_MAX ? STREAM_QUEUE_MAX - queued : 0;
}

void connection_offer_writable(struct connection *c)
{
    uint64_t tag = 0;
    c->starved = false;
    while (c->state == CONNECTION_READY && connection_queued(c) < STREAM_QUEUE_MAX &&
           (tag = session_next_open(c->session, tag)) != 0) {
        struct call *call = table_get(&c->calls, tag);
        if (call && call->events.writable)
            call->events.writable(call->events.context);
    }
}

static void offer_if_drained(struct connection *c)
{
    if (c->starved && c->state == CONNECTION_READY && connection_queued(c) < STREAM_QUEUE_MAX / 2)
        connection_offer_writable(c);
}

static void linger_if_drained(struct connection *c)
{
    if (c->state != CONNECTION_CLOSING || connection_queued(c) > 0)
        return;
    connection_set_state(c, CONNECTION_LINGER);
    connection_set_timer(c, LINGER_TIMEOUT_S);
    if (c->ssl) {
        (void)SSL_shutdown(c->ssl);
        ERR_clear_error();
    }
    (void)shutdown(c->fd, SHUT_WR);
}

void connection_drained(struct connection *c)
{
    uncork_if_drained(c);
    offer_if_drained(c);
    connection_update_flow(c);
    linger_if_drained(c);
}

void connection_on_flush(evutil_socket_t fd, short what, void *context)
{
    struct server *s = context;
    struct connection_list dirty;
    struct connection *c;
    s->flushing = true;
    TAILQ_INIT(&dirty);
    TAILQ_CONCAT(&dirty, &s->dirty, dirty_link);
    while ((c = TAILQ_FIRST(&dirty))) {
        TAILQ_REMOVE(&dirty, c, dirty_link);
        c->dirty = false;
        if (!c->bev || c->state >= CONNECTION_LINGER)
            continue;
        write_output(c);
        offer_if_drained(c);
        connection_update_flow(c);
        linger_if_drained(c);
    }
    s->flushing = false;
}
