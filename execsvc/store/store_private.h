/* What the files of this folder share. */
#pragma once

#include "confine/policy.h"
#include "base/cleanup.h"
#include "base/table.h"
#include "names/thread_id.h"
#include "store/index.h"
#include "store/inode_number.h"
#include "store/meta.h"
#include "store/store.h"
#include "visibility/visibility.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Nodes one session may hold: about 250 bytes each, so 1 GiB. Stops a client that looks up
 * names and never forgets from taking all memory. */
#define SESSION_NODES_MAX ((size_t)4 << 20)

/* Handles one session may hold open. Stops one client from taking every descriptor. */
#define SESSION_HANDLES_MAX ((size_t)65536)

/* Directory descriptors kept for nodes nobody is using right now. A kept descriptor saves the
 * walk from the workspace's root; more than this saves nothing measurable. */
#define CACHED_DESCRIPTORS_MAX ((size_t)4096)

/* Levels from a workspace's root at which a node can still be reached again. Stops a tree made
 * endlessly deep from making every request on its bottom walk for seconds. */
#define TREE_DEPTH_MAX ((size_t)16384)

/* Slots are 24 bits; 0 is the mount's own, and the last one is for numbers that
 * inode_number.h gives out. */
#define SLOT_MAX ((uint32_t)0xfffffe)

#define LOCK_SECRET_SIZE 16

struct store_limits {
    size_t cached_descriptors;
    size_t handles; /* of all sessions together */
    size_t session_handles;
    size_t session_nodes;
};

/* As store_open, with other limits (tests). NULL: the ordinary ones, by RLIMIT_NOFILE. */
int store_open_limited(const char *root, enum watch_mode watch, const struct store_limits *limits,
                       struct store **ret, struct failure *ret_failure);

/* Nodes in the order in which their descriptors were last used. */
struct node_list {
    struct node *oldest, *newest;
    size_t count;
};

struct store {
    char *root;
    int root_fd, workspaces_fd, snapshots_fd, restores_fd, tmp_fd, trash_fd, lock_fd;
    uint8_t service_id[16];
    struct store_limits limits;
    bool openat2_missing;
    struct inode_numbers *numbers;

    /* Which directory a workspace's name leads to: held for reading while one is looked up,
     * for writing while one is made or removed. */
    pthread_rwlock_t names;
    uint32_t next_slot; /* under names */
    struct index *index;
    struct upkeep *upkeep;
    struct trash *trash;

    /* Everything below, and all of workspace, node, handle and session that can change. */
    pthread_mutex_t lock;
    struct table workspaces;  /* slot -> struct workspace, those in use */
    struct table nodes;       /* hash of identity -> chain of struct node */
    struct table generations; /* generation -> chain of struct node */
    bool by_file;             /* each node needs a watch of its own (inotify); set at the start */
    size_t lease_count;       /* node.lease_fd that are open */
    pthread_cond_t writers_found; /* of some file; with lock */
    struct table written;         /* number -> struct node, of files with writers (writers.h) */
    struct subscription *subscriptions;
    uint64_t change_count;
    struct watch *watch;     /* NULL: there is no way to notice changes */
    atomic_bool detects;     /* changes behind the service's back are noted too */
    struct node_list cached; /* directories with a descriptor that no request is using */
    size_t node_count;
    size_t handle_count;
    size_t locker_count;
    uint64_t last_number;           /* of nodes and handles: one counter, so that a node number that
                                       is used as a handle is never valid */
    struct visibility_rules *rules; /* NULL: none; set before there are sessions */
    struct policy policy;           /* of new workspaces; likewise */
    uint64_t view_changes;          /* counts whatever may change what some session sees */

    pthread_mutex_t snapshots_lock; /* the list of those that are open (snapshot.h) */
    struct snapshot_use *snapshot_uses;

    pthread_mutex_t sessions_lock; /* the list, and what LOCK_CLAIM says of each session */
    struct file_session *sessions;
};

struct workspace {
    struct store *store;
    size_t refs;
    uint32_t slot;
    atomic_bool stopped;
    bool removed;
    bool claimed; /* by who removes or restores it: only one does */
    int tree_fd;
    dev_t device; /* of the tree's root */
    uint64_t root_ino;
    char *path;
    char *name;
    uint8_t *thread_id;
    size_t thread_id_len;
    struct wire_time created_at;
    /* Held for writing from before a rename until the nodes' names are right again; for
     * reading by a walk or look-up that repeats because one ran meanwhile, and while a file
     * is made and entered. Once a rename waits nobody else gets it: who holds it must neither
     * take a grip nor ask for writers, which walk, or wait for who does. */
    pthread_rwlock_t renames;
    atomic_uint_fast64_t rename_count;     /* changes before a rename, and after it but before the
                                              new names are noted */
    atomic_bool handles_missing;           /* name_to_handle_at does not work on device */
    struct visibility_rules *rules;        /* NULL: none */
    uint64_t view_changed;                 /* store.view_changes when rules or a directory's place
                                              changed last */
    atomic_uint_fast64_t unlisted, hidden; /* entries left out of listings */
};

struct workspace_source;

/* As WORKSPACE_CREATE says. source NULL: an empty one. -EINVAL and -E2BIG with what is wrong;
 * -EEXIST: there is a workspace, and EXCLUSIVE, a policy or a source was given. */
int workspace_create(struct store *store, const struct wire_workspace_create *q,
                     const struct workspace_source *source, struct workspace **ret,
                     bool *ret_created, struct failure *ret_failure);

/* The reply WORKSPACE. */
int workspace_answer(struct store *store, const struct workspace *w, bool created,
                     struct reply *ret);

/* Renames a directory to a name that is not there yet. -EEXIST, -ENOTEMPTY. */
int store_rename_new(int from_fd, const char *from, int to_fd, const char *to);

/* Moves a directory of tmp/ that has come to nothing to the trash. */
void store_remove_built(struct store *store, const char *temporary);

/* To remove it, or to replace all that is in it. False: somebody else does. */
bool workspace_claim(struct workspace *workspace);
void workspace_disclaim(struct workspace *workspace);

/* As WORKSPACE_SET says. -EREMCHG: it has another revision. ret_name: of its directory. */
int workspace_set(struct store *store, const struct wire_workspace_set *q,
                  char ret_name[WIRE_NAME_MAX + 1], struct failure *ret_failure);

/* Reads meta.json of workspaces/NAME into the index, or notes that it is broken, or that it is not
 * there. -ENOMEM, -EMFILE, -ENFILE: nothing was noted. */
int workspace_read(struct store *store, const char *name);

/* The next slot, for good. Under store.names for writing. */
int store_take_slot(struct store *store, uint32_t *ret);

int workspace_remove(struct store *store, struct bytes key, uint32_t flags);

/* The rules in force for it: the service's and its own, each referenced, or NULL. */
int workspace_visibility(struct store *store, struct bytes key, uint32_t flags,
                         struct visibility_rules **ret_service, struct visibility_rules **ret);

/* Sets its own rules, durable and at once for all sessions. -EINVAL with what is wrong. */
int workspace_set_visibility(struct store *store, struct bytes key, uint32_t flags,
                             struct bytes rules, struct failure *ret_failure);

/* The directory name that a key leads to. *ret_id: the key (key_place points to it) if it is a
 * thread ID, else NULL. -ENOENT: no workspace can have this name. */
int workspace_key_name(struct bytes key, uint32_t flags, char ret_name[THREAD_NAME_MAX + 1],
                       const struct bytes **ret_id, const struct bytes *key_place);

/* As store_workspace_find, under store.names; thread_id NULL: of any. */
int workspace_find_locked(struct store *store, const char *name, const struct bytes *thread_id,
                          struct workspace **ret);

/* Moves it to the trash. Under store.names for writing. -EBUSY: it is claimed. */
int workspace_remove_locked(struct store *store, struct workspace *workspace);

/* What follows that, without the lock. */
void workspace_removed(struct store *store);

struct workspace *workspace_ref_locked(struct workspace *workspace);
void workspace_unref_locked(struct workspace *workspace);
DEFINE_CLEANUP(struct workspace *, workspace_unref);
#define _cleanup_workspace_ _cleanup_(workspace_unref_pointer)

struct file_session {
    struct store *store;
    bool (*shows)(const void *context, struct bytes thread_id); /* NULL: all workspaces */
    const void *shows_context;
    struct table nodes;             /* number -> struct node_ref */
    struct table handles;           /* number -> struct handle */
    size_t handle_count;            /* with those reserved */
    struct visibility_rules *rules; /* NULL: none */
    uint64_t view_changed;          /* as workspace.view_changed, when rules changed last */
    struct table lockers;           /* lock.c */
    size_t lock_ranges;
    bool lock_superseded;             /* by a session with the same secret */
    struct file_session *next, *prev; /* under store.sessions_lock, as the rest */
    bool lock_claimed;
    uint8_t lock_secret[LOCK_SECRET_SIZE];
};

static inline void store_lock(struct store *store)
{
    (void)pthread_mutex_lock(&store->lock);
}

static inline void store_unlock(struct store *store)
{
    (void)pthread_mutex_unlock(&store->lock);
}
