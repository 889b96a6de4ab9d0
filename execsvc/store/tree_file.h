/* A tree in one file: parts of TREE_ITEMs, compressed as one zstd frame with a checksum, so that
 * one that was cut off or damaged is not taken for a whole one. */
#pragma once

#include "store/tree_send.h"

struct tree_file;

/* Writes to fd (borrowed). -ENOMEM. */
int tree_file_new(int fd, struct tree_file **ret);

/* A sink's part: context is the struct tree_file. */
int tree_file_part(void *file, const struct wire_list *items);

/* Writes what is left; durable when it returns 0. */
int tree_file_finish(struct tree_file *file);
void tree_file_free(struct tree_file *file);
DEFINE_CLEANUP(struct tree_file *, tree_file_free);
#define _cleanup_tree_file_ _cleanup_(tree_file_free_pointer)

/* Reads such a file from fd, and gives its parts to a sink. -EIO: it is damaged; -ECANCELED; errors
 * of the sink, which fills the failure itself if its error is not to be one of the file. */
int tree_file_read(int fd, const struct tree_sink *sink, const struct tree_stop *stop);
