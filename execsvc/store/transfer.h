/* Requests that move whole trees: WORKSPACE_CREATE from a source, TREE_EXPORT, WORKSPACE_RESTORE
 * and those of snapshots. They take as long as there are files, so each runs on a thread of its
 * own. */
#pragma once

#include "base/buffer.h"
#include "store/store.h"

/* Who asks, and the way of items to and from him. All of it is called on the thread that runs
 * store_transfer. */
struct transfer {
    bool (*shows)(const void *context, struct bytes thread_id); /* NULL: all workspaces */
    const void *shows_context;

    /* Waits for the next TREE_IN, and puts its elements into list: 0, or -ECANCELED. */
    int (*receive)(void *context, struct buffer *list, uint32_t *ret_count, bool *ret_end);
    /* Waits until a TREE_OUT can be sent; a copy is taken. 0 or -ECANCELED. */
    int (*send)(void *context, const struct wire_message *part);
    /* Nobody wants the answer any more. */
    bool (*cancelled)(void *context);
    void *context;
};

/* True for what store_transfer carries out, and store_handle does not. */
bool store_transfers(const struct wire_message *request);

/* Runs the request. As store_handle: 0 and ret->message, or a negative errno and ret->text. What
 * was not answered with 0 has not happened, and left nothing behind. */
int store_transfer(struct store *store, const struct transfer *t,
                   const struct wire_message *request, struct reply *ret);
