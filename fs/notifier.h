/* Telling the kernel to forget. Such a call can wait for locks that requests of the kernel hold,
 * which only the driver's loop can answer, so it is made on a thread of its own. That thread
 * knows nothing but numbers and names, and nobody waits for it. All functions are for the loop. */
#pragma once

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"

struct fuse_session;
struct notifier;

/* session: its device is written to by the thread until notifier_free. -ENOMEM and others. */
int notifier_new(struct event_base *base, struct fuse_session *session, struct notifier **ret);

/* The device must have been closed or the mount be gone, so that no call waits. NULL is allowed. */
void notifier_free(struct notifier *n);

/* What is known of a file: attributes, and (content) cached pages; of a directory, its listing.
 * place: the directory in which the kernel was told of it last, or 0.
 * All return -ENOMEM when that could not be noted; the kernel then knows what it should not. */
int notifier_inode(struct notifier *n, uint64_t id, uint64_t place, bool content);
/* What a name in a directory leads to, or that there is none. It is looked up again when it is
 * used next; a directory that is found unchanged then stays what it was for those in it. drop: it
 * is cut off, and they find that it has no path any more. (Before Linux 6.2 it always is.) */
int notifier_entry(struct notifier *n, uint64_t parent, struct bytes name, bool drop);
/* The same (with content) for many: they are added to a buffer, which is then taken over whole.
 * What is asked for later does not wait for the end of it. -ENOMEM. */
int notifier_batch_inode(struct buffer *batch, uint64_t id, uint64_t place);
int notifier_batch_entry(struct buffer *batch, uint64_t parent, struct bytes name, bool drop);
int notifier_batch(struct notifier *n, struct buffer *batch, size_t orders);
/* How many of these the kernel has not been told yet. */
size_t notifier_left(struct notifier *n);
/* A READ of the kernel's into its cache has come; and has been answered. What it is to forget of
 * the file's content waits for that, within bounds. */
void notifier_read_begins(struct notifier *n, uint64_t id);
void notifier_read_ends(struct notifier *n, uint64_t id);
/* Calls done, on the loop, when everything asked for before has been forgotten, or from
 * notifier_free. */
typedef void notifier_done_fn(void *context, uint64_t number);
int notifier_then(struct notifier *n, notifier_done_fn *done, void *context, uint64_t number);

/* For how long the kernel has not returned from the call it is in; 0: it is in none. */
uint64_t notifier_stuck_ns(struct notifier *n);
