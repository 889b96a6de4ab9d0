/* Locks. For each owner of locks on a file the service opens the file once more: that open file
 * description holds the owner's locks (F_OFD_SETLK, flock), so the kernel decides what excludes
 * what, for mounts, commands and any other process of this machine alike. flock() and byte ranges
 * have a description each, since they need different access. */
#pragma once

#include "store/handle.h"

/* Ranges that one session may have locked, about 300 bytes each in the kernel and here. Stops a
 * client that locks every other byte of a file from taking memory without bound, and, since the
 * kernel goes through them one by one, time. Owners are descriptors, and count as handles do. */
#define SESSION_LOCK_RANGES_MAX ((size_t)4096)

struct lock_request {
    uint64_t owner;
    uint64_t start, end;
    uint32_t type; /* WIRE_LOCK_… */
    bool flock;
};

/* Locks or unlocks, without waiting. handle may be NULL to unlock. *ret_freed: others may have
 * better luck now, also after a failure, since flock() gives up the old lock when it cannot change
 * it. -EAGAIN: somebody else's lock is in the way; -EBADF: the handle's access does not allow it;
 * -ENOLCK: too many, or the service's user may not open the file so; -EIO: claimed by another. */
int lock_set(struct file_session *session, uint64_t node_number, struct handle *handle,
             const struct lock_request *request, bool *ret_freed);

/* The first byte-range lock in the way of request; type 0: none. */
int lock_get(struct file_session *session, struct handle *handle,
             const struct lock_request *request, struct wire_lock_found *ret);

/* See LOCK_CLAIM. True if there was another session, whose locks are given up now. */
bool lock_claim(struct file_session *session, const uint8_t secret[LOCK_SECRET_SIZE]);

/* Gives up all locks of the session; no request may be running. */
void lock_release_all(struct file_session *session);
