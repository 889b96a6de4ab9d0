/* An open request of a client, as its handler sees it: where the answer goes. A call lives on
 * the service's event loop and ends with exactly one reply. All functions below run on the
 * loop's thread, but for handlers of class WORKER, which only return their reply. */
#pragma once

#include "wire/session.h"

struct call;

struct call_events {
    /* An ITEM or CONTROL message arrived; the views last for the callback only. */
    void (*message)(void *context, const struct wire_message *message);
    /* More items may be sent: credit came, or the connection drained. May be NULL. */
    void (*writable)(void *context);
    /* The connection is gone: the call must not be used any more. */
    void (*gone)(void *context);
    void *context;
};

/* From now on messages of the call come to these. */
void call_set_events(struct call *c, const struct call_events *events);

/* Sends an ITEM or CONTROL. Errors as session_send. */
int call_send(struct call *c, const struct wire_message *message);

/* The same while the client has lost its connection and may come back: it is kept for it. */
int call_send_kept(struct call *c, const struct wire_message *message);

/* Item payload bytes that may be sent now: the peer's credit, and 0 while the connection's
 * own output queue is full. */
size_t call_credit(const struct call *c);
int call_grant(struct call *c, size_t bytes);

/* Whether its client may learn of this workspace. */
bool call_shows(const struct call *c, struct bytes thread_id);
bool call_shows_all(const struct call *c);

/* Its client has a connection now. */
bool call_connected(const struct call *c);

/* Its client, whose connection has ended, will not come back: it was a program of this machine, and
 * it was not we who ended it. */
bool call_is_abandoned(const struct call *c);

/* Ends the call; it must not be used afterwards. error: negative errno. */
void call_reply(struct call *c, const struct wire_message *message);
void call_reply_error(struct call *c, int error, const char *text);
