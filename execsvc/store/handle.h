/* Open files and directories. A number is never used twice, by any session. */
#pragma once

#include "store/node.h"

struct handle {
    uint64_t number;
    int fd;
    uint32_t refs; /* the session's, and of running requests */
    struct node *node;
    struct handle *before, *after; /* in node->handles */
    bool directory;
    bool writable;
    struct unnamed *unnamed; /* of a file that has no name yet (unnamed.h), else NULL */
    /* Negative errno of the last write or new size through it when that was not made whole, else 0.
     * Changes through one handle are carried out one after the other. */
    int failed;
    pthread_mutex_t position_lock; /* directories: fd's position */
    uint64_t position;
};

/* Reserves room for one handle, before the file is opened or made: -EMFILE (this session has
 * too many), -ENFILE (the service has). Undone by handle_unreserve or used by handle_new. */
int handle_reserve(struct file_session *session);
void handle_unreserve(struct file_session *session);

/* Takes fd (on success) and the reservation, and adds a reference on node. */
int handle_new(struct file_session *session, struct node *node, int fd, bool writable,
               uint64_t *ret_number);

/* Adds a reference for the running request. -EBADF: not this session's; -ESTALE: its workspace
 * was removed. */
int handle_get(struct file_session *session, uint64_t number, struct handle **ret);
void handle_unref(struct handle *handle);
DEFINE_CLEANUP(struct handle *, handle_unref);
#define _cleanup_handle_ _cleanup_(handle_unref_pointer)

/* Before a write, or a new size, through it. behind: it must not be made if the one before was not
 * made whole. 0, or what that one failed with. */
int handle_change(struct handle *handle, bool behind);

/* Ends the session's use of it; unknown numbers are ignored. */
void handle_release(struct file_session *session, uint64_t number);
