/* One end of the stream between the service and the keeper of its commands: a descriptor and a
 * session (wire/session.h) on an event loop. Both ends are ours and of one user, so all that is
 * bounded is what waits in them. */
#pragma once

#include <event2/event.h>

#include "wire/session.h"

/* Output above which streams pause, so that a reply never waits behind more. */
#define LINK_QUEUE_MAX (512u << 10)

struct link;

/* Service and keeper may be of different builds: a keeper goes on as long as its commands do. Each
 * end tells which messages it knows, and what they mean here, as a number within its agent; with
 * another one than its own it does not talk. To be raised when a message, a flag or a record means
 * something else than before; what is in the table of messages counts by itself. */
#define LINK_PROTOCOL 2

/* Made from the event loop. The link may be freed in `lost` and in no other. */
struct link_events {
    /* HELLO and WELCOME have been exchanged. */
    void (*ready)(void *context);
    /* A message other than the session's own; the callee frees it. */
    void (*frame)(void *context, struct wire_frame *frame);
    /* Credit of some calls rose, or output has drained. */
    void (*writable)(void *context);
    /* The last one. */
    void (*lost)(void *context, const char *reason);
    void *context;
};

/* Takes *fd. window: item bytes that a new call may send here before it is granted any. -ENOMEM. */
int link_new(struct event_base *base, int *fd, enum session_role role, uint32_t window,
             const struct link_events *events, struct link **ret);

/* What was sent and is not out yet is lost. NULL is allowed. */
void link_free(struct link *l);

/* For sending; link_flush afterwards. */
struct session *link_session(struct link *l);

/* Moves what the session has to say on its way, within this turn of the loop. */
void link_flush(struct link *l);

/* True when it was lost since the other end is of a build that speaks another protocol. */
bool link_is_foreign(const struct link *l);

/* Something waits to be written, which the other end still takes. */
bool link_is_busy(struct link *l);

/* False while enough waits: `writable` comes when there is room again. */
bool link_has_room(struct link *l);
