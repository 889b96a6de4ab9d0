/* Finding again, on a new connection, the files and handles that the kernel still holds. A
 * file is looked up where it was last seen, from its workspace's root down, and must be the
 * same one by identity; a handle is opened again without truncating or creating anything.
 * What is not found, or was unlinked while open, is ESTALE. Many are found at the same time;
 * a path costs one round trip a component, once. */
#pragma once

#include "request.h"

/* True while the file or handle is known on the current connection. */
static inline bool repair_inode_current(const struct driver *d, const struct inode *i)
{
    return (i->flags & INODE_LOCAL) || i->connection == d->inodes.connection;
}

static inline bool repair_handle_current(const struct driver *d, const struct handle *h)
{
    return (h->inode->flags & INODE_LOCAL) || h->connection == d->inodes.connection;
}

/* Finds it again, then sends the waiter again, or fails it. NULL: nobody waits for a handle. */
void repair_inode(struct driver *d, struct inode *i, struct request *waiter);
void repair_handle(struct driver *d, struct handle *h, struct request *waiter);

/* Frees what is under way, failing its waiters; for the end. */
void repair_release(struct driver *d);
