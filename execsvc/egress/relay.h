/* Bytes between a client and a server, both ways, until both have said that there are no more, one
 * is gone, or nothing has come for a while. A side that does not read holds up the other one, and
 * costs no memory beyond RELAY_QUEUE_MAX. The end of one direction is passed on as such; a
 * connection that was reset resets the other one, so that what is cut short is not taken for the
 * whole.
 *
 * A tunnel carries anything. A forwarded request carries one request and its answer: what the
 * client sends behind that, which may be meant for another server, goes nowhere. */
#pragma once

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

/* Bytes that wait for one side. Stops one that does not read from filling the memory. */
#define RELAY_QUEUE_MAX ((size_t)256 << 10)

/* How long a forwarded request's client may take to close after its answer: its last bytes must not
 * be overtaken by a reset. */
#define RELAY_LINGER_MS 2000

struct relay;

struct relay_options {
    /* NULL: a tunnel. Else the header that the server was sent, for a request that began with it,
     * and whether that was a HEAD. */
    const struct bytes *forward;
    bool head;
    uint32_t idle_ms; /* stops connections that nobody uses from taking up the workspace's share */
};

/* why: NULL for an orderly end, else a text. The relay may be freed in it. */
typedef void (*relay_ended)(void *context, const char *why);

/* Takes both, which must have no callbacks that matter; what waits in them is passed on. -ENOMEM:
 * they are not taken. */
int relay_new(struct event_base *base, struct bufferevent *client, struct bufferevent *server,
              const struct relay_options *options, relay_ended ended, void *context,
              struct relay **ret);

/* Bytes that came from the client and from the server, and were passed on. */
uint64_t relay_bytes_up(const struct relay *r);
uint64_t relay_bytes_down(const struct relay *r);

/* Closes both, by resets if it has not come to an orderly end. NULL is allowed. */
void relay_free(struct relay *r);
