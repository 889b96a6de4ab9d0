/* A connection to the service for one caller, and calls over it that block: for a thread that
 * answers one HTTP request at a time. Any number of calls may be open at once, so that what can
 * be asked together costs one round trip. What waits ends, too, when the caller hangs up.
 * An upstream and its calls belong to one thread at a time, and nothing happens between the calls
 * of this interface: what comes meanwhile waits in the socket.
 *
 * What waits answers, besides the service's own errnos:
 *   -ECONNABORTED  the caller has hung up; nobody wants the answer
 *   -ECONNRESET, -ETIMEDOUT, -EPROTO, -ENOTCONN  the connection is lost (upstream_is_lost): what
 * was asked for may have been done or not -ENOMEM */
#pragma once

#include "base/cleanup.h"
#include "base/failure.h"
#include "client/client.h"

struct upstream;
struct upstream_call; /* one that was sent */

/* Connects: blocks, as client_connect, whose errors it has. */
int upstream_open(const struct stream_options *options, const char *agent, struct upstream **ret,
                  struct failure *ret_failure);

/* Drops the calls that are open (upstream_drop), and closes. NULL is allowed. */
void upstream_free(struct upstream *u);
DEFINE_CLEANUP(struct upstream *, upstream_free);
#define _cleanup_upstream_ _cleanup_(upstream_free_pointer)

/* The caller's own connection: a socket that has hung up when its other end is closed (a half that
 * is shut down does not count: who has said all may still want the answer). Borrowed until it is
 * replaced; -1: nobody can hang up. -ENOMEM, -EMFILE, …; there is none then. */
int upstream_set_caller(struct upstream *u, int fd);

bool upstream_is_lost(const struct upstream *u);
const struct session_peer *upstream_peer(const struct upstream *u);
struct session_stats upstream_stats(const struct upstream *u);

/* One request, and its reply, which the caller frees (wire_frame_free). 0, or a negative errno with
 * *ret_failure: the service's, with its text if any, or one of those above. */
int upstream_call(struct upstream *u, const struct wire_message *request, struct wire_frame **ret,
                  struct failure *ret_failure);

/* A NOTICE. It is sent with the next call, or by upstream_flush. Errors of client_send. */
int upstream_notify(struct upstream *u, const struct wire_message *notice);

/* Sends what can be sent without waiting. */
void upstream_flush(struct upstream *u);

/* --- several at once ------------------------------------------------------------------------- */

/* Sends a request, and does not wait. The call is to be finished or dropped. Errors of
 * client_call, -ENOTCONN when the connection is lost. */
int upstream_start(struct upstream *u, const struct wire_message *request,
                   struct upstream_call **ret);

/* Waits for the reply and frees the call; items that were not taken are gone. As upstream_call.
 * After -ECONNABORTED the service has been told that nobody waits (CANCEL). */
int upstream_finish(struct upstream_call *call, struct wire_frame **ret,
                    struct failure *ret_failure);

/* Frees the call. If it is open the service is told that nobody waits: CANCEL with these flags
 * (WIRE_CANCEL_…). What its reply would have given (nodes, handles) is given back when it comes
 * after all. NULL is allowed. */
void upstream_drop(struct upstream_call *call, uint32_t cancel_flags);

/* The next ITEM or CONTROL of the call, in order of arrival: 1 and *ret, which the caller frees.
 * Its credit is given back with that. 0: none will come any more, the reply has (upstream_finish).
 * timeout_ms < 0: waits for ever; else -EAGAIN if nothing came by then. 0 only looks at what has
 * come before: nothing else comes meanwhile that upstream_wait would then wait for in vain. */
int upstream_next(struct upstream_call *call, int timeout_ms, struct wire_frame **ret);

/* True when upstream_finish need not wait. */
bool upstream_is_answered(const struct upstream_call *call);

/* Sends an ITEM or CONTROL of the call; never waits. -EAGAIN: an item larger than
 * upstream_credit; -ENOENT: the call has ended, and its reply says how. */
int upstream_send(struct upstream_call *call, const struct wire_message *m);

/* Payload bytes of items that may be sent now. */
size_t upstream_credit(const struct upstream_call *call);

/* Waits until anything has come: a message or credit of any call. 0; timeout_ms as in
 * upstream_next, -EAGAIN. With more than one condition to wait for: look, and if there is nothing,
 * wait. */
int upstream_wait(struct upstream *u, int timeout_ms);
