/* Walks a tree of files and tells what is in it, as TREE_ITEMs: directories before what they hold,
 * each file of several names once and then by HARD_LINKs. Others may change the tree meanwhile:
 * what has gone when its turn comes is left out, and no link is followed whatever it is made to be.
 * Sockets and devices are left out. Not thread-safe. */
#pragma once

#include "base/failure.h"
#include "visibility/visibility.h"
#include "wire/wire.h"

/* Paths of directories that are still to be read; and of files that have several names. Stop trees
 * made for it from taking all memory. */
#define TREE_READER_PATHS_MAX ((size_t)64 << 20)

struct tree_reader_options {
    bool openat2_missing;
    const struct visibility_view *view; /* what it hides is left out; NULL: nothing is */
};

struct tree_reader;

/* root_fd: O_PATH will do; borrowed. -ENOMEM. */
int tree_reader_new(int root_fd, const struct tree_reader_options *options,
                    struct tree_reader **ret);
void tree_reader_free(struct tree_reader *r);
DEFINE_CLEANUP(struct tree_reader *, tree_reader_free);
#define _cleanup_tree_reader_ _cleanup_(tree_reader_free_pointer)

/* The next entry: 1 and *ret, whose views last until the next call, and *ret_fd, on which its data
 * and attributes are: for reading if it is a FILE, O_PATH if a DIRECTORY, else -1. Borrowed
 * likewise. 0: that was all. Negative errno, and *ret_failure says at which path: -ENAMETOOLONG
 * (deeper than WIRE_TREE_PATH_MAX), -E2BIG, -EACCES, and others. */
int tree_reader_next(struct tree_reader *r, struct wire_tree_item *ret, int *ret_fd,
                     struct failure *ret_failure);
