#include "repair.h"

#include "join.h"

#include <sys/stat.h>

struct repair {
    struct inode *inode;   /* pinned */
    struct handle *handle; /* pinned; NULL when the inode itself is sought */
    struct request_queue waiters;
};

static void add_waiter(struct repair *p, struct request *waiter)
{
    if (!waiter)
        return;
    waiter->next = NULL;
    *p->waiters.last = waiter;
    p->waiters.last = &waiter->next;
}

static int repair_new(struct inode *i, struct handle *h, struct repair **ret)
{
    struct repair *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->waiters.last = &p->waiters.first;
    p->inode = inode_pin(i);
    p->handle = h ? handle_pin(h) : NULL;
    *ret = p;
    return 0;
}

/* Frees p; its waiters are sent again, or fail. */
static void repair_end(struct driver *d, struct repair *p, int error)
{
    if (p->handle)
        (void)table_take(&d->handle_repairs, p->handle->id);
    else
        (void)table_take(&d->inode_repairs, p->inode->id);
    struct request *waiters = p->waiters.first;
    handle_unpin(&d->handles, p->handle);
    inode_unpin(&d->inodes, p->inode);
    free(p);
    struct request *next;
    for (struct request *r = waiters; r; r = next) {
        next = r->next;
        r->next = NULL;
        if (error < 0 && r->victim) {
            /* It did not need to be opened for this. */
            inode_unpin(&d->inodes, take_ptr(r->victim));
            request_send(r, r->done);
        } else if (error < 0) {
            r->done(r, error, NULL);
        } else {
            request_send(r, r->done);
        }
    }
}

/* Absence now means that the file the kernel knew is gone from where it was. */
static int absence(int error)
{
    return error == -ENOENT || error == -ENOTDIR || error == -ELOOP ? -ESTALE : error;
}

static void inode_found(struct request *q, int error, const struct wire_message *reply)
{
    struct driver *d = q->driver;
    struct repair *p = q->context;
    if (error == 0) {
        bool workspace = reply->type == WIRE_WORKSPACE_ROOT;
        uint64_t node = workspace ? reply->workspace_root.node : reply->entry.node;
        const struct wire_attr *attr = workspace ? &reply->workspace_root.attr : &reply->entry.attr;
        if (inode_is(p->inode, attr)) {
            inode_adopt(&d->inodes, p->inode, node);
        } else {
            inode_give_back(&d->inodes, node, 1);
            error = -ESTALE;
        }
    }
    request_free(q);
    repair_end(d, p, absence(error));
}

void repair_inode(struct driver *d, struct inode *i, struct request *waiter)
{
    struct repair *p = table_get(&d->inode_repairs, i->id);
    if (p) {
        add_waiter(p, waiter);
        return;
    }
    bool workspace = i->flags & INODE_WORKSPACE;
    struct request *q;
    int error = inode_name(i) ? repair_new(i, NULL, &p) : -ESTALE;
    if (error < 0) {
        waiter->done(waiter, error, NULL);
        return;
    }
    add_waiter(p, waiter);
    error = table_put(&d->inode_repairs, i->id, p, NULL);
    if (error == 0)
        error = request_new(d, NULL, workspace ? WIRE_WORKSPACE_OPEN : WIRE_LOOKUP, inode_name(i),
                            NULL, &q);
    if (error < 0) {
        repair_end(d, p, error);
        return;
    }
    q->context = p;
    q->urgent = true;
    if (workspace) {
        q->message.workspace_open.flags = WIRE_WORKSPACE_BY_NAME;
        q->message.workspace_open.key = d->member ? join_key(request_name(q)) : request_name(q);
    } else {
        q->message.lookup.name = request_name(q);
        q->inode = inode_pin(i->parent);
    }
    request_send(q, inode_found);
}

static void handle_opened(struct request *q, int error, const struct wire_message *reply)
{
    struct driver *d = q->driver;
    struct repair *p = q->context;
    struct handle *h = p->handle;
    if (error == 0) {
        h->wire = reply->opened.handle;
        h->connection = q->connection;
    }
    request_free(q);
    repair_end(d, p, absence(error));
    driver_notices_pending(d);
}

void repair_handle(struct driver *d, struct handle *h, struct request *waiter)
{
    struct repair *p = table_get(&d->handle_repairs, h->id);
    if (p) {
        add_waiter(p, waiter);
        return;
    }
    int error = repair_new(h->inode, h, &p);
    if (error < 0) {
        if (waiter)
            waiter->done(waiter, error, NULL);
        return;
    }
    add_waiter(p, waiter);
    struct request *q;
    error = table_put(&d->handle_repairs, h->id, p, NULL);
    if (error == 0)
        error = request_new(d, NULL, WIRE_OPEN, NULL, NULL, &q);
    if (error < 0) {
        repair_end(d, p, error);
        return;
    }
    q->context = p;
    q->urgent = true;
    q->quiet = !waiter;
    q->inode = inode_pin(h->inode);
    q->message.open.flags =
        h->flags & ~(uint32_t)(WIRE_OPEN_TRUNCATE | WIRE_OPEN_EXCLUSIVE | WIRE_OPEN_KILL_PRIV);
    request_send(q, handle_opened);
}

void repair_release(struct driver *d)
{
    struct table *const tables[] = {&d->inode_repairs, &d->handle_repairs};
    for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
        table_release(tables[i]);
}
