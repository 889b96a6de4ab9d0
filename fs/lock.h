/* Locks, which the service holds for this mount (locks=server). The driver notes what has been
 * granted, by file and owner: to give up what a descriptor held when it is closed, and to take it
 * again after a lost connection before anything else is sent. What cannot be had again is lost: the
 * handle through which it was locked answers EIO from then on. */
#pragma once

#include "request.h"

struct lock_owner;

/* Ends a FLUSH whose own part ended with `error`: gives up the byte-range locks that the closing
 * process (owner) has on the file, then answers. Takes the request, which has the handle. */
void lock_end_flush(struct request *r, uint64_t owner, int error);

/* The kernel's last use of the handle: what was locked through it is given up. */
void lock_end_handle(struct driver *d, struct handle *h);

/* After a new connection: takes again what was held. Requests that are not `urgent` wait until it
 * is done (d->lock_recoveries is 0). */
void lock_recover(struct driver *d);

/* How many owners hold locks. */
size_t lock_count(const struct driver *d);

void lock_release(struct driver *d);
