#include "server/park.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "server/backend.h"
#include "server/connection_private.h"

/* How often they are looked at. */
#define TICK_S 1

bool park_make_key(struct connection *c)
{
    return getrandom(c->key, sizeof c->key, 0) == (ssize_t)sizeof c->key;
}

/* --- bounds ----------------------------------------------------------------------- */

static bool same_credential(const struct connection *a, const struct connection *b)
{
    return memcmp(a->credential, b->credential, sizeof a->credential) == 0;
}

/* The oldest of c's credential when together they are too much, or NULL. */
static struct connection *superfluous(const struct connection *c)
{
    struct connection *oldest = NULL, *p;
    size_t count = 0, nodes = 0, handles = 0, bytes = 0;
    TAILQ_FOREACH(p, &c->server->parked, link)
    {
        if (!same_credential(p, c))
            continue;
        const struct file_session_size size = file_session_size(backend_files(p->backend));
        oldest = oldest ? oldest : p;
        count++;
        nodes += size.nodes;
        handles += size.handles;
        bytes += session_kept(p->session);
    }
    bool too_much = count > PARKED_MAX || nodes > PARKED_NODES_MAX ||
                    handles > PARKED_HANDLES_MAX || bytes > PARKED_BYTES_MAX;
    return too_much ? oldest : NULL;
}

static void keep_bounds(const struct connection *c)
{
    struct connection *p;
    while ((p = superfluous(c)))
        connection_end(p, LOG_LEVEL_INFO, "its client has too many parked sessions");
}

static void set_timer(struct server *s)
{
    const struct timeval tick = {.tv_sec = TICK_S};
    if (s->parked_count > 0)
        (void)event_add(s->park_timer, &tick);
}

void park_on_timer(evutil_socket_t fd, short what, void *context)
{
    struct server *s = context;
    struct connection *p, *next;
    uint64_t now = clock_monotonic_ns();
    for (p = TAILQ_FIRST(&s->parked); p; p = next) {
        next = TAILQ_NEXT(p, link);
        if (now - p->parked_ns >= WIRE_PARK_MS * NSEC_PER_MSEC)
            connection_end(p, LOG_LEVEL_INFO, "its client has not come back in time");
    }
    /* Replies may have come since. */
    for (p = TAILQ_FIRST(&s->parked); p; p = next) {
        struct connection *extra = superfluous(p);
        if (extra)
            connection_end(extra, LOG_LEVEL_INFO, "its replies are too many to be kept");
        next = extra ? TAILQ_FIRST(&s->parked) : TAILQ_NEXT(p, link);
    }
    set_timer(s);
}

/* --- in and out ------------------------------------------------------------------- */

/* What was queued in the stream has been kept in the session. */
static void drop_stream(struct connection *c)
{
    bufferevent_free(c->bev);
    c->bev = NULL;
    c->ssl = NULL;
    c->fd = -1;
}

static void park(struct connection *c)
{
    drop_stream(c);
    connection_set_state(c, CONNECTION_PARKED);
    c->parked_ns = clock_monotonic_ns();
    connection_move(c, &c->server->parked);
    set_timer(c->server);
}

bool park_session(struct connection *c, const char *reason)
{
    if (c->state != CONNECTION_READY || !session_resumable(c->session) || c->server->stopping)
        return false;
    log_info("connection %llu from %s, parked: %s", (unsigned long long)c->id, c->peer.name,
             reason);
    c->server->counters.parked++;
    park(c);
    keep_bounds(c);
    return true;
}

static struct connection *find_in(struct connection_list *list, const struct connection *c,
                                  const uint8_t *key)
{
    struct connection *p;
    TAILQ_FOREACH(p, list, link)
    {
        if (p != c && connection_answers(p) && session_resumable(p->session) &&
            CRYPTO_memcmp(p->key, key, sizeof p->key) == 0)
            return p;
    }
    return NULL;
}

bool park_find(void *context, const struct session_resume *asked, uint64_t *ret_received)
{
    struct connection *c = context;
    struct server *s = c->server;
    struct connection *p = find_in(&s->parked, c, asked->key);
    if (!p)
        p = find_in(&s->connections, c, asked->key);
    if (p && !same_credential(p, c)) {
        server_log_refusal(s,
                           "connection %llu from %s: the session it asks for is another client's",
                           (unsigned long long)c->id, c->peer.name);
        return false;
    }
    c->returns = !p;
    if (!p || s->stopping)
        return false;
    if (session_resume(p->session, asked->received) < 0) {
        connection_end(p, LOG_LEVEL_INFO, "its client cannot go on where it was");
        return false;
    }
    if (p->state == CONNECTION_READY)
        park(p);
    if (asked->abandoned > p->abandoned)
        p->abandoned = asked->abandoned;
    c->resumes = p;
    *ret_received = session_received(p->session);
    return true;
}

void park_resume(struct connection *c)
{
    struct connection *p = c->resumes;
    struct bytes welcome = session_output(c->session);
    c->resumes = NULL;
    if (bufferevent_write(c->bev, welcome.data, welcome.len) < 0) {
        connection_end(c, LOG_LEVEL_ERROR, "no memory for WELCOME");
        return;
    }
    p->bev = c->bev;
    p->fd = c->fd;
    p->ssl = c->ssl;
    p->peer = c->peer;
    p->listener = c->listener;
    c->bev = NULL;
    c->ssl = NULL;
    c->fd = -1;
    connection_end(c, LOG_LEVEL_DEBUG, "gave its stream to an older session");
    connection_set_state(p, CONNECTION_READY);
    connection_move(p, &p->server->connections);
    p->server->counters.resumed++;
    log_info("connection %llu from %s goes on", (unsigned long long)p->id, p->peer.name);
    connection_watch_stream(p);
    connection_go_on(p);
}
