/* A whole tree, from where it is to where it goes: to another directory, or as lists of TREE_ITEMs.
 */
#pragma once

#include "store/tree_reader.h"
#include "wire/tree_batch.h"

/* Whether it is still wanted; asked often. May be NULL: it is. */
struct tree_stop {
    bool (*cancelled)(void *context);
    void *context;
};
static inline bool tree_stopped(const struct tree_stop *stop)
{
    return stop && stop->cancelled && stop->cancelled(stop->context);
}

struct tree_counts {
    uint64_t entries;
    uint64_t size; /* of the files */
    bool shared;   /* all that they hold is shared with what they were copied from */
};

/* own: with extended attributes of any name. *ret: what has been sent. Errors of the sink,
 * -ECANCELED, and those of tree_reader_next. */
int tree_send(int root_fd, const struct tree_reader_options *options, bool own,
              const struct tree_sink *sink, const struct tree_stop *stop, struct tree_counts *ret,
              struct failure *ret_failure);

/* Calls `each` for the extended attributes of an entry, as items. */
int tree_xattrs(int fd, bool own, int (*each)(void *context, const struct wire_tree_item *item),
                void *context);

/* Whether the view hides what is at this path, or something above it. NULL: nothing is. */
bool tree_hides(const struct visibility_view *view, struct bytes path, bool directory);
