/* Noticing changes behind the service's back, by watch/.
 *
 * With fanotify every file on the filesystem of the root is covered. With inotify each file and
 * directory has a watch, from when a client is first told of it until no client knows it: not that
 * of its directory, which would miss what is done by a hard link in another, and after the file was
 * renamed or unlinked. What there is no watch for is not covered: it is right, and kept by nobody.
 * What this service does itself is noticed as well with inotify and told to all, since whether
 * somebody else did the same at that moment cannot be told. */
#pragma once

#include "store/node.h"

/* -ENOMEM and others of a thread; with a mode other than WATCH_AUTO also when that cannot be had.
 */
int detect_open(struct store *store, enum watch_mode mode, struct failure *ret_failure);

/* Starts the thread, which has the caller's rights, and with which changes are noticed. */
int detect_begin(struct store *store, struct failure *ret_failure);
void detect_close(struct store *store);

/* inotify: watches the node from now on, if that can be. True: it was not watched. */
bool detect_watch(struct node *node, int at_fd, const char *at_name);

/* True when changes of the file are noticed, but for those that writers.h speaks of. */
bool detect_covers(struct node *node);

/* The node is about to be freed. Under store.lock. */
void detect_forget_locked(struct node *node);

/* "changes" of store_status. -ENOMEM. */
int detect_status(struct store *store, json_t *object);
