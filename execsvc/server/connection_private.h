/* The state of a connection, shared by the files that implement connection.h: connection.c has
 * its stream, connection_flow.c how much waits in it in either direction, park.c its session when
 * it is lost. */
#pragma once

#include "base/table.h"
#include "server/connection.h"

enum connection_state {
    CONNECTION_TLS,     /* handshake */
    CONNECTION_HTTP,    /* request header */
    CONNECTION_HELLO,   /* 101 was sent */
    CONNECTION_READY,   /* frames */
    CONNECTION_PARKED,  /* lost; its session waits for another */
    CONNECTION_RELAY,   /* HTTP, which the gateway answers */
    CONNECTION_CLOSING, /* writes what is queued */
    CONNECTION_LINGER,  /* waits for the peer to close */
    CONNECTION_ENDED,   /* waits to be torn down */
};

struct connection {
    TAILQ_ENTRY(connection) link;
    TAILQ_ENTRY(connection) dirty_link; /* while dirty: the session has output */
    struct connection_list *list;
    struct server *server;
    struct listener *listener;
    struct peer peer;
    uint64_t id;
    enum connection_state state;
    int fd;   /* the bufferevent's */
    SSL *ssl; /* the bufferevent's, or NULL */
    struct bufferevent *bev;
    struct event *timer; /* of the state */
    struct http_reader *http;
    struct buffer head;       /* HTTP: what was received */
    struct http_relay *relay; /* RELAY, and until it is torn down */
    struct connection *outer; /* in whose client's name it was let in, or NULL */
    struct session *session;
    struct grant *grant; /* once it has got in */
    struct backend *backend;
    struct table calls;
    size_t cost; /* see FLOW_LIMIT */
    unsigned lock_waits;
    uint8_t key[WIRE_KEY_SIZE];
    uint8_t credential[32];     /* of what the client authenticated with */
    uint64_t abandoned;         /* requests up to this tag are refused */
    uint64_t parked_ns;         /* PARKED: since when */
    struct connection *resumes; /* HELLO: PARKED, and gets this one's stream */
    bool returns;               /* see connection_returns */
    bool writer;                /* see connection_set_writer */
    bool dirty;
    bool starved; /* a stream waits for output to drain */
    bool paused;  /* not reading */
    bool processing;
    bool corked; /* the kernel holds back what does not fill a segment */
};

void connection_set_state(struct connection *c, enum connection_state to);

/* Puts it in a list of the server's, or among its listener's that have not upgraded. */
void connection_move(struct connection *c, struct connection_list *to);

/* From now on events of its stream, which may have been another's, come to c. */
void connection_watch_stream(struct connection *c);

/* Goes on with frames after its stream was replaced. */
void connection_go_on(struct connection *c);

bool connection_speaks_frames(const struct connection *c);

/* Of the state, in place of the one that runs. */
void connection_set_timer(struct connection *c, unsigned seconds);

/* Whether what its calls hold and its output come to that many bytes. */
bool connection_over_limit(const struct connection *c, size_t limit);

/* Stops and resumes reading; resuming takes up first what has already been received. */
void connection_update_flow(struct connection *c);

/* Streams may go on: credit came, or output drained. */
void connection_offer_writable(struct connection *c);

/* Some output has left. */
void connection_drained(struct connection *c);
