/* Ending everything that belongs to a command: TERM to all, after a grace period KILL to all, and
 * again, until nothing is left or what is left does not die. */
#pragma once

#include <event2/event.h>
#include <stdint.h>

#include "exec/kill.h"

/* The grace when nobody asks for another. */
#define TERMINATION_GRACE_MS 2000

struct termination;

/* Begins. done is called once, from the loop, never from within this function; the termination may
 * be freed in it. The set is borrowed until then. -ENOMEM: nothing was signalled. */
int termination_start(struct event_base *base, struct kill_set *set, uint64_t grace_ms,
                      void (*done)(void *context, const struct kill_receipt *receipt),
                      void *context, struct termination **ret);

/* Looks now rather than at the next tick: the leader has ended. */
void termination_look(struct termination *t);

/* Cancels it if it goes on. */
void termination_free(struct termination *t);
