/* The workspaces of one service and the file operations on them.
 *
 * ROOT/lock               flock'ed while a service runs
 * ROOT/service.json       the service's ID and the next workspace's slot
 * ROOT/inodes             numbers of files that lie on other filesystems (inode_number.h)
 * ROOT/workspaces/NAME/   one workspace: tree/ is what clients see, meta.json what it is,
 *                         visibility its rules, if it has any
 * ROOT/snapshots/ID/      a copy of one (snapshot.h); ROOT/restores/: restore.h
 * ROOT/tmp/, ROOT/trash/  workspaces being made and being removed; what a crash has left in tmp/
 *                         moves to trash/ at the start, and trash/ is emptied meanwhile
 *
 * Everything here is thread-safe and may block on the disk. Errors are negative errno; those
 * of requests are what the client's caller gets to see.
 *
 * Lock order: store.names, then a directory handle's lock, then workspace.renames, then
 * store.sessions_lock, then a locker's (lock.c), then store.lock. No system call that can wait for
 * the disk is made under store.lock. */
#pragma once

#include "base/failure.h"
#include "server/reply.h"
#include "watch/watch.h"
#include "wire/wire.h"

#include <jansson.h>

struct store;
struct file_session;
struct workspace;

/* Makes ROOT where needed (0700), takes its lock and removes what a crash left half-made.
 * Sets the process's umask to 0, because the modes in requests are final; children must set
 * their own. -EBUSY: another service holds ROOT. watch: how changes behind the service's back are
 * noticed; WATCH_AUTO takes the best that can be had, be it nothing. */
int store_open(const char *root, enum watch_mode watch, struct store **ret,
               struct failure *ret_failure);

/* The two halves of it, for who gives up rights in between that its threads shall not have either:
 * ROOT is made and locked (*ret_lock, to be closed by who has it; *ret_root: its path without
 * links), the store opened on that lock, which it takes, and changes by others are noticed from
 * store_begin on, which is called before there are sessions. */
int store_claim(const char *root, char **ret_root, int *ret_lock, struct failure *ret_failure);
int store_open_claimed(const char *root, int *lock, enum watch_mode watch, struct store **ret,
                       struct failure *ret_failure);
int store_begin(struct store *store, struct failure *ret_failure);

/* Who is told of workspaces whose time is over, on a thread of the store's: to call store_expire,
 * or index_spare's time later to be told again. Without it the store removes them itself, asking
 * nobody. Before store_begin. */
struct index_over;
void store_set_expired(struct store *store,
                       void (*expired)(void *context, const struct index_over *over),
                       void *context);

/* Removes it. -EBUSY: it is in use, or its time is not over any more. */
int store_expire(struct store *store, const struct index_over *over);

/* It turned out to be in use now, by a command. */
void store_used(struct store *store, const struct index_over *over);

/* Whether a WORKSPACE_SET would be carried out as things are: -EINVAL, -E2BIG, -EREMCHG, -ENOENT.
 */
int store_check_set(struct store *store, const struct wire_workspace_set *q,
                    struct failure *ret_failure);

/* No session and no workspace reference may be left. NULL is allowed. */
void store_close(struct store *store);

/* Absolute path; lives as long as the store. */
const char *store_root(const struct store *store);

/* Made when ROOT was first used, and the same ever since. */
void store_service_id(const struct store *store, uint8_t ret_id[16]);

/* The service's own visibility rules, for all workspaces; in force at once. -EINVAL, -ENOMEM. */
int store_set_visibility(struct store *store, struct bytes rules, struct failure *ret_failure);

/* What the commands of workspaces that are made from now on may do, when nobody says otherwise: a
 * policy in JSON; `from` is put before the fields of errors. -EINVAL, -ENOMEM. Before there are
 * sessions. */
int store_set_policy(struct store *store, const char *policy, const char *from,
                     struct failure *ret_failure);

/* Adds "workspaces", "nodes", "handles", "descriptors" (cached ones), "lock_owners",
 * "changes" and "visibility" to object. -ENOMEM. */
int store_status(struct store *store, json_t *object);

/* One connection's nodes and handles. -ENOMEM. */
int file_session_new(struct store *store, struct file_session **ret);

/* Notes for subscribers whatever has changed before this call behind the service's back. 0, or the
 * errno with which detection failed; subscribers are then told that anything may have changed. */
int store_detect(struct store *store);

/* Notes for subscribers as changed what others may be changing without being noticed, by a mapping
 * of the file. To be called at each barrier. */
void store_note_written(struct store *store);

/* True when changes behind the service's back are noticed. */
bool store_detects(const struct store *store);

/* How many changes have been noted, ever. */
uint64_t store_change_count(struct store *store);

/* Which workspaces WORKSPACE_LIST shows this session; without it, all. Called on any thread. To be
 * set before the first request. */
void file_session_set_filter(struct file_session *session,
                             bool (*shows)(const void *context, struct bytes thread_id),
                             const void *context);

/* What it holds. */
struct file_session_size {
    size_t nodes;
    size_t handles; /* and owners of locks */
};
struct file_session_size file_session_size(struct file_session *session);

/* Gives back all nodes and closes all handles; no request may be running. NULL is allowed. */
void file_session_free(struct file_session *session);

/* Runs a REQUEST or NOTICE of 0x01xx or 0x02xx on the calling thread. 0: ret->message is the
 * reply (NOTICEs have none; neither are they ever refused). Negative errno: the reply is
 * ERROR, with ret->text if that is not empty. *ret must be zeroed, or its storage be a valid
 * buffer, which is then reused; the caller releases it in either case. */
int store_handle(struct file_session *session, const struct wire_message *request,
                 struct reply *ret);

/* Finds a workspace by thread ID or, with WIRE_WORKSPACE_BY_NAME, by directory name. The
 * reference keeps the descriptor usable, even if the workspace is removed meanwhile. -ENOENT;
 * -EIO: its meta.json is missing, or that or its visibility rules are damaged. */
int store_workspace_find(struct store *store, struct bytes key, uint32_t workspace_flags,
                         struct workspace **ret);
void workspace_unref(struct workspace *workspace);

/* workspace_slot of the one of this thread ID, from memory; 0: there is none. It is no use of it.
 */
uint32_t store_workspace_slot(struct store *store, struct bytes thread_id);

/* Of a node that the session holds, referenced; NULL: it holds none of that number. */
struct workspace *store_node_workspace(struct file_session *session, uint64_t node);

/* Rules may hide something of it from the session: it cannot make any name. */
bool store_hides(struct file_session *session, const struct workspace *workspace);

/* O_PATH|O_DIRECTORY on tree/, borrowed. */
int workspace_tree_fd(const struct workspace *workspace);

/* Absolute path of tree/. */
const char *workspace_path(const struct workspace *workspace);
struct bytes workspace_thread_id(const struct workspace *workspace);

/* Told from all others that there ever were at this root. 24 bits, never 0. */
uint32_t workspace_slot(const struct workspace *workspace);

/* By WORKSPACE_SET: no commands are to be started in it. */
bool workspace_is_stopped(const struct workspace *workspace);

/* Of its directory. */
const char *workspace_name(const struct workspace *workspace);
