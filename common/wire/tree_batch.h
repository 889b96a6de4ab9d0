/* TREE_ITEMs gathered into lists, as TREE_IN and TREE_OUT carry them: many small ones share a
 * frame. */
#pragma once

#include "wire/wire.h"

/* Where the items of a tree go. */
struct tree_sink {
    /* Elements that are whole, of at most WIRE_TREE_PART_MAX bytes and WIRE_TREE_ITEMS_MAX. May
     * block. A negative errno ends it all. */
    int (*part)(void *context, const struct wire_list *items);
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
#define _cleanup_tree_batch_ _cleanup_(tree_batch_release)
