/* Nodes: files that clients know. A node is one object for all sessions of the service, so a
 * rename by one session keeps the others' nodes right; its number is valid only in sessions
 * that hold a reference, so a guessed number finds nothing.
 *
 * A file is known by (workspace, device, inode number, generation). The generation comes from
 * name_to_handle_at, or from the birth time where that is not to be had: inode numbers are
 * used again at once by ext4. How to reach the node is only a hint, the name at which it was
 * last seen and that directory's node: it is believed after the identity has been checked. */
#pragma once

#include "store/store_private.h"

struct node {
    struct node *chain;           /* same bucket in store.nodes */
    struct node *same_generation; /* in store.generations */
    struct workspace *workspace;
    struct node *parent; /* counted; NULL: the root, or a node whose place is not known */
    char *name;
    struct handle *handles;     /* open ones, each with a descriptor that can serve as the node's */
    struct node *older, *newer; /* in store.cached */
    uint64_t number;
    uint64_t ino;
    uint64_t generation;
    dev_t device;
    int fd;        /* O_PATH, or -1; kept beyond its use for directories and what was removed */
    uint32_t pins; /* uses of fd; 0 and fd >= 0: in store.cached */
    uint32_t refs; /* sessions, requests, handles, children */
    uint16_t type; /* S_IFMT part of the mode */
    bool root;
    bool removed;    /* see grip_keep_removed */
    uint8_t writers; /* writers.h */
    bool watched;    /* by a watch of its own (detect.h) */
    int lease_fd;    /* writers.h; or -1 */
};

/* Takes node out of a list it is in. Under store.lock. */
void node_list_remove(struct node_list *list, struct node *node);

struct seen_directory;

/* A session's references to a node. */
struct node_ref {
    struct node *node;
    uint64_t count;
    uint64_t seen_at;            /* store.view_changes when it was last found not to be hidden */
    struct seen_directory *seen; /* view.h; NULL: not known */
};

/* Adds a reference for the running request. -ESTALE: not this session's, its workspace was
 * removed, or it is hidden now from this session. */
int node_get(struct file_session *session, uint64_t number, struct node **ret);
/* As node_get, but hidden or not: for requests that name a handle too, which stays usable. */
int node_get_open(struct file_session *session, uint64_t number, struct node **ret);
/* As node_get, and -ENOTDIR. */
int node_get_directory(struct file_session *session, uint64_t number, struct node **ret);
void node_unref(struct node *node);
DEFINE_CLEANUP(struct node *, node_unref);
#define _cleanup_node_ _cleanup_(node_unref_pointer)
void node_unref_locked(struct node *node);

/* One more reference of the session on a node that the caller holds. -ENFILE, -ENOMEM. */
int node_hold(struct file_session *session, struct node *node);

/* Gives back `count` references of the session, or as many as there are. */
void node_forget(struct file_session *session, uint64_t number, uint64_t count);

/* True while the session may hold one more node. Asked before a file is made, so that the
 * limit leaves no file behind that nobody was told of. */
bool node_room(struct file_session *session);

/* A file as it was seen just now: at name in dir (both NULL: a workspace's root), by a statx
 * of at_name in at_fd, or of at_fd itself when at_name is "". */
struct sighting {
    struct node *dir;
    const char *name;
    int at_fd;
    const char *at_name;
    struct statx *stx; /* renewed when this is the first the session hears of the file */
    /* rename_count before the statx, or NULL when no rename can run. */
    const uint64_t *rename_count;
    uint64_t seen_at; /* as node_ref's, from the directory's view */
};

/* The node of a file, with its place noted, one more reference for the session, and one for
 * the caller. -ENOENT: at_name is gone; -EAGAIN: a rename began meanwhile, so that the place
 * may be out of date and must not be noted; -ENFILE: too many nodes; -ENOMEM. */
int node_enter(struct file_session *session, struct workspace *workspace,
               const struct sighting *seen, struct node **ret);

/* The node, if it is one already, of the file open as fd, of which stx is; with a reference for
 * the caller. -ENOENT: it is none. */
int node_find(struct workspace *workspace, int fd, const struct statx *stx, struct node **ret);

/* The next node, after `previous` (NULL: the first; its reference is given back), of the file with
 * this generation; with a reference for the caller, or NULL. (A file has one node in all but the
 * rarest cases: two workspaces can have links to it.) */
struct node *node_of_generation(struct store *store, uint64_t generation, struct node *previous);

/* The same for what is at `name` in dir. */
int node_find_at(struct node *dir, int dir_fd, const char *name, struct node **ret);

/* Looks at `name` in dir and, if it is a node already, notes that this is its place. */
void node_note_place(struct node *dir, int dir_fd, const char *name);

/* The name and the parent (referenced), as last noted. -ESTALE: no place is known. */
int node_place(struct node *node, struct node **ret_parent, char ret_name[WIRE_NAME_MAX + 1]);

/* The generation of name in dir_fd, or of dir_fd itself for "". */
int node_generation(struct workspace *workspace, int dir_fd, const char *name,
                    const struct statx *stx, uint64_t *ret);

/* True when stx is of this node's file, but for the generation. */
bool node_matches(const struct node *node, const struct statx *stx);

/* What tells this content of the file from others: of node_attr, which never waits. */
int node_identity(const struct node *node, const struct statx *stx, uint64_t *ret_ino,
                  uint64_t *ret_generation, uint64_t *ret_version);

/* The node's number, ino, generation and the rest of stx as clients get it. */
int node_attr(struct node *node, const struct statx *stx, struct wire_attr *ret);
