/* A connection that speaks HTTP and does not ask for frames: its bytes, from the first, go to the
 * gateway and come from there (gateway/process.h), which answers each request by calls that it
 * makes at the listener of kind LISTENER_GATEWAY. These are this client's: the upgrade names it by
 * its ticket (Berth-Caller), is decided about as if the client itself had asked with those
 * credentials, and what was upgraded ends with the connection.
 *
 * Until the service has let its client in once, which is how a request is usually begun, it is
 * among those of its listener that have not got in: it gets HANDSHAKE_TIMEOUT_S, and the oldest is
 * dropped for a newer one, also when there are server.relays_max in all. */
#pragma once

#include "server/connection.h"

/* 16 random bytes in hexadecimal. */
#define RELAY_TICKET_LEN 32

/* Bytes that wait in either direction before no more are read. */
#define RELAY_QUEUE_MAX (256u << 10)

/* After the client's end of file: it may have closed its sending side alone, and gets its answer if
 * that comes soon. Longer, and who has gone would keep a command running. */
#define RELAY_HALF_S 3

/* What is left of the last answer is taken within this time. */
#define RELAY_LAST_S 60

/* Of the places there are: one of so many is the service's own user's and root's, on this machine,
 * and one of so many is not for who has all others with one credential. Stops one client from
 * locking out everybody else. */
#define RELAY_OWN_PART 8
#define RELAY_OTHERS_PART 4

struct http_relay;

/* c has a complete header; head: what has been received and taken from the input. 0; a negative
 * errno: there is no gateway now. */
int http_relay_begin(struct connection *c, struct bytes head, struct failure *ret_failure);

/* The client has sent something, has taken something, has said all. */
void http_relay_read(struct connection *c);
void http_relay_drained(struct connection *c);
void http_relay_client_ended(struct connection *c);

/* Ends what was upgraded in the client's name. NULL is allowed. */
void http_relay_free(struct http_relay *relay);

/* The connection of this ticket, or NULL. */
struct connection *http_relay_find(struct server *s, const char *ticket);

/* inner was let in as outer's client. NULL, or why not: too many have been. */
const char *http_relay_vouch(struct connection *outer, struct connection *inner);
