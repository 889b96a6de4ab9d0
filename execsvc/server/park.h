/* Sessions that outlive their connection. When the stream of a client breaks that has asked for it
 * (WIRE_FEATURE_RESUME) and has not said goodbye, its connection is parked: without a stream, but
 * with its session, nodes, handles, locks, subscription, and the calls that are open, which go on;
 * their replies are kept (wire/session.h). A connection whose HELLO has the key of a session, and
 * which has authenticated with the same credentials, gives it its stream, wherever it is: the last
 * one to come has it, since a client knows better which of its connections are dead.
 *
 * Parked sessions end after WIRE_PARK_MS, or before, the oldest of a credential first, when that
 * has too many of them. A HELLO that claims to have received what was never sent ends the session.
 */
#pragma once

#include "server/connection.h"

/* Parked sessions of one credential, what they hold together, and the output that waits in them.
 * Stops a client that connects and drops in a loop from taking all memory and descriptors. Each is
 * at least what a single session may have. */
#define PARKED_MAX 64
#define PARKED_NODES_MAX ((size_t)4 << 20)
#define PARKED_HANDLES_MAX ((size_t)65536)
#define PARKED_BYTES_MAX ((size_t)64 << 20)

/* Makes c's key. False: it has none and cannot be parked. */
bool park_make_key(struct connection *c);

/* Parks c, whose stream broke. False: it cannot be. */
bool park_session(struct connection *c, const char *reason);

/* The session_resume_fn of the connection `context`: finds what it wants to go on with. */
bool park_find(void *context, const struct session_resume *asked, uint64_t *ret_received);

/* Gives the stream of c to the connection that park_find found; c ends. */
void park_resume(struct connection *c);

/* The handler of server.park_timer. */
void park_on_timer(evutil_socket_t fd, short what, void *context);
