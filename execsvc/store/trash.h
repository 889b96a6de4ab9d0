/* ROOT/trash/: what was removed lies there, without a name that anybody knows, until a thread of
 * its own has deleted it. So a caller waits for a rename, however large the tree, and so does a
 * start for what an earlier service has left. */
#pragma once

#include "store/store_private.h"

struct trash;

/* -ENOMEM. */
int trash_new(struct store *store, struct trash **ret);

/* Starts the thread. */
int trash_begin(struct trash *trash);

/* Amid a tree if need be: the rest goes with the next service. NULL is allowed. */
void trash_free(struct trash *trash);

/* Moves a directory there, under this name or, if there is such a one, another. Not synced; when it
 * is, trash_wake is to be called. */
int trash_take(struct store *store, int from_fd, const char *from, const char *name);
void trash_wake(struct trash *trash);

/* Returns when everything that was there has been deleted, or could not be (tests). */
void trash_settle(struct trash *trash);
