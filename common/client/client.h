/* A connection to a service on an event loop: a byte stream, a session and the calls in
 * flight. Used alike by berthfs and berth. Everything runs on the thread of the event base;
 * callbacks are never made from within client_call or client_send. */
#pragma once

#include <event2/event.h>

#include "base/failure.h"
#include "stream/stream.h"
#include "wire/session.h"

/* Item bytes that may be in flight to us before a call's first grant. */
#define CLIENT_WINDOW (4 * WIRE_CHUNK_MAX)

struct client;

struct client_events {
    /* The connection is lost and every call has been answered with the error. Called once.
     * error: -ECONNRESET (the stream ended or broke), -ETIMEDOUT, -EPROTO, -ENOMEM. The client
     * may be freed in it, as in every other callback; none comes after client_free. */
    void (*lost)(void *context, int error, const char *reason);
    /* NULL, or instead of lost: the stream is lost, the session is not. Calls stay open until
     * client_take_stream, client_abandon or client_lose; what is sent meanwhile waits. */
    void (*suspended)(void *context, const char *reason);
    /* The reply to a call that was abandoned came after all. */
    void (*late)(void *context, const struct wire_message *reply);
    void *context;
};

/* Connects, upgrades, exchanges HELLO and WELCOME: blocks, at most the stream's timeout (unless
 * that is set, HELLO and WELCOME get CLIENT_DEADLINE_MS of their own). agent as in
 * session_config. Errors as stream_open, and -EPROTO for a service that speaks another
 * version. */
int client_connect(const struct stream_options *options, const char *agent, struct client **ret,
                   struct failure *ret_failure);

/* As client_connect, for a session that can outlive its connection, or (resumes) to go on with one,
 * of client_resume_point: then client_peer tells whether it goes on. If so, the only use of the new
 * client is client_take_stream, or client_discard; if not, it is an ordinary one. */
int client_connect_again(const struct stream_options *options, const char *agent,
                         const struct session_resume *resumes, struct client **ret,
                         struct failure *ret_failure);

/* A suspended client: what a HELLO has to say to go on with its session. */
struct session_resume client_resume_point(const struct client *c);

/* Gives the suspended client the stream of another, which is freed. What was not received is sent
 * again. A negative errno: the service lacks something that is not kept, or no memory; it stays
 * suspended. */
int client_take_stream(struct client *c, struct client *from);

/* A suspended client: answers its calls, but lasting ones, with -ETIMEDOUT. Their requests are not
 * carried out any more, unless they were received already. */
void client_abandon(struct client *c);

/* A suspended client: its session is lost; answers its calls with -ECONNRESET. */
void client_lose(struct client *c);

/* Frees a client without a word to the service. */
void client_discard(struct client *c);

/* Gives the connected client to an event loop: from now on it may be used on that thread
 * alone. (client_connect may have run on another.) -ENOMEM. */
int client_attach(struct client *c, struct event_base *base, const struct client_events *events);

/* How long an attached connection may be silent while something is awaited before it counts
 * as lost with -ETIMEDOUT. A PING is sent after CLIENT_PING_AFTER_MS of silence, and, while a
 * call is open, after half of the deadline; so a service that is alive is never silent for so
 * long, however long a call takes. May be called at any time. Default CLIENT_DEADLINE_MS; at
 * least CLIENT_DEADLINE_MIN_MS. */
#define CLIENT_PING_AFTER_MS 10000
#define CLIENT_DEADLINE_MS 10000
#define CLIENT_DEADLINE_MIN_MS 100
void client_set_deadline_ms(struct client *c, uint32_t deadline_ms);

/* Answers the calls that are still open with -ECANCELED, sends what can be sent, closes. NULL
 * is allowed. */
void client_free(struct client *c);
DEFINE_CLEANUP(struct client *, client_free);
#define _cleanup_client_ _cleanup_(client_free_pointer)

/* Answer to a call. Exactly once per call, after all its items:
 *   error 0    reply is the reply of the table's row, valid during the callback only
 *   error < 0  reply is the ERROR message, or NULL when the connection was lost */
typedef void client_reply_fn(void *context, int error, const struct wire_message *reply);

/* An ITEM or CONTROL message of an open call. Items must be acknowledged by client_grant. */
typedef void client_item_fn(void *context, uint64_t tag, const struct wire_message *item);

/* In one of these two, once: takes the frame that the message is part of, which the caller then
 * frees; so that what is large is not copied to be kept. */
struct wire_frame *client_take_frame(struct client *c);

struct client_call {
    client_reply_fn *reply;
    client_item_fn *item;                          /* NULL unless the call has items */
    void (*writable)(void *context, uint64_t tag); /* NULL, or: credit came for items */
    void *context;
    bool blocking; /* somebody waits (see session_stats) */
    bool lasting;  /* client_abandon leaves it open: nobody waits for its reply */
};

/* Sends a request. Beyond the service's max_calls (less one, kept for PING) it is copied and
 * queued. 0 and *ret_tag (may be NULL; 0 while queued: writable, if not NULL, tells the tag when
 * it is sent), or -EINVAL (out of the table's bounds), -EMSGSIZE (larger than the service
 * takes), -ENOMEM, -ENOTCONN; reply is then never called. */
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
 * attached; items of the call are dropped. *ret is owned by the caller (wire_frame_free). 0; or
 * a negative errno with *ret_failure: the server's, with its text if any, or the connection's
 * own, which is then lost (-ENOTCONN from then on). timeout_ms 0: wait for ever. */
int client_call_sync(struct client *c, const struct wire_message *request, uint32_t timeout_ms,
                     struct wire_frame **ret, struct failure *ret_failure);
