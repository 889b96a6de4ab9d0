/* Locks that clients wait for. A LOCK_SET that may wait and cannot be had is kept here without a
 * thread, and tried again, as the same job on its connection's lane:
 *   - when a lock on that file is given up through this service: at once;
 *   - from time to time, for locks that are held by other processes of this machine.
 * Those of one file are tried in the order in which they came, one after the other. All functions
 * are for the loop's thread. */
#pragma once

#include "server/connection.h"

struct lock_waits;
struct lock_wait;

/* Waits of all connections together; each is tried when the timer comes. With WIRE_LOCK_WAITS_MAX
 * of one connection this stops clients from making the service do nothing else. */
#define LOCK_WAITS_MAX 4096

/* How often outsiders' locks are looked at, for each LOCK_WAITS_PER_TICK that wait: bounds both
 * the time that a lock lies free and the work, to 3,200 attempts a second. */
#define LOCK_WAITS_TICK_MS 10
#define LOCK_WAITS_PER_TICK 32

/* -ENOMEM. */
int lock_waits_new(struct event_base *base, struct lock_waits **ret);
void lock_waits_free(struct lock_waits *w);
size_t lock_waits_count(const struct lock_waits *w);

/* Keeps a LOCK_SET whose job was answered with -EAGAIN: true, and it takes the job. False: it may
 * not wait, was cancelled (the job's result says -ECANCELED then), or too many do (-ENOLCK). */
bool lock_waits_keep(struct lock_waits *w, struct call *call, struct job *job);

/* The call is about to be answered, or its connection has gone while its job ran: it does not
 * wait any more. NULL is fine. */
void lock_wait_end(struct lock_wait *wait);

/* Locks of this node's file (REPLY_UNLOCKED_ANY: of any) were given up. */
void lock_waits_unlocked(struct lock_waits *w, uint64_t node);
