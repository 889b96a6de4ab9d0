/* What changed, for the sessions that rely on what they know.
 *
 * A subscription collects, for one session, the changes to nodes which that session holds a
 * reference on: those that other sessions' requests make, and those that the service's watch
 * detects. What is pending collapses by file and name, and past CHANGES_PENDING_MAX into one
 * WIRE_CHANGE_ALL, so a client that does not take it costs bounded memory.
 *
 * A change is noted after it has taken effect, and before the request that made it is
 * answered. A session's first reference on a file is there before the attributes are taken that it
 * is told (node_enter), so nothing falls between. */
#pragma once

#include "store/node.h"

/* Changes waiting for one client, about 100 bytes each. Stops a client that never reads, beside
 * a command that changes files for ever, from taking all memory. */
#define CHANGES_PENDING_MAX ((size_t)65536)

/* Elements and bytes of one CHANGES message. */
#define CHANGES_COUNT_MAX 1024
#define CHANGES_SIZE_MAX 0x8000

struct subscription;

/* wake is called when something comes to be pending where nothing was: on any thread, under
 * store.lock, so it may only leave a note. -EBUSY: the session has one; -ENOMEM. */
int subscription_open(struct file_session *session, void (*wake)(void *context), void *context,
                      struct subscription **ret);
void subscription_close(struct subscription *s);

/* All of a store's, under store.lock. */
const struct subscription *subscription_next(const struct subscription *s);
bool subscription_is_of(const struct subscription *s, const struct file_session *session);

/* The position of the latest change noted for it. */
uint64_t subscription_end(struct subscription *s);

/* Appends CHANGE elements of at most CHANGES_SIZE_MAX bytes to list and takes them from what is
 * pending. *ret_position: of the last; unchanged when there is none. Returns how many, or
 * -ENOMEM, nothing being taken then. */
int subscription_take(struct subscription *s, struct buffer *list, uint64_t *ret_position);

/* True when changes of this file can be reported; whether all are noticed: detect_covers. */
bool changes_cover(const struct node *node);

/* Notes a change for all subscribers but origin (NULL: none is spared). name: with
 * WIRE_CHANGE_NAME, else empty. */
void changes_note(struct store *store, const struct file_session *origin, struct node *node,
                  uint32_t kinds, struct bytes name);
/* The same, under store.lock; it does not count. */
void changes_note_locked(struct store *store, const struct file_session *origin, struct node *node,
                         uint32_t kinds, struct bytes name);
/* The same for a file known by its generation alone, if it is a node. False: it is none. */
bool changes_note_file(struct store *store, uint64_t generation, uint32_t kinds, struct bytes name);
/* Anything may have changed, anywhere. */
void changes_note_all(struct store *store);
