/* The protocol side of running commands: EXEC requests and the messages within them, on the
 * service's event loop. A client that does not take a command's output stops that command
 * alone; a client that is gone has its commands ended (TERM, 2 s, KILL). */
#pragma once

#include <event2/event.h>
#include <jansson.h>

#include "exec/spawn.h"
#include "server/call.h"
#include "server/subscribers.h"
#include "store/store.h"

struct exec_service;

/* All borrowed for the service's life; subscribers NULL: verdicts wait for nobody. Commands get the
 * limits that are in force now, unless exec_service_set_limits says otherwise. The process must
 * ignore SIGPIPE. -ENOMEM. */
int exec_service_new(struct event_base *base, struct store *store, struct subscribers *subscribers,
                     struct exec_service **ret);

/* What commands get: spawn_limits_read before the service raised its own. */
void exec_service_set_limits(struct exec_service *s, const struct spawn_limits *limits);

/* Kills what runs; calls that are still open are answered. */
void exec_service_free(struct exec_service *s);

/* Takes the call and always ends it: with EXEC_EXIT, whatever happens to the command. The
 * views of the request last for this function only. synced: it is known to see all that was written
 * before it; if not, the verdict says so. */
void exec_service_start(struct exec_service *s, struct call *call, const struct wire_exec *request,
                        bool synced);

/* Adds "exec": {"running", "left", "started", "refused"}, and what confinement_status adds, to
 * object. -ENOMEM. */
int exec_service_status(struct exec_service *s, json_t *object);
