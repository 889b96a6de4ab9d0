/* The state of a session, shared by the files that implement session.h: session.c receives,
 * session_send.c sends. */
#pragma once

#include "base/table.h"
#include "wire/compress.h"
#include "wire/session.h"

/* Linux errno numbers end here; a larger one in an ERROR would look like success or garbage
 * to code that passes it on to the kernel. */
#define ERRNO_MAX 4095

#define AGENT_MAX (sizeof((struct session_peer *)NULL)->agent - 1)

struct session_call {
    uint64_t tag;
    const struct wire_row *row;
    uint32_t credit_out; /* item bytes we may send */
    uint32_t credit_in;  /* item bytes the peer may send */
    uint64_t depth;      /* see session_stats.round_trips */
    bool blocking;
    struct session_call *prev, *next; /* in order of opening, which is that of tags */
};

struct session {
    struct session_config config; /* agent points to the next */
    char agent[AGENT_MAX + 1];
    struct session_peer peer;
    bool ready;
    bool goodbye_sent;
    bool goodbye_received;
    bool credit_changed;
    bool asked_to_resume;
    int dead; /* 0 or the negative errno */
    char failure[256];

    struct table calls;
    struct session_call *first_call, *last_call;
    uint64_t last_tag; /* the greatest opened */
    uint64_t depth;    /* greatest of any reply that somebody waited for */

    /* The frame that is arriving: row is set once its header is there. */
    uint8_t raw_header[WIRE_HEADER_SIZE];
    size_t raw_header_len;
    struct wire_header header;
    const struct wire_row *row;
    size_t payload_received;
    bool dropping; /* of a call that has ended: the payload is not kept */
    struct buffer payload;
    struct buffer backlog; /* bytes that wait until frames are taken, see INFLATED_MAX */

    struct wire_frame *first_frame, **last_frame; /* received, not yet taken */
    size_t inflated;                              /* payload bytes in them that came compressed */

    struct buffer output;
    size_t output_kept;    /* what is needed of it: nothing before, ... */
    size_t output_head;    /* ... what was taken of it; the same unless resumable */
    uint64_t output_start; /* bytes before it, ever */
    uint64_t acknowledged; /* to the peer */

    struct compressor *compressor; /* NULL until they are used */
    struct decompressor *decompressor;

    struct session_stats stats;
};

/* Ends the session for good and tells the peer why; returns error, a negative errno. */
int session_fail(struct session *s, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The peer has received so many bytes. -EPROTO if these were never sent. */
int session_acknowledged(struct session *s, uint64_t received);

/* Tells the peer what was received, when that is due. */
void session_acknowledge(struct session *s);

/* False when nothing of this row can be sent: dead, after GOODBYE, or not ready. */
bool session_connected(const struct session *s, const struct wire_row *row);

/* Appends a whole frame to the output, or nothing. limit bounds the payload before compression
 * (-EAGAIN beyond it); *ret_size (may be NULL) is its size. Errors as session_send. */
int session_append_frame(struct session *s, uint64_t tag, const struct wire_message *m,
                         size_t limit, size_t *ret_size);

/* NULL when it is not open. */
struct session_call *session_find_call(const struct session *s, uint64_t tag);

/* Opens a call with the credits that both sides announced. -ENOMEM. */
int session_open_call(struct session *s, uint64_t tag, const struct wire_row *row,
                      struct session_call **ret);
void session_close_call(struct session *s, struct session_call *call);
