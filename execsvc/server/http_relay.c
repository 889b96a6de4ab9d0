#include "server/http_relay.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "server/connection_private.h"
#include "server/errand.h"

struct http_relay {
    struct connection *connection;
    struct bufferevent *gateway;
    char ticket[RELAY_TICKET_LEN + 1];
    char identity[GRANT_ID_MAX + 1]; /* of whom it was let in as first */
    bool paused;                     /* nothing is read from the client */
    bool held;                       /* nothing is read from the gateway */
    bool client_ended;               /* it has said all, */
    bool told;                       /* and the gateway knows */
};

static size_t queued(struct bufferevent *b)
{
    return evbuffer_get_length(bufferevent_get_output(b));
}

/* The gateway has said all, or has gone: what it said is still sent. */
static void gateway_ended(struct connection *c)
{
    struct http_relay *r = c->relay;
    (void)evbuffer_add_buffer(bufferevent_get_output(c->bev), bufferevent_get_input(r->gateway));
    bufferevent_free(take_ptr(r->gateway));
    connection_close_when_written(c);
    if (c->state == CONNECTION_CLOSING)
        connection_set_timer(c, RELAY_LAST_S);
}

static void tell_end(struct http_relay *r)
{
    if (!r->client_ended || r->told || queued(r->gateway) > 0)
        return;
    r->told = true;
    (void)shutdown(bufferevent_getfd(r->gateway), SHUT_WR);
}

static void on_gateway_read(struct bufferevent *b, void *context)
{
    struct connection *c = context;
    struct http_relay *r = c->relay;
    if (c->state != CONNECTION_RELAY)
        return;
    if (bufferevent_write_buffer(c->bev, bufferevent_get_input(b)) < 0) {
        connection_end(c, LOG_LEVEL_ERROR, "no memory for an answer");
        return;
    }
    if (!r->held && queued(c->bev) > RELAY_QUEUE_MAX) {
        r->held = true;
        (void)bufferevent_disable(b, EV_READ);
    }
}

static void on_gateway_write(struct bufferevent *b, void *context)
{
    struct connection *c = context;
    struct http_relay *r = c->relay;
    if (r->paused && queued(b) <= RELAY_QUEUE_MAX / 2) {
        r->paused = false;
        (void)bufferevent_enable(c->bev, EV_READ);
        bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
    }
    tell_end(r);
}

/* One that does not take what we write may have said something before it ended. */
static void on_gateway_event(struct bufferevent *b, short what, void *context)
{
    struct connection *c = context;
    if (c->state == CONNECTION_RELAY && (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)) &&
        !(what & BEV_EVENT_WRITING))
        gateway_ended(c);
}

/* --- the client's side ----------------------------------------------------------------------- */

void http_relay_read(struct connection *c)
{
    struct http_relay *r = c->relay;
    if (bufferevent_write_buffer(r->gateway, bufferevent_get_input(c->bev)) < 0) {
        connection_end(c, LOG_LEVEL_ERROR, "no memory for a request");
        return;
    }
    if (!r->paused && queued(r->gateway) > RELAY_QUEUE_MAX) {
        r->paused = true;
        (void)bufferevent_disable(c->bev, EV_READ);
    }
}

void http_relay_drained(struct connection *c)
{
    struct http_relay *r = c->relay;
    if (!r->held || queued(c->bev) > RELAY_QUEUE_MAX / 2)
        return;
    r->held = false;
    (void)bufferevent_enable(r->gateway, EV_READ);
    bufferevent_trigger(r->gateway, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

void http_relay_client_ended(struct connection *c)
{
    struct http_relay *r = c->relay;
    http_relay_read(c);
    if (c->state != CONNECTION_RELAY || r->client_ended)
        return;
    r->client_ended = true;
    connection_set_timer(c, RELAY_HALF_S);
    tell_end(r);
}

/* --- life ------------------------------------------------------------------------------------ */

static bool make_ticket(char ticket[RELAY_TICKET_LEN + 1])
{
    uint8_t random[RELAY_TICKET_LEN / 2];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return false;
    for (size_t i = 0; i < sizeof random; i++)
        (void)snprintf(ticket + 2 * i, 3, "%02x", random[i]);
    return true;
}

static struct bufferevent *new_stream(struct connection *c, int *fd)
{
    struct bufferevent *b = bufferevent_socket_new(c->server->base, *fd, BEV_OPT_CLOSE_ON_FREE);
    if (!b)
        return NULL;
    (void)take_fd(fd);
    bufferevent_setcb(b, on_gateway_read, on_gateway_write, on_gateway_event, c);
    bufferevent_setwatermark(b, EV_READ, 0, RELAY_QUEUE_MAX);
    bufferevent_setwatermark(b, EV_WRITE, RELAY_QUEUE_MAX / 2, 0);
    (void)bufferevent_set_max_single_read(b, RELAY_QUEUE_MAX);
    (void)bufferevent_set_max_single_write(b, RELAY_QUEUE_MAX);
    return b;
}

/* The service's own user, or root, on this machine. */
static bool is_own(const struct connection *c)
{
    return c->peer.local && (c->peer.uid == 0 || c->peer.uid == geteuid());
}

/* The oldest that has not got in makes room for a newer one. False: all have. */
static bool make_room(struct server *s, const struct connection *newer)
{
    struct connection *oldest = NULL;
    struct listener *l;
    unsigned kept = is_own(newer) ? 0 : s->relays_max / RELAY_OWN_PART;
    if (s->relays_alive < s->relays_max - kept)
        return true;
    for (l = listener_first(s); l; l = listener_next(l)) {
        struct connection *c;
        TAILQ_FOREACH(c, listener_pending(l), link)
        {
            if (c->state == CONNECTION_RELAY && (!oldest || c->id < oldest->id))
                oldest = c;
        }
    }
    if (!oldest)
        return false;
    s->counters.dropped_early++;
    connection_end(oldest, LOG_LEVEL_INFO,
                   "dropped for a newer one: too many speak HTTP and have not got in");
    return true;
}

int http_relay_begin(struct connection *c, struct bytes head, struct failure *f)
{
    _cleanup_close_ int fd = -1;
    if (!make_room(c->server, c))
        return failure_set(f, -EBUSY, "too many connections speak HTTP");
    struct http_relay *r = calloc(1, sizeof *r);
    if (!r || !make_ticket(r->ticket)) {
        free(r);
        return failure_set(f, -ENOMEM, "out of memory");
    }
    int error = errand_ask(ERRAND_FD, ERRAND_GATEWAY, r->ticket, &fd, f);
    if (error == 0 && !(r->gateway = new_stream(c, &fd)))
        error = failure_set(f, -ENOMEM, "out of memory");
    if (error == 0 && bufferevent_write(r->gateway, head.data, head.len) < 0)
        error = failure_set(f, -ENOMEM, "out of memory");
    if (error < 0) {
        if (r->gateway)
            bufferevent_free(r->gateway);
        free(r);
        return error;
    }
    r->connection = c;
    c->relay = r;
    c->server->counters.relayed++;
    c->server->relays_alive++;
    connection_set_state(c, CONNECTION_RELAY);
    bufferevent_setwatermark(c->bev, EV_READ, 0, RELAY_QUEUE_MAX);
    bufferevent_setwatermark(c->bev, EV_WRITE, RELAY_QUEUE_MAX / 2, 0);
    (void)bufferevent_set_max_single_read(c->bev, RELAY_QUEUE_MAX);
    (void)bufferevent_set_max_single_write(c->bev, RELAY_QUEUE_MAX);
    (void)bufferevent_enable(r->gateway, EV_READ | EV_WRITE);
    http_relay_read(c); /* what came with the header */
    return 0;
}

void http_relay_free(struct http_relay *r)
{
    if (!r)
        return;
    struct server *s = r->connection->server;
    struct connection *c, *next;
    for (c = TAILQ_FIRST(&s->connections); c; c = next) {
        next = TAILQ_NEXT(c, link);
        if (c->outer == r->connection) {
            c->outer = NULL;
            connection_end(c, LOG_LEVEL_DEBUG, "its client has gone");
        }
    }
    s->relays_alive--;
    OPENSSL_cleanse(r->ticket, sizeof r->ticket);
    if (r->gateway)
        bufferevent_free(r->gateway);
    free(r);
}

/* --- tickets --------------------------------------------------------------------------------- */

static struct connection *find_in(struct connection_list *list, const char *ticket)
{
    struct connection *c;
    TAILQ_FOREACH(c, list, link)
    {
        if (c->state == CONNECTION_RELAY &&
            CRYPTO_memcmp(c->relay->ticket, ticket, RELAY_TICKET_LEN) == 0)
            return c;
    }
    return NULL;
}

struct connection *http_relay_find(struct server *s, const char *ticket)
{
    struct connection *c = strlen(ticket) == RELAY_TICKET_LEN ? find_in(&s->relays, ticket) : NULL;
    struct listener *l;
    for (l = listener_first(s); !c && l && strlen(ticket) == RELAY_TICKET_LEN; l = listener_next(l))
        c = find_in(listener_pending(l), ticket);
    return c;
}

static bool has_its_share(const struct server *s, const char *identity)
{
    const struct connection *c;
    unsigned count = 0;
    TAILQ_FOREACH(c, &s->relays, link)
    {
        count += strcmp(c->relay->identity, identity) == 0;
    }
    return count >= s->relays_max - s->relays_max / RELAY_OTHERS_PART;
}

const char *http_relay_vouch(struct connection *outer, struct connection *inner)
{
    struct server *s = outer->server;
    if (outer->list != &s->relays) {
        if (s->relay_count >= s->connections_max)
            return "too many clients are answered by HTTP";
        if (!is_own(outer) && has_its_share(s, inner->grant->id))
            return "too many HTTP connections have this credential; close some";
        (void)snprintf(outer->relay->identity, sizeof outer->relay->identity, "%s",
                       inner->grant->id);
        connection_move(outer, &s->relays);
        if (!outer->relay->client_ended)
            (void)event_del(outer->timer);
    }
    inner->outer = outer;
    return NULL;
}
