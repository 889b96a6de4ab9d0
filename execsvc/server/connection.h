/* One accepted connection, from its first byte to its end:
 *
 *   TLS -> HTTP -> HELLO -> READY -> CLOSING -> LINGER -> ENDED
 *                           ^ |
 *                           | v
 *                          PARKED
 *
 *          HTTP -> RELAY -> CLOSING
 *
 * A RELAY's bytes are the gateway's: see http_relay.h. A PARKED one has no stream, but all the
 * rest: see park.h.
 *
 * Its errors are its own: they end it, are logged once, and touch nothing else. Memory is
 * bounded in every state:
 *   before 101   HTTP_HEADER_MAX and the TLS library's buffers, for HANDSHAKE_TIMEOUT_S
 *   after        the requests it has in flight, their replies at their largest, and what is
 *                queued for it; past FLOW_LIMIT nothing more is read from it */
#pragma once

#include "base/log.h"
#include "server/call.h"
#include "server/listener.h"
#include "server/server.h"

/* From accept to WELCOME. Stops connections that only hold a place. */
#define HANDSHAKE_TIMEOUT_S 10

/* How long output may wait without a byte being taken. Stops clients that never read. */
#define WRITE_TIMEOUT_S 30

/* After our last byte: how long we wait for the peer to close, so that what it had still sent
 * does not turn into a reset that destroys our answer on its side. */
#define LINGER_TIMEOUT_S 2

/* Requests in flight, the largest replies they may get, and output that waits, in bytes.
 * Stops a client that asks and never reads from using up memory. */
#define FLOW_LIMIT (16u << 20)

/* Output above which streams (exec output) pause, so that a reply never waits behind more. */
#define STREAM_QUEUE_MAX (256u << 10)

/* Open calls of one connection. Stops memory use by calls that are never awaited; more than
 * the kernel's FUSE queue ever has in flight. */
#define CONNECTION_CALLS_MAX 512

/* Item bytes a call may send before the first grant: one pipe's worth and some. */
#define CONNECTION_WINDOW (256u << 10)

struct peer {
    bool local; /* unix: uid and pid are the peer's */
    uid_t uid;
    pid_t pid;
    uint64_t address; /* not local: failures_address */
    bool loopback;    /* plain http from this machine */
    char name[80];    /* for the log */
};

/* Takes fd. TLS when ssl (taken) is not NULL. On failure (-ENOMEM) fd is closed. */
int connection_new(struct server *s, struct listener *l, int fd, SSL *ssl, const struct peer *peer);

/* Ends a connection at the next turn of the loop. level and reason (borrowed for the call) are
 * logged. Does nothing when it has ended before. */
void connection_end(struct connection *c, enum log_level level, const char *reason);

/* Tears down at once; only for connections that have ended. */
void connection_free(struct connection *c);

/* Sends GOODBYE (when frames are spoken) and ends once output is written. */
void connection_goodbye(struct connection *c, int error, const char *text);

void connection_goodbye_all(struct server *s, int error, const char *text);

/* Sends what is queued, and ends. */
void connection_close_when_written(struct connection *c);

/* Output not yet taken by the kernel. */
size_t connection_queued(const struct connection *c);

/* --- for call.c and dispatch.c ---------------------------------------------------- */

struct call {
    struct connection *connection;
    uint64_t tag;
    const struct wire_row *row;
    size_t cost;             /* counted against FLOW_LIMIT */
    struct job *job;         /* runs on a worker; the call ends when it does, and may outlive its
                                connection until then */
    struct lock_wait *wait;  /* lock_waits.h; NULL: does not wait */
    struct account *account; /* account.h; NULL: it has no line */
    struct exec_removal *removal; /* WORKSPACE_REMOVE and _SET, while its job runs */
    uint32_t ended;               /* WORKSPACE_SET: commands */
    bool cancelled;               /* CANCEL has come */
    struct call_events events;
};

struct server *connection_server(const struct connection *c);
struct session *connection_session(const struct connection *c);
struct grant *connection_grant(const struct connection *c);
struct lane *connection_lane(const struct connection *c);
struct file_session *connection_files(const struct connection *c);

/* A request has begun, or the part of a notice that outlives its frame. */
void connection_charge(struct connection *c, size_t cost);
void connection_discharge(struct connection *c, size_t cost);

/* Registers a call under its tag. -ENOMEM. */
int connection_add_call(struct connection *c, struct call *call);
void connection_remove_call(struct connection *c, struct call *call);
struct call *connection_find_call(const struct connection *c, uint64_t tag);

/* How many of its calls wait for locks, after this change. */
unsigned connection_count_lock_waits(struct connection *c, int change);

/* Whether programs behind it may have been told of changes that have not arrived yet (SYNC). */
void connection_set_writer(struct connection *c, bool writer);
bool connection_is_writer(const struct connection *c);

/* True when its client understands DELEGATION. */
bool connection_delegates(const struct connection *c);

/* True when its client has asked for a session that is not there (any more). */
bool connection_returns(const struct connection *c);

/* True in READY: frames can be sent. */
bool connection_alive(const struct connection *c);

/* True in READY and PARKED: replies are taken, if only to be kept. */
bool connection_answers(const struct connection *c);

/* A request of this tag was given up by the client before it came here. */
bool connection_abandoned(const struct connection *c, uint64_t tag);

/* Moves what the session has to say on its way, within this turn of the loop. */
void connection_flush(struct connection *c);

/* The handler of server.flush. */
void connection_on_flush(evutil_socket_t fd, short what, void *context);

/* How much a stream may queue now. 0: it will be offered when output has drained. */
size_t connection_stream_room(struct connection *c);
