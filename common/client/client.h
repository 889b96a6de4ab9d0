/* A connection to a service on an event loop: a byte stream, a session and the calls in
 * flight. Used alike by berthfs and berth. Everything runs on the thread of the event base;
 * callbacks are never made from within client_call or client_send. */
#pragma once

#include <event2/event.h>

#include "base/failure.h"
#include "stream/stream.h"
#include "wire/session.h"

struct client;

struct client_events {
    /* The connection is lost and every call has been answered with the error. Called once.
     * The client may be freed in it. */
    void (*lost)(void *context, int error, const char *reason);
    void *context;
};

/* Connects, upgrades, exchanges HELLO and WELCOME: blocks, at most the stream's timeout.
 * agent as in session_config. Errors as stream_open, and -EPROTO for a service that speaks
 * another version. */
int client_connect(const struct stream_options *options, const char *agent, struct client **ret,
                   struct failure *ret_failure);

/* Gives the connected client to an event loop: from now on it may be used on that thread
 * alone. (client_connect may have run on another.) -ENOMEM. */
int client_attach(struct client *c, struct event_base *base, const struct client_events *events);

/* How long an attached connection may be silent while something is awaited (a call or the
 * PING that is sent after CLIENT_PING_AFTER_MS of silence) before it counts as lost with
 * -ETIMEDOUT. Default CLIENT_DEADLINE_MS. May be called at any time. */
#define CLIENT_PING_AFTER_MS 10000
#define CLIENT_DEADLINE_MS 10000
void client_set_deadline_ms(struct client *c, uint32_t deadline_ms);

/* Sends what can be sent, closes. Calls still open are answered with -ECANCELED first. */
void client_free(struct client *c);

/* Answer to a call. Exactly once per call, after all its items:
 *   error 0    reply is the reply of the table's row, valid during the callback only
 *   error < 0  reply is the ERROR message, or NULL when the connection was lost */
typedef void client_reply_fn(void *context, int error, const struct wire_message *reply);

/* An ITEM or CONTROL message of an open call. Items must be acknowledged by client_grant. */
typedef void client_item_fn(void *context, uint64_t tag, const struct wire_message *item);

struct client_call {
    client_reply_fn *reply;
    client_item_fn *item; /* NULL unless the call has items */
    void (*writable)(void *context, uint64_t tag); /* NULL, or: credit came for items */
    void *context;
    bool blocking; /* somebody waits (see session_stats) */
};

/* Sends a request. Beyond the service's max_calls it is queued. 0 and *ret_tag (may be NULL;
 * 0 while queued), or -EINVAL (out of the table's bounds), -ENOMEM, -ENOTCONN; reply is then
 * never called. */
int client_call(struct client *c, const struct wire_message *request,
                const struct client_call *call, uint64_t *ret_tag);

/* As session_send, session_grant, session_credit, for an open call or a NOTICE (tag 0). */
int client_send(struct client *c, uint64_t tag, const struct wire_message *message);
int client_grant(struct client *c, uint64_t tag, size_t bytes);
size_t client_credit(const struct client *c, uint64_t tag);

const struct session_peer *client_peer(const struct client *c);
struct session_stats client_stats(const struct client *c);
uint64_t client_setup_ns(const struct client *c);

/* One call, waited for: for programs that do one thing at a time. The client must not be
 * attached. *ret is owned by the caller (wire_frame_free). 0; or a negative errno with
 * *ret_failure (the server's text, if any). timeout_ms 0: wait for ever. */
int client_call_sync(struct client *c, const struct wire_message *request, uint32_t timeout_ms,
                     struct wire_frame **ret, struct failure *ret_failure);
