/* What control.c (the socket), peer.c (a program connected to it) and forward.c (its calls) share.
 */
#pragma once

#include <sys/queue.h>

#include "base/table.h"
#include "control/control.h"
#include "stream/http.h"

struct peer;

struct control {
    struct event_base *base;
    struct control_events events;
    struct client *client; /* NULL: none */
    uint64_t generation;   /* of the client: calls of another one are over */
    struct event *accept;
    char *path;
    int fd;
    dev_t path_dev;
    ino_t path_ino;
    TAILQ_HEAD(, peer) peers;
    size_t peer_count;
    size_t program_count; /* of these, with a session */
    bool suspended;       /* the client has no connection */
    uint64_t calls;       /* passed on, ever */
};

struct forward;

struct peer {
    TAILQ_ENTRY(peer) link;
    struct control *control;
    int fd;
    struct event *readable, *writable, *flush;
    struct http_reader *reader; /* NULL once the header is complete */
    struct session *session;    /* NULL before */
    struct buffer answer;       /* of HTTP, before anything of the session */
    struct table forwards;      /* tag of the peer's -> struct forward */
    bool ending;                /* closed when all is written */
    bool dead;                  /* freed by `flush` */
};

/* Takes fd. Without memory it is closed. */
void peer_new(struct control *c, int fd);
/* Tells it why, and closes it when that is written. error 0: an ordinary end. */
void peer_end(struct peer *p, int error, const char *reason);
void peer_free(struct peer *p);
/* Sends what can be sent at once. */
void peer_last_words(struct peer *p);
/* What is in its session's output is to be sent. */
void peer_flush(struct peer *p);

/* A request of the peer's. -ENOMEM; what else fails is answered. */
int forward_open(struct peer *p, const struct wire_frame *frame);
/* An item or control within it. -ENOMEM, -EPROTO. Takes the frame if *frame is NULL afterwards. */
int forward_message(struct peer *p, struct wire_frame **frame);
/* The peer has granted more. -ENOMEM, -ENOTCONN */
void forward_credit(struct peer *p);
/* The peer is gone. */
void forward_leave(struct peer *p);
