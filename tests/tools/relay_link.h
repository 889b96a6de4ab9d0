/* One relayed connection: bytes from either side come out of the other after the configured
 * delay and not faster than the configured bandwidth. */
#pragma once

#include <event2/event.h>

#include "relay_count.h"

/* Shared by all links; may change at any time, and then holds for bytes that arrive later. */
struct link_settings {
    uint64_t delay_ns;  /* one way, each direction */
    uint64_t bandwidth; /* bytes per second, each direction; 0: no limit */
    bool stalled;       /* nothing is taken and nothing comes out */
    bool raw;           /* see counter_new */
    uint64_t cut_after; /* bytes of both directions, then the connection is cut; 0: never */
};

struct link;

/* Takes both descriptors (non-blocking), also when it fails. closed is called once when both
 * sides have ended, and frees nothing: the callee calls link_free. */
int link_new(struct event_base *base, struct link_settings *settings, struct count_totals *totals,
             int client_fd, int server_fd, void (*closed)(void *context, struct link *link),
             void *context, struct link **ret);

/* Closes both sides; bytes under way are lost. */
void link_free(struct link *link);

/* From now on everything that arrives is thrown away; the sockets stay open. */
void link_swallow(struct link *link);

/* The same, and the server sees the end of the connection, of which the client hears nothing. */
void link_lose(struct link *link);

/* After a change of settings->stalled. */
void link_update(struct link *link);

struct counter *link_counter(struct link *link);
