/* Walks that climb: a link's ".." are climbed by the kernel some time after we have said what the
 * link's text is. A rename on this mount that takes the link's directory nearer to the root of
 * its workspace meanwhile would let the walk out of it. Such a rename waits until the walks
 * that have begun below the directory are over.
 *
 * A walk belongs to a thread, which all its requests name. Its ".." are climbed when the thread
 * asks for the attributes of the directory at their top (which the kernel does, for its
 * permissions), looks up a name or reads another link; or when the thread has ended. One that only
 * wanted to know the text may do nothing for long, so that a walk is waited for while it goes on,
 * and no longer than CLIMB_MAX_NS in all.
 *
 * Moves by others need no such care: they move nothing in the kernel's tree (see inode.h). */
#pragma once

#include "request.h"

/* A walk asks for the attributes of each directory on its way up, over the network: it goes on
 * while its thread does so at least this often. */
#define CLIMB_STEP_NS (2 * NSEC_PER_SEC)
#define CLIMB_MAX_NS (20 * NSEC_PER_SEC)

/* The reader of a link in `directory` is about to be told a text whose ".." lead to `top`. -ENOMEM:
 * it must not be told. */
int climb_begin(struct driver *d, fuse_req_t reader, struct inode *directory,
                const struct inode *top);

/* A thread asks for the attributes of a file. */
void climb_passed(struct driver *d, fuse_req_t by, fuse_ino_t ino);

/* A thread looks up a name, or reads a link. */
void climb_end(struct driver *d, fuse_req_t by);

/* Sends a RENAME, when no walk is below what it takes upwards. */
void climb_send_rename(struct request *r, request_done_fn *done);

/* Fails a rename that waits; for the end. */
void climb_stop(struct driver *d);
