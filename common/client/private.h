/* What client.c (on a loop) and blocking.c (before one) share. */
#pragma once

#include <sys/queue.h>

#include "base/table.h"
#include "client/client.h"

#define CLIENT_INPUT_SIZE 65536

/* A call that was sent and waits for its reply, or one that waits to be sent. */
struct pending_call {
    TAILQ_ENTRY(pending_call) link;
    struct client_call call;
    uint64_t tag; /* 0 while queued */
    enum wire_type type;
    struct buffer payload; /* of a queued one */
};
TAILQ_HEAD(pending_list, pending_call);

struct client {
    struct stream *stream;
    struct session *session;
    char *url;
    struct client_events events;
    struct event_base *base; /* once attached */

    struct event *readable;
    struct event *writable;
    struct event *command; /* the standard error of the stream's command, if it has one */
    struct event *resume;  /* zero timer: go on reading in the loop's next turn */
    struct event *flush;   /* activated by hand: send in this turn, once for many calls */
    struct event *watch;   /* timer of the silence deadline */

    struct table calls; /* tag -> struct pending_call of `open` */
    struct pending_list open;
    struct pending_list queued;

    uint64_t deadline_ns;
    uint64_t last_input_ns;
    uint64_t waiting_since_ns; /* when the oldest of the open calls found none open */
    uint64_t watch_due_ns;
    uint64_t ping_tag; /* 0: none open */
    uint64_t ping_sent_ns;

    uint64_t abandoned;       /* requests up to this tag are */
    struct wire_frame *frame; /* being handed on */
    bool attached;
    bool suspended; /* without a stream, and with a session that can go on */
    bool blocked;   /* the stream takes nothing now; `writable` is pending */
    bool dead;      /* lost, or being freed: nothing is sent or received any more */
    bool freed;
    unsigned depth;    /* of callbacks: the memory is kept until they have returned */
    char goodbye[256]; /* the service's last words, escaped; "" if there were none */
    size_t input_len;  /* of what came behind the greeting and was not fed */
    uint8_t input[CLIENT_INPUT_SIZE];
};

/* Writes what the stream takes. 0 when nothing is left, -EAGAIN, or another negative errno. */
int client_write_output(struct client *c);

/* Keeps the service's last words. */
void client_note_goodbye(struct client *c, const struct wire_goodbye *goodbye);
