/* Places in a workspace's tree, as a caller of the service sees it. Paths are walked here, one name
 * at a time, since the service follows no link for anybody. A link is followed inside its workspace
 * alone. */
#pragma once

#include "base/buffer.h"
#include "gateway/upstream.h"

/* Where a command sees its workspace: absolute links below it lead to the workspace's root. */
#define PATH_WORKSPACE "/workspace"

/* Where one of a client of E2B's dialect sees it, too. */
#define PATH_E2B_HOME "/home/user"

/* Bytes of a path, and of what its links make of it. Stops one request from asking for look-ups
 * without end. */
#define PATH_BYTES_MAX 16384

/* Links on one way: the kernel's own bound. */
#define PATH_LINKS_MAX 40

/* Times that a way is walked while what it leads over is replaced: -ESTALE after that. */
#define PATH_TRIES 8

struct tree;

/* Opens a workspace, found as by WORKSPACE_OPEN with these flags. -ENOENT, and others of
 * upstream_call. The tree is to be closed before the upstream is freed. */
int tree_open(struct upstream *u, struct bytes workspace, uint32_t flags, struct tree **ret,
              struct failure *ret_failure);

/* Gives back all references to nodes, without waiting. NULL is allowed. */
void tree_close(struct tree *t);
DEFINE_CLEANUP(struct tree *, tree_close);
#define _cleanup_tree_ _cleanup_(tree_close_pointer)

struct upstream *tree_upstream(const struct tree *t);

/* A reference to a node that a reply has given: it lasts until tree_close. On -ENOMEM it has been
 * given back. */
int tree_hold(struct tree *t, uint64_t node);

/* Gives a reference back, now or a little later. */
void tree_forget(struct tree *t, uint64_t node);

/* Whether PATH_MAKE_PARENTS has made a directory, also on a way that failed. */
bool tree_has_made(const struct tree *t);

/* One request in the tree, as upstream_call. */
int tree_call(struct tree *t, const struct wire_message *request, struct wire_frame **ret,
              struct failure *ret_failure);

/* Waits until every mount of the service has heard of what was changed in the tree, as fsync does.
 * directory: one of the tree that is there. */
int tree_settle(struct tree *t, uint64_t directory, struct failure *ret_failure);

enum path_flags {
    PATH_FOLLOW = 1,       /* a link at the end, too */
    PATH_MAY_LACK = 2,     /* the last name may lead to nothing */
    PATH_MAKE_PARENTS = 4, /* directories on the way that are not there are made */
};

/* Where a path leads. */
struct place {
    uint64_t directory; /* the node it is in; 0: it is the workspace's root */
    char name[WIRE_NAME_MAX + 1];
    uint64_t node; /* 0: there is nothing */
    struct wire_attr attr;
    bool made;          /* by PATH_MAKE_PARENTS: some directory was */
    struct buffer path; /* from the root, without links, "a/b"; empty for the root; NUL behind it */
};
void path_release(struct place *p);
#define _cleanup_place_ _cleanup_(path_release)

/* Walks. Leading, repeated and trailing slashes do not count, but that a name with one behind it
 * must be a directory. -ENOENT, -ENOTDIR, -ELOOP, -ENAMETOOLONG, -EINVAL (a NUL), -EACCES: a link,
 * or
 * `..`, leads out of the workspace; others of the service. Nodes are held by the tree. */
int path_walk(struct tree *t, struct bytes path, unsigned flags, struct place *ret,
              struct failure *ret_failure);

/* Makes a directory, with PATH_MAKE_PARENTS all that lack on the way, where -EEXIST is none if it
 * is a directory already (*ret_made, may be NULL). Otherwise -EEXIST. */
int path_make_directory(struct tree *t, struct bytes path, unsigned flags, struct place *ret,
                        bool *ret_made, struct failure *ret_failure);
