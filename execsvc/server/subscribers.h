/* Clients that rely on being told what changes, and waiting until they have been. All of it runs
 * on the service's event loop.
 *
 * A subscriber's caches are right up to the position it has sent back in SEEN. Whoever must be
 * sure that nobody is shown anything older (the end of a command, fsync, close) waits for that.
 * By its own clock a client stops answering from its caches WIRE_LEASE_MS after it sent the last
 * PING that was answered so; by ours, that and a margin after the answer. For so long one is waited
 * for whose connection we have lost, since it may not know yet that it has. One with a connection
 * that does not answer within the same time is cut off, and while somebody waits its lease is not
 * prolonged.
 *
 * A service that is killed leaves leases behind. How many it gave is in a file, and the one that
 * follows waits for them as for those of clients that are gone, until as many have come back: a
 * client that asks for a session which is not there any more had it with the earlier service, and
 * has forgotten what it knew when it confirms for the first time. */
#pragma once

#include <event2/event.h>

#include "server/call.h"
#include "store/store.h"

/* Between a lease's end on the client's side and ours: its clock may be slower, and it needs a
 * moment to empty its kernel's caches. */
#define SUBSCRIBER_MARGIN_MS 1000

/* When somebody has waited so long for a client, its lease is not prolonged any more. */
#define SUBSCRIBER_PATIENCE_MS 500

/* How long a command waits for clients to hand over what their programs have written. Stops a
 * client that does not answer, or whose way here is too slow, from holding up all commands. */
#define SUBSCRIBER_SYNC_MS 10000

/* Workspaces in which one client may be the only one that makes names. Bounds what each look at
 * them costs; a mount that makes files in more at a time waits for each in those beyond. */
#define SUBSCRIBER_DELEGATIONS_MAX 16

struct subscribers;
struct barrier;

/* -ENOMEM, and others of the descriptor. */
int subscribers_new(struct event_base *base, struct subscribers **ret);

/* Takes fd, of the file that says how many leases an earlier service has given, and from now on how
 * many this one has. */
void subscribers_remember(struct subscribers *s, int fd);

/* All calls and barriers have ended. NULL is allowed. */
void subscribers_free(struct subscribers *s);

/* Takes the call of a SUBSCRIBE. session: of the same connection, and living longer than it.
 * observes: it is told what changes, and counts for nothing else here. */
void subscribers_open(struct subscribers *s, struct call *call, struct file_session *session,
                      bool observes);

/* A PING of this session is about to be answered. True: with a lease. */
bool subscribers_renew(struct subscribers *s, const struct file_session *session);

/* Its client has said goodbye: it answers from no cache. */
void subscribers_leave(struct subscribers *s, const struct file_session *session);

/* all_seen: false when somebody has not confirmed in time. */
typedef void barrier_done_fn(void *context, bool all_seen);

/* Calls done when every subscriber but the one of `except` (NULL: none) has seen what is noted for
 * it now, or its time is over; at once, from within, when there is nothing to wait for. *ret: for
 * barrier_cancel, or NULL when done has been called. Without memory it is called with false. */
void subscribers_wait(struct subscribers *s, const struct file_session *except,
                      barrier_done_fn *done, void *context, struct barrier **ret);

/* Calls done, in the same way, when everything has arrived that programs behind the subscribers
 * have been told is written. Only those are asked that may have told them so; slot not 0: who has
 * the delegation of that workspace alone. Nobody is cut off: with one that is not connected, or
 * after SUBSCRIBER_SYNC_MS, done is called with false. */
void subscribers_sync(struct subscribers *s, uint32_t slot, barrier_done_fn *done, void *context,
                      struct barrier **ret);
/* True when there is nothing to wait for. */
bool subscribers_are_synced(const struct subscribers *s);

/* Whether subscribers_delegate would. */
bool subscribers_may_delegate(const struct subscribers *s, const struct file_session *session,
                              uint32_t slot);

/* Tells the client of this session that it alone makes names in the workspace of that slot
 * (DELEGATION), until its next SYNCED. False: it does not want that, or is being asked for SYNCED.
 * Who else wants to make one, or starts a command, waits by subscribers_sync before; one who has
 * not answered by then, or cannot be asked, has it no more. */
bool subscribers_delegate(struct subscribers *s, const struct file_session *session, uint32_t slot);

/* Somebody has it: but for the client of this session; or exactly that one, of this number (0:
 * any). */
bool subscribers_others_have(const struct subscribers *s, const struct file_session *session,
                             uint32_t slot);
bool subscribers_has(const struct subscribers *s, const struct file_session *session, uint32_t slot,
                     uint64_t number);

void barrier_cancel(struct barrier *barrier);

/* How many there are that do not only observe. */
size_t subscribers_count(const struct subscribers *s);
