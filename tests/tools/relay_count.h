/* What passes through the relay, counted: frames and bytes per direction and message type,
 * and round trips.
 *
 * Round trips of a connection, seen from the client's side of the relay: a request's depth is 1
 * more than the greatest depth among the replies that had passed to the client before it; a reply
 * has the depth of its request; the count is the greatest depth of any request. This is the
 * rule of session_stats (wire/session.h) except that a relay cannot know whether somebody waits
 * for a reply, so it counts every request but HELLO and PING: an upper bound of the client's own
 * count, and equal to it when every request is waited for. */
#pragma once

#include <jansson.h>

#include "base/buffer.h"
#include "base/table.h"
#include "wire/wire.h"

enum direction { TO_SERVER, TO_CLIENT, DIRECTIONS };

struct count_type {
    uint64_t frames;
    uint64_t bytes; /* with headers */
};

#define COUNT_TYPES_MAX 256 /* rows of the table, and room; unknown types share the last one */

/* Sums over all connections since the last reset. */
struct count_totals {
    uint64_t bytes[DIRECTIONS]; /* everything, HTTP included */
    struct count_type frames[DIRECTIONS];
    struct count_type types[DIRECTIONS][COUNT_TYPES_MAX];
    uint64_t requests;
    uint64_t round_trips_max; /* of connections that have closed */
    uint64_t round_trips_sum;
    uint64_t upgraded;  /* connections */
    uint64_t malformed; /* connections whose frames could not be followed to the end */
};

/* One connection. */
struct counter;

/* raw: count bytes alone (encrypted streams). -ENOMEM. */
int counter_new(struct count_totals *totals, bool raw, struct counter **ret);

/* Adds the round trips to the totals. */
void counter_free(struct counter *c);

/* Bytes that have passed: to the server when the client's bytes arrive at the relay, to the
 * client when they leave it. */
void counter_feed(struct counter *c, enum direction direction, const uint8_t *data, size_t len);

uint64_t counter_round_trips(const struct counter *c);

/* Starts round trips at 0 again; calls that are open do not count further. */
void counter_reset(struct counter *c);

/* New reference, or NULL when out of memory. */
json_t *count_totals_json(const struct count_totals *t);
