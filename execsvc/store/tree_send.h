/* A whole tree, from where it is to where it goes: to another directory, or as lists of TREE_ITEMs.
 */
#pragma once

#include "store/tree_reader.h"
#include "store/tree_writer.h"

/* Where the items of a tree go. */
struct tree_sink {
    /* Elements that are whole, of at most WIRE_TREE_PART_MAX bytes and WIRE_TREE_ITEMS_MAX. May
     * block. A negative errno ends it all. */
    int (*part)(void *context, const struct wire_list *items);
    void *context;
};

/* Whether it is still wanted; asked often. May be NULL: it is. */
struct tree_stop {
    bool (*cancelled)(void *context);
    void *context;
};

/* Items on their way into a list. {0} but for the sink. */
struct tree_batch {
    struct tree_sink sink;
    struct buffer list;
    struct buffer element;
    uint32_t count;
};
int tree_batch_add(struct tree_batch *b, const struct wire_tree_item *item);
int tree_batch_flush(struct tree_batch *b);
void tree_batch_release(struct tree_batch *b);

/* own: with extended attributes of any name. *ret: what has been sent. Errors of the sink,
 * -ECANCELED, and those of tree_reader_next. */
int tree_send(int root_fd, const struct tree_reader_options *options, bool own,
              const struct tree_sink *sink, const struct tree_stop *stop, struct tree_counts *ret,
              struct failure *ret_failure);

/* Copies a tree to where w writes, which has the option own; w is not finished. */
int tree_copy(int root_fd, const struct tree_reader_options *options, struct tree_writer *w,
              const struct tree_stop *stop, struct failure *ret_failure);

/* Whether the view hides what is at this path, or something above it. NULL: nothing is. */
bool tree_hides(const struct visibility_view *view, struct bytes path, bool directory);
