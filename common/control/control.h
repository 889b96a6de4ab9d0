/* Lends a connection to other programs of the same user on this machine, over a unix socket: the
 * driver does, with a mount's, and the connection holder of `berth exec`. What is asked there is
 * passed on as calls of the one session, so that it costs no connection set-up, and its answers
 * come back; what needs state of its own (nodes, handles, subscriptions) is refused with
 * EOPNOTSUPP.
 *
 *   GET /v1/stream, Upgrade: berth/1   frames, as from the service; without its ways to resume
 *   GET /v1/connection                 what this is, as JSON (control_query)
 *   DELETE /v1/connection              ends it, where that is allowed
 *
 * Flow control is from end to end: what the service may send for a call is what the program behind
 * it has granted, and the other way round. So one that does not read holds up its own call alone,
 * and what is queued for it is bounded.
 *
 * A command whose program goes away is left, as when a connection of its own is lost: it lingers.
 * When the connection to the service is lost, so are the programs' own, even if its session goes on
 * later: they then know no more than if they had connected themselves. Everything runs on the loop
 * of the event base. */
#pragma once

#include <event2/event.h>
#include <jansson.h>

#include "base/failure.h"
#include "client/client.h"

/* Programs at a time; stops a runaway script from using up the descriptors of a mount. */
#define CONTROL_PEERS_MAX 1024

struct control;

struct control_events {
    /* How many programs there are that may ask for something has changed. NULL allowed, here and
     * below. */
    void (*peers)(void *context, size_t count);
    /* Somebody asks for the end. NULL: it is refused. */
    void (*stop)(void *context);
    /* Adds to the description what its owner knows: "kind" at least. -ENOMEM. */
    int (*describe)(void *context, json_t *object);
    void *context;
};

/* Listens at path, whose directory is private. -EADDRINUSE: somebody else does; others. */
int control_new(struct event_base *base, const char *path, const struct control_events *events,
                struct control **ret, struct failure *ret_failure);

/* What is asked goes over this connection from now on; NULL: over none. Programs that were
 * connected to another one are not any more; reason (may be NULL) tells them why. */
void control_set_client(struct control *c, struct client *client, const char *reason);

/* The connection is being made again, and its session may go on; or has been. Programs are told at
 * once that it is lost: they know best for how long to wait, and what to do when told to end. Until
 * it is there, others are refused, so that they connect themselves. */
void control_set_suspended(struct control *c, bool suspended);

/* Ends all and removes the socket. NULL is allowed. */
void control_free(struct control *c);
