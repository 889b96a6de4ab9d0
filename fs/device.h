/* The kernel's FUSE device on the driver's event loop. */
#pragma once

#include "driver.h"

/* Takes the descriptor of a fresh mount (closed with the device, also on failure) and serves it on
 * d's loop. d->ready is called once the kernel and the driver have agreed on the protocol. */
int device_start(struct driver *d, int fd, struct failure *ret_failure);
void device_free(struct device *dev);

/* Whose this node is: d itself, or in a joined mount that member, if it is still there. */
struct driver *device_driver(struct driver *d, uint64_t node);

/* The request that is being handled goes on as this member's. */
void device_hand_over(struct driver *d, struct driver *to);

/* For handlers, before they return: whether the kernel's request says that set-uid and set-gid
 * are to be cleared. libfuse (3.14) does not pass this on. */
bool device_write_kills_priv(const struct driver *d);
bool device_open_kills_priv(const struct driver *d);

/* The kernel's number of the request that is being handled. */
uint64_t device_current_unique(const struct driver *d);

/* How many requests of one kind the kernel has sent; returns the kind's name, or NULL past the
 * last. What it answers from its own caches is not among them. */
const char *device_received(const struct driver *d, size_t i, uint64_t *ret_count);

/* Tells the kernel EINTR for a request that is answered later once more, in vain. */
void device_answer_interrupted(const struct driver *d, uint64_t unique);

struct fuse_session *device_session(const struct driver *d);

/* Whether files that are open past the page cache can be mapped nevertheless. */
bool device_direct_allows_mmap(const struct driver *d);
