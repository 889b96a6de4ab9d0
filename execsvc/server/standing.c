#include "server/standing.h"

#include "server/connection_private.h"

/* How soon a grant that was taken back is over for who has got in by it. */
#define GRANTS_TICK_S 1

void standing_watch(struct server *s)
{
    const struct timeval tick = {.tv_sec = GRANTS_TICK_S};
    if (s->connection_count + s->parked_count > 0)
        (void)event_add(s->access_timer, &tick);
}

static void end_fallen(struct server *s, struct connection_list *list)
{
    struct connection *c, *next;
    for (c = TAILQ_FIRST(list); c; c = next) {
        next = TAILQ_NEXT(c, link);
        if (c->state >= CONNECTION_CLOSING || access_stands(s->access, c->grant))
            continue;
        log_info("connection %llu from %s: the access of %s has ended", (unsigned long long)c->id,
                 c->peer.name, c->grant->id);
        if (c->state == CONNECTION_PARKED)
            connection_end(c, LOG_LEVEL_DEBUG, "its access has ended");
        else
            connection_goodbye(c, -EACCES, "the access that was granted has ended or was changed");
    }
}

void standing_on_timer(evutil_socket_t fd, short what, void *context)
{
    struct server *s = context;
    (void)access_refresh(s->access);
    end_fallen(s, &s->connections);
    end_fallen(s, &s->parked);
    standing_watch(s);
}
