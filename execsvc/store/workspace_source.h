/* What a workspace is made from, or restored from, if not from nothing. */
#pragma once

#include "store/store_private.h"
#include "store/transfer.h"

/* Borrowed, all of it. One of tree_fd and file_fd, or none: then the items that come. */
struct workspace_source {
    int tree_fd;  /* of a directory: a snapshot's, or another workspace's */
    int file_fd;  /* of a tree_file.h */
    int rules_fd; /* where the visibility rules and the policy are taken from, or -1 */
    struct workspace *workspace; /* whose tree it is, or NULL */
    const struct transfer *transfer;
};

/* Makes tree/ in a directory of tmp/ and all that is in it, durable. The failure says what went
 * wrong; what there is then is to be removed by the caller. */
int workspace_source_build(struct store *store, const struct workspace_source *source,
                           int directory_fd, struct failure *ret_failure);
