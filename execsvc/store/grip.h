/* A descriptor for a node during one request: from the node's cache, from a handle that is
 * open on it, or opened by walking from the nearest directory that has one. It is O_PATH or a
 * handle's; what it refers to has been checked to be the node's file. */
#pragma once

#include "store/node.h"

struct grip {
    int fd;
    struct node *node;     /* pinned, or NULL */
    struct handle *handle; /* whose descriptor it is, or NULL */
};

/* ret_stx (may be NULL) gets the file's attributes, which then cost no call of their own when
 * the descriptor had to be opened. -ESTALE: the file is not where it was and has no open
 * descriptor. The node must be referenced until the grip is released. */
int grip_take(struct node *node, struct grip *ret, struct statx *ret_stx);
void grip_release(struct grip *grip);
#define _cleanup_grip_ _cleanup_(grip_release)

/* Attributes alone: without opening anything if the file is where it was last seen. */
int grip_stat(struct node *node, struct statx *ret);

/* To be called before the file at name is unlinked, or replaced by a rename: if it is a node, its
 * descriptor is kept in the cache until the node is forgotten. A client that has just looked it up
 * may be about to open it (saving by rename would have moments without the file otherwise: the
 * client's kernel tries only once more), and one that holds it without having it open, as O_PATH
 * does, may ask how many links are left. Large files are left out, for the blocks they would keep.
 */
void grip_keep_removed(struct workspace *workspace, int dir_fd, const char *name);

/* Closes descriptors that no request uses until at most `keep` are left. */
void grip_trim(struct store *store, size_t keep);

/* statx of fd itself. */
int grip_statx_fd(int fd, struct statx *ret);

/* For calls that take no O_PATH descriptor: its path in /proc. */
#define GRIP_PATH_SIZE 32 /* PATH_OF_FD_SIZE */
const char *grip_path(int fd, char buffer[GRIP_PATH_SIZE]);
