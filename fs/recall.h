/* Listings that an earlier mount was sent, from this machine's disk (disk.h).
 *
 * Nothing on disk is believed. A READTREE asks for digests: the service reads its directories as
 * ever, holds what is in them and reports what changes from then on, and says of each part of a
 * listing (wire/part.h) its SHA-256 instead of what is in it, and by which nodes the session has
 * it. A part on disk that has this digest is, byte for byte, what the service would have sent. What
 * is not there, is damaged or was removed meanwhile, is asked for (READPARTS). So what is answered
 * from a listing is as new as if it had come whole. */
#pragma once

#include "request.h"

/* Bytes of entries that one answer may stand for. Stops a service from having more memory set
 * aside. */
#define RECALL_SIZE_MAX ((size_t)5 << 20)

/* READTREEs that ask for digests at the same time. Bounds memory when many threads walk. */
#define RECALLS_MAX 4

/* An earlier mount has left listings of this directory's workspace. *ret_age: what has changed in
 * so many ms was after that. */
bool recall_may(struct driver *d, const struct inode *directory, uint32_t *ret_age);

/* Keeps on disk what the service has sent whole. */
void recall_keep(struct driver *d, const struct wire_tree *reply);

/* first: the first of the digests is among them. Without a connection, or memory, there are none;
 * else all references that the answer counts have been given back, but those of these. Borrowed. */
typedef void recall_done_fn(struct request *r, struct wire_tree_directory *directories,
                            size_t count, bool first);

/* Finds the entries of an answer to r. done is called once, perhaps at once. */
void recall_start(struct request *r, const struct wire_list *digests, recall_done_fn *done);
