/* Builds a tree of files from items (TREE_ITEM), below one directory and nowhere else: whoever
 * sends them may be anybody. Paths are relative, of plain components; no link is ever followed;
 * what is there already is replaced by what comes later as tar does it, but a directory and
 * something else never take each other's place. Not thread-safe. */
#pragma once

#include "base/failure.h"
#include "store/tree_send.h"
#include "visibility/visibility.h"
#include "wire/wire.h"

/* Paths of directories whose modes and times are set at the end, in bytes. Stops a stream of
 * directories from taking all memory. */
#define TREE_DIRECTORIES_MAX ((size_t)64 << 20)

/* Entries of one tree. Stops a small archive of many names from taking every inode. */
#define TREE_ENTRIES_MAX ((uint64_t)16 << 20)

/* What a tree leaves to all others of its filesystem: bytes, or a twentieth where that is less.
 * Stops an archive that unpacks to everything there is from filling the disk. */
#define TREE_RESERVE_BYTES ((uint64_t)1 << 30)
#define TREE_RESERVE_SHARE 20

/* So much is written between two looks at how much is left. */
#define TREE_LOOK_BYTES ((uint64_t)64 << 20)
#define TREE_LOOK_ENTRIES 4096

struct tree_writer_options {
    /* The items were made here, of a workspace: owners, set-user-ID bits, the root's attributes and
     * extended attributes of any name are taken over. */
    bool own;
    bool openat2_missing;
    const struct visibility_view *view; /* what it hides is refused (EPERM); NULL: nothing is */
};

struct tree_writer;

/* root_fd: an empty directory of ours, O_RDONLY; borrowed. -ENOMEM. */
int tree_writer_new(int root_fd, const struct tree_writer_options *options,
                    struct tree_writer **ret);
void tree_writer_free(struct tree_writer *w);
DEFINE_CLEANUP(struct tree_writer *, tree_writer_free);
#define _cleanup_tree_writer_ _cleanup_(tree_writer_free_pointer)

/* Takes one item, in order. *ret_failure says which path and why: -EINVAL (not an item, or not a
 * path), -ENAMETOOLONG, -EEXIST, -ELOOP, -ENOTDIR, -ENOENT (a hard link to nothing), -EPERM,
 * -E2BIG, -ENOSPC, and others of the filesystem. */
int tree_writer_add(struct tree_writer *w, const struct wire_tree_item *item,
                    struct failure *ret_failure);

/* The same with all the data of a file, which shares its blocks where that can be. cancelled: asked
 * between portions; -ECANCELED. */
int tree_writer_add_copy(struct tree_writer *w, const struct wire_tree_item *item, int from_fd,
                         bool (*cancelled)(void *context), void *context,
                         struct failure *ret_failure);

/* There are no more: directories get their modes and times, and all of it is on the disk when this
 * returns 0. */
int tree_writer_finish(struct tree_writer *w, struct tree_counts *ret, struct failure *ret_failure);

/* Takes the elements of a list as tree_writer_add does. -EBADMSG: not TREE_ITEMs. */
int tree_writer_add_list(struct tree_writer *w, const struct wire_list *list,
                         struct failure *ret_failure);
