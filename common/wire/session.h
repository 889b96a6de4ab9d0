/* One end of a connection, without I/O: bytes in, messages out, and the other way round.
 * Client, server, unit tests and fuzzers use the same machine. Not thread-safe.
 *
 * What it enforces on the peer, each a connection error. The session is then dead: it takes
 * and sends nothing more, but what came before can still be taken with session_next(), and
 * its output ends with a GOODBYE that tells the peer why.
 *   - a known type, sent by the right side, in the right phase, with a length in the row's
 *     bounds, flags that were negotiated, and a payload that decodes exactly;
 *   - server: tags of requests rise strictly and are never reused; at most max_calls open;
 *   - client: replies only for open calls, of the row's reply type or ERROR;
 *   - ITEM bytes within the credit granted for their call;
 *   - nothing after GOODBYE. A GOODBYE instead of HELLO or WELCOME makes the session dead.
 * Items and controls for a call that has ended are dropped silently: they crossed the reply.
 *
 * With WIRE_FEATURE_RESUME in force the session outlives its connection: what was sent is kept
 * until the peer has acknowledged it (ACK), and is sent again, on another connection, from where
 * the peer had received it. So both ends receive each frame once, and in order, however often the
 * stream is cut. The other connection begins with a session of its own, for HELLO and WELCOME, at
 * whose end the old one goes on with session_resume().
 *
 * Memory: a payload's memory grows with the bytes that have come, never with the length its
 * header promises; that is what stops many half-sent frames from taking 4 MiB each. When
 * compressed frames make much of little, decoding pauses until frames are taken: the owner
 * bounds what it holds by taking frames (session_next) only while it has room, and feeds no more
 * until all are taken. Output is not bounded here: the owner stops feeding a peer that does not
 * take its output. */
#pragma once

#include "base/buffer.h"
#include "wire/wire.h"

/* Every side must take frames of this size, so that errors can always be told. */
#define SESSION_PAYLOAD_MIN 4096

/* Most credit a call may have: stops a peer from overflowing the count by grants. */
#define SESSION_CREDIT_MAX 0x40000000

/* What was received is acknowledged so often. */
#define SESSION_ACK_EVERY 0x10000

/* Bytes kept at most for a peer that has not acknowledged them: those sent longest ago make room,
 * and a peer that lacks them cannot go on. Stops one that takes everything and never says so from
 * filling our memory. */
#define SESSION_KEEP_MAX 0x1000000

enum session_role { SESSION_CLIENT, SESSION_SERVER };

/* What a client says of a session it wants to go on with. */
struct session_resume {
    uint8_t key[WIRE_KEY_SIZE];
    uint64_t received;  /* session_received() */
    uint64_t abandoned; /* requests up to this tag are not to be begun any more */
};

/* Server: is there a session to go on with? *ret_received: session_received() of it. */
typedef bool session_resume_fn(void *context, const struct session_resume *asked,
                               uint64_t *ret_received);

struct session_config {
    enum session_role role;
    uint32_t max_payload;   /* largest frame we accept; SESSION_PAYLOAD_MIN … WIRE_PAYLOAD_MAX */
    uint32_t max_calls;     /* server: open calls a client may have; stops memory use by calls
                               that are never awaited */
    uint32_t window;        /* item bytes a new call may send us before the first grant; stops a
                               sender from filling our memory; <= SESSION_CREDIT_MAX */
    uint64_t features;      /* WIRE_FEATURE_… we can do */
    const char *agent;      /* "berthfs 0.1.0"; borrowed for session_new only */
    uint8_t service_id[16]; /* server: persistent identity of the service */
    uint64_t epoch;         /* server: differs each time the service starts */
    uint8_t key[WIRE_KEY_SIZE]; /* server: by which this session may be gone on with, if the client
                                   wants to; to be random */
    session_resume_fn *resume;  /* server: NULL: there is none, ever */
    void *resume_context;
    const struct session_resume *resumes; /* client: NULL, or what to ask for; borrowed for
                                             session_new only */
};

/* A received message that owns its bytes. The views of `message` point into it. */
struct wire_frame {
    struct wire_message message;
    uint64_t tag;
    struct wire_frame *next; /* for whoever has it */
    struct buffer payload;   /* as decompressed */
    /* private */
    uint16_t flags;
};
void wire_frame_free(struct wire_frame *frame); /* NULL is allowed */
DEFINE_CLEANUP(struct wire_frame *, wire_frame_free);
#define _cleanup_frame_ _cleanup_(wire_frame_free_pointer)

struct session;

/* A client's session has HELLO in its output from birth. -ENOMEM; -EINVAL when config is out
 * of bounds. */
int session_new(const struct session_config *config, struct session **ret);
void session_free(struct session *s);

/* Takes len bytes from the peer. 0, -ENOMEM, or -EPROTO; the session is dead after both (see
 * session_failure()), and answers the same to all later bytes. Frames that were complete before
 * the bad one can still be taken with session_next(). */
int session_feed(struct session *s, const void *data, size_t len);

/* Where the next bytes from the peer can be put instead of being fed, so that they are not copied:
 * the rest of a payload that is arriving, or a part of it, *ret_len bytes. session_room_filled says
 * how many (> 0) were put there, and answers as session_feed does; nothing else may be called
 * between the two. NULL: there is no such place; they are to be fed. */
void *session_room(struct session *s, size_t *ret_len);
int session_room_filled(struct session *s, size_t n);

/* How many bytes are missing to the end of the frame part (header, payload) that is arriving;
 * > 0. Whoever feeds no more than this at a time never has more than one frame queued, however
 * small the frames are on the wire and however large when decompressed. */
size_t session_wanted(const struct session *s);

/* The next received message, in order of arrival: 1 and *ret (caller frees), or 0. HELLO,
 * WELCOME, GRANT and ACK are handled inside and never returned. A reply closes its call when it is
 * fed, not when it is taken. Taking may decode bytes that had to wait, and so may find the
 * session dead: look at session_failure() after the last. */
int session_next(struct session *s, struct wire_frame **ret);

/* True once HELLO and WELCOME have been exchanged, also when the session died later. */
bool session_ready(const struct session *s);

/* The peer's WELCOME (client) or HELLO (server) values in force. Only when ready. */
struct session_peer {
    uint64_t features;    /* both sides' */
    uint32_t max_payload; /* largest frame the peer takes */
    uint32_t max_calls;   /* client only, as epoch and service_id */
    uint32_t window;      /* item bytes a new call may send it */
    uint64_t epoch;
    uint8_t service_id[16];
    bool resumed;               /* this session has done: the one that was asked for goes on */
    uint64_t received;          /* client, resumed: to be passed to session_resume */
    uint8_t key[WIRE_KEY_SIZE]; /* client, with WIRE_FEATURE_RESUME: of this session */
    char agent[129];            /* printable ASCII; other bytes replaced by '?' */
};
const struct session_peer *session_peer(const struct session *s);

/* True when the session can go on on another connection. */
bool session_resumable(const struct session *s);

/* Bytes of the session that were fed, ever. */
uint64_t session_received(const struct session *s);

/* Goes on where the peer has received so many bytes. -ESTALE: these are not kept any more, were
 * never sent, or it is not resumable; nothing has changed then. */
int session_resume(struct session *s, uint64_t received);

/* The greatest tag of a request ever opened. */
uint64_t session_last_tag(const struct session *s);

/* Bytes that are kept: sent ones, and those to be sent. */
size_t session_kept(const struct session *s);

/* Client: opens a call; *ret_tag names it. blocking: a caller waits for the reply (it counts
 * in session_stats). -EAGAIN when max_calls are open, -EINVAL by the table, -EMSGSIZE when the
 * peer does not take frames of this size, -ENOMEM, -ENOTCONN when not ready, dead, or after
 * GOODBYE. */
int session_request(struct session *s, const struct wire_message *m, bool blocking,
                    uint64_t *ret_tag);

/* Sends an ITEM, CONTROL or REPLY on an open call, or (tag 0) a NOTICE. -EAGAIN when an item
 * is larger than session_credit(); -ENOENT when the call is not open (it ended: not an
 * error of the caller's); others as session_request. */
int session_send(struct session *s, uint64_t tag, const struct wire_message *m);

/* Server: ends a call with ERROR. error: negative errno. text may be NULL; it is cut to the
 * table's length. Errors as session_send. */
int session_send_error(struct session *s, uint64_t tag, int error, const char *text);

/* Item payload bytes that may be sent now on a call; 0 when it is not open. */
size_t session_credit(const struct session *s, uint64_t tag);

/* Bytes of payload that an item of data_len data bytes takes from the credit. */
size_t session_item_cost(enum wire_type type, size_t data_len);

/* Says that `bytes` more item bytes were consumed and may be sent by the peer. -ENOENT when
 * the call is not open, -EINVAL past SESSION_CREDIT_MAX, others as session_send. */
int session_grant(struct session *s, uint64_t tag, size_t bytes);

/* True when the credit of some call rose since the last call of this function. */
bool session_credit_changed(struct session *s);

/* Number of open calls, and the next open tag after `tag` (0 to start; 0 at the end). */
size_t session_open_calls(const struct session *s);
uint64_t session_next_open(const struct session *s, uint64_t tag);

/* Bytes for the peer. The view holds until the next call on the session. Take n of them
 * with session_output_done. */
struct bytes session_output(struct session *s);
void session_output_done(struct session *s, size_t n);

/* Why the session is dead, or NULL while it is alive. */
const char *session_failure(const struct session *s);

/* Counters. round_trips: length of the longest chain of blocking requests of which each was
 * sent after the reply to the one before had come, that is, how many times a caller had to
 * wait for the network in series. Requests in flight together count once. Requests for which
 * nobody waits (heartbeats, prefetches) and HELLO do not count and do not lengthen it. */
struct session_stats {
    uint64_t frames_in, frames_out;
    uint64_t bytes_in, bytes_out;
    uint64_t requests;    /* sent (client) or received (server) */
    uint64_t blocking;    /* of these, blocking (client only) */
    uint64_t round_trips; /* client only */
};
struct session_stats session_stats(const struct session *s);
