#include "handle.h"

#include "sequence.h"

int handle_new(struct handle_table *t, struct inode *inode, uint64_t wire, uint32_t connection,
               uint32_t flags, struct handle **ret)
{
    struct handle *h = calloc(1, sizeof *h);
    if (!h)
        return -ENOMEM;
    h->id = ++t->last_id;
    int r = table_put(&t->by_id, h->id, h, NULL);
    if (r < 0) {
        free(h);
        return r;
    }
    h->wire = wire;
    h->connection = connection;
    h->flags = flags;
    h->pins = 1;
    h->inode = inode_pin(inode);
    h->next = inode->handles;
    inode->handles = h;
    *ret = h;
    return 0;
}

struct handle *handle_get(struct handle_table *t, uint64_t id)
{
    return table_get(&t->by_id, id);
}

static void handle_free(struct handle_table *t, struct handle *h)
{
    listing_free(t->inodes, h->listing);
    workspace_listing_free(h->workspaces);
    free(h->foreseen);
    /* Without memory it stays open at the server until the connection ends. */
    if (h->wire && h->connection == t->inodes->connection)
        (void)buffer_append_u64(&t->releases, h->wire);
    content_unpin(t->inodes, h->content);
    sequence_free(h->sequence);
    inode_unpin(t->inodes, h->inode);
    free(h);
}

void handle_unpin(struct handle_table *t, struct handle *h)
{
    if (h && --h->pins == 0)
        handle_free(t, h);
}

static void unlist(struct handle *h)
{
    struct handle **link = &h->inode->handles;
    while (*link && *link != h)
        link = &(*link)->next;
    if (*link)
        *link = h->next;
    h->next = NULL;
}

void handle_list_unopened(struct handle_table *t, struct handle *h, uint64_t now_ns)
{
    h->opened_ns = now_ns;
    h->older = t->newest;
    *(t->newest ? &t->newest->newer : &t->oldest) = h;
    t->newest = h;
}

void handle_unlist_unopened(struct handle_table *t, struct handle *h)
{
    if (!h->opened_ns)
        return;
    *(h->newer ? &h->newer->older : &t->newest) = h->older;
    *(h->older ? &h->older->newer : &t->oldest) = h->newer;
    h->newer = h->older = NULL;
    h->opened_ns = 0;
}

void handle_release(struct handle_table *t, struct handle *h)
{
    handle_unlist_unopened(t, h);
    (void)table_take(&t->by_id, h->id);
    unlist(h);
    handle_unpin(t, h);
}

struct handle *handle_of(const struct inode *inode, uint32_t connection, uint32_t with,
                         uint32_t without)
{
    struct handle *h = inode->handles;
    while (h && (h->connection != connection || (h->flags & with) != with || (h->flags & without)))
        h = h->next;
    return h;
}

void handle_table_release(struct handle_table *t)
{
    size_t cursor = 0;
    struct handle *h;
    while ((h = table_next(&t->by_id, &cursor))) {
        unlist(h);
        handle_free(t, h);
    }
    table_release(&t->by_id);
    buffer_release(&t->releases);
}
