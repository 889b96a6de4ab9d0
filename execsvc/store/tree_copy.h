/* A whole tree from one directory to another, which share the blocks of files if they can. */
#pragma once

#include "store/tree_send.h"
#include "store/tree_writer.h"

/* Copies a tree to where w writes, which has the option own; w is not finished. */
int tree_copy(int root_fd, const struct tree_reader_options *options, struct tree_writer *w,
              const struct tree_stop *stop, struct failure *ret_failure);
