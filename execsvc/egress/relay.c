#include "egress/relay.h"

#include <errno.h>
#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "egress/message.h"

/* Read at once. */
#define READ_MAX ((size_t)64 << 10)

struct side {
    struct relay *relay;
    struct bufferevent *stream;
    bool ended;      /* nothing more comes from it */
    bool shut;       /* it was told that nothing more comes */
    bool paused;     /* it is not read, because the other one does not read */
    uint64_t passed; /* bytes from it */
};

struct relay {
    struct side client;
    struct side server;
    bool forward;
    struct message request;
    struct message answer;
    bool marked; /* the answer says that the connection ends with it */
    bool orderly;
    struct side *failed; /* one that was reset; the other one still gets what came from it */
    struct event *idle;
    uint32_t idle_ms;
    uint64_t active_ns;
    relay_ended ended;
    void *context;
};

static struct side *other_side(struct side *s)
{
    return s == &s->relay->client ? &s->relay->server : &s->relay->client;
}

static size_t waiting_for(const struct side *s)
{
    return evbuffer_get_length(bufferevent_get_output(s->stream));
}

static struct timeval after_ms(uint64_t ms)
{
    return (struct timeval){.tv_sec = (time_t)(ms / 1000),
                            .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
}

/* --- what is passed on ----------------------------------------------------------------------- */

/* The client has to know that there is one answer to a connection, whatever the server says of it:
 * behind the first line of the answer. */
static int pass_marked(struct relay *r, const uint8_t *data, size_t len, struct evbuffer *out)
{
    static const char mark[] = "Connection: close\r\n";
    const uint8_t *line = r->marked || len == 0 ? NULL : memchr(data, '\n', len);
    size_t first = line ? (size_t)(line - data) + 1 : 0;
    if (line) {
        r->marked = true;
        if (evbuffer_add(out, data, first) < 0 || evbuffer_add(out, mark, sizeof mark - 1) < 0)
            return -ENOMEM;
    }
    return evbuffer_add(out, data + first, len - first) < 0 ? -ENOMEM : 0;
}

static int pass_message(struct side *from, struct evbuffer *in, struct evbuffer *out)
{
    struct relay *r = from->relay;
    struct message *m = from == &r->client ? &r->request : &r->answer;
    size_t len = evbuffer_get_length(in);
    const uint8_t *data = evbuffer_pullup(in, -1);
    if (!data)
        return -ENOMEM;
    size_t used = message_feed(m, data, len);
    /* A server that speaks something else is passed on to its end. */
    if (m->broken && from == &r->server)
        used = len;
    int result =
        from == &r->server ? pass_marked(r, data, used, out) : evbuffer_add(out, data, used);
    from->passed += used;
    (void)evbuffer_drain(in, len);
    if (m->done && from == &r->server)
        from->ended = true;
    return result < 0 ? -ENOMEM : 0;
}

/* What has come from a side is passed on, or, if it cannot be, the side has failed: a gap would not
 * be noticed. */
static void pump(struct side *from)
{
    struct relay *r = from->relay;
    struct side *to = other_side(from);
    struct evbuffer *in = bufferevent_get_input(from->stream);
    struct evbuffer *out = bufferevent_get_output(to->stream);
    size_t len = evbuffer_get_length(in);
    int result;
    if (len == 0)
        return;
    if (to->shut) { /* it takes nothing any more */
        (void)evbuffer_drain(in, len);
        return;
    }
    if (r->forward) {
        result = pass_message(from, in, out);
    } else {
        result = evbuffer_add_buffer(out, in);
        from->passed += len;
    }
    if (result < 0) {
        from->ended = from->shut = true;
        r->failed = from;
    }
    if (waiting_for(to) >= RELAY_QUEUE_MAX && !from->paused) {
        from->paused = true;
        (void)bufferevent_disable(from->stream, EV_READ);
    }
}

/* --- ends ------------------------------------------------------------------------------------ */

static void end(struct relay *r, const char *why)
{
    r->orderly = !why;
    r->ended(r->context, why);
}

/* What has come from one side is out: the other one is told that there is no more. The server of a
 * forwarded request is not, since some take that for a client that has gone. */
static void shut_if_done(struct side *from)
{
    struct side *to = other_side(from);
    const struct relay *r = from->relay;
    if (!from->ended || to->shut || waiting_for(to) > 0)
        return;
    to->shut = true;
    if (!(r->forward && r->request.done && to == &r->server))
        (void)shutdown(bufferevent_getfd(to->stream), SHUT_WR);
}

/* The relay may be gone afterwards. */
static void check_ends(struct relay *r)
{
    bool lingering = r->client.shut;
    bool answered = r->forward && r->answer.done;
    if (r->failed && !answered) {
        if (r->failed->ended && waiting_for(other_side(r->failed)) == 0)
            end(r, r->failed == &r->client ? "the client has gone" : "the server has gone");
        return;
    }
    shut_if_done(&r->client);
    shut_if_done(&r->server);
    if (r->client.ended && r->server.ended && r->client.shut && r->server.shut) {
        end(r, NULL);
    } else if (r->forward && r->client.shut && !lingering) {
        const struct timeval time = after_ms(RELAY_LINGER_MS);
        (void)event_add(r->idle, &time);
    }
}

static void on_idle(evutil_socket_t fd, short what, void *context)
{
    struct relay *r = context;
    uint64_t idle_ms = (clock_monotonic_ns() - r->active_ns) / NSEC_PER_MSEC;
    if (r->forward && r->client.shut) {
        end(r, NULL);
    } else if (idle_ms >= r->idle_ms) {
        end(r, "nothing was sent for too long");
    } else {
        const struct timeval time = after_ms(r->idle_ms - idle_ms);
        (void)event_add(r->idle, &time);
    }
}

/* --- the streams' callbacks ------------------------------------------------------------------ */

static void on_read(struct bufferevent *stream, void *context)
{
    struct side *from = context;
    from->relay->active_ns = clock_monotonic_ns();
    pump(from);
    check_ends(from->relay);
}

static void on_written(struct bufferevent *stream, void *context)
{
    struct side *to = context;
    struct side *from = other_side(to);
    to->relay->active_ns = clock_monotonic_ns();
    if (from->paused && !from->ended && waiting_for(to) < RELAY_QUEUE_MAX) {
        from->paused = false;
        (void)bufferevent_enable(from->stream, EV_READ);
    }
    check_ends(to->relay);
}

static void on_event(struct bufferevent *stream, short what, void *context)
{
    struct side *side = context;
    struct relay *r = side->relay;
    if (what & BEV_EVENT_EOF) {
        side->ended = true;
        pump(side);
        check_ends(r);
    } else if (what & BEV_EVENT_ERROR) {
        /* What it has sent before may still be read when it takes no more. */
        side->shut = true;
        side->ended = side->ended || !(what & BEV_EVENT_WRITING);
        if (!r->failed)
            r->failed = side;
        check_ends(r);
    }
}

/* --- birth and death ------------------------------------------------------------------------- */

static void take(struct relay *r, struct side *s, struct bufferevent *stream)
{
    *s = (struct side){.relay = r, .stream = stream};
    bufferevent_setcb(stream, on_read, on_written, on_event, s);
    /* Written to as soon as there is some room again, and told when it is empty. */
    bufferevent_setwatermark(stream, EV_WRITE, RELAY_QUEUE_MAX / 2, 0);
    bufferevent_setwatermark(stream, EV_READ, 0, READ_MAX);
    (void)bufferevent_set_max_single_read(stream, READ_MAX);
}

int relay_new(struct event_base *base, struct bufferevent *client, struct bufferevent *server,
              const struct relay_options *options, relay_ended ended, void *context,
              struct relay **ret)
{
    struct relay *r = calloc(1, sizeof *r);
    if (r)
        r->idle = evtimer_new(base, on_idle, r);
    if (!r || !r->idle) {
        free(r);
        return -ENOMEM;
    }
    const struct timeval time = after_ms(options->idle_ms);
    r->idle_ms = options->idle_ms;
    r->active_ns = clock_monotonic_ns();
    r->ended = ended;
    r->context = context;
    r->forward = options->forward != NULL;
    if (r->forward) {
        message_begin_request(&r->request);
        message_begin_response(&r->answer, options->head);
        (void)message_feed(&r->request, options->forward->data, options->forward->len);
    }
    take(r, &r->client, client);
    take(r, &r->server, server);
    (void)event_add(r->idle, &time);
    /* What the client has sent already; its end comes as an event. */
    pump(&r->client);
    (void)bufferevent_enable(server, EV_READ | EV_WRITE);
    (void)bufferevent_enable(client, EV_WRITE | (r->client.paused ? 0 : EV_READ));
    *ret = r;
    return 0;
}

uint64_t relay_bytes_up(const struct relay *r)
{
    return r->client.passed;
}

uint64_t relay_bytes_down(const struct relay *r)
{
    return r->server.passed;
}

static void close_side(struct side *s, bool orderly)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    if (!orderly)
        (void)setsockopt(bufferevent_getfd(s->stream), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    bufferevent_free(s->stream);
}

void relay_free(struct relay *r)
{
    if (!r)
        return;
    close_side(&r->client, r->orderly);
    close_side(&r->server, r->orderly);
    event_free(r->idle);
    free(r);
}
