#include "driver.h"

#include <sys/random.h>
#include <time.h>

#include "base/log.h"
#include "connection.h"
#include "create_ahead.h"
#include "join.h"
#include "lock.h"
#include "ops.h"
#include "pipeline.h"
#include "prefetch.h"
#include "repair.h"

#define FORGETS_PER_NOTICE 4096 /* as many pairs as FORGET takes */

static void send_notices(evutil_socket_t fd, short what, void *context)
{
    struct driver *d = context;
    if (!d->client)
        return;
    struct bytes forgets = buffer_view(&d->inodes.forgets);
    while (forgets.len) {
        struct bytes part = forgets;
        if (part.len > FORGETS_PER_NOTICE * 16)
            part.len = FORGETS_PER_NOTICE * 16;
        struct wire_message m = {.type = WIRE_FORGET, .forget = {.pairs = part}};
        if (client_send(d->client, 0, &m) == 0)
            d->stats.requests[WIRE_FORGET]++;
        forgets = bytes_of(forgets.data + part.len, forgets.len - part.len);
    }
    d->inodes.forgets.len = 0;
    for (size_t at = 0; at < d->handles.releases.len; at += 8) {
        struct wire_message m = {.type = WIRE_RELEASE};
        /* buffer_append_u64 writes little-endian */
        for (size_t i = 0; i < 8; i++)
            m.release.handle |= (uint64_t)d->handles.releases.data[at + i] << (8 * i);
        if (client_send(d->client, 0, &m) == 0)
            d->stats.requests[WIRE_RELEASE]++;
    }
    d->handles.releases.len = 0;
}

/* A portion of what is dropped (tree.h) in each turn of the loop. Made active by a timer: what is
 * made active while callbacks run is run before the loop looks at anything else. */
static void drop_some(evutil_socket_t fd, short what, void *context)
{
    struct driver *d = context;
    (void)tree_drop_some(&d->inodes, TREE_DROP_PORTION);
    driver_notices_pending(d);
}

int driver_init(struct driver *d, struct failure *ret_failure)
{
    d->waiting.last = &d->waiting.first;
    d->lookups.last = &d->lookups.first;
    d->mounted_at = time(NULL);
    d->handles.inodes = &d->inodes;
    if (getrandom(d->lock_secret, sizeof d->lock_secret, 0) != (ssize_t)sizeof d->lock_secret)
        return failure_set(ret_failure, -EIO, "no random numbers");
    int r = inode_table_init(&d->inodes, d->options->workspace ? INODE_WORKSPACE : INODE_LOCAL);
    if (r < 0)
        return failure_set(ret_failure, r, "out of memory");
    r = pipeline_new(d);
    if (r < 0)
        return failure_set(ret_failure, r, "out of memory");
    if (!d->member)
        d->base = event_base_new();
    if (!d->base)
        return failure_set(ret_failure, -EIO, "cannot make an event loop");
    d->notices = event_new(d->base, -1, 0, send_notices, d);
    d->drops = event_new(d->base, -1, 0, drop_some, d);
    d->waiting_timer = event_new(d->base, -1, 0, request_waiting_expired, d);
    d->late = event_new(d->base, -1, 0, open_late, d);
    if (!d->notices || !d->drops || !d->waiting_timer || !d->late)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    return 0;
}

void driver_release(struct driver *d)
{
    struct workspace_ids *w;
    size_t cursor = 0;
    while ((w = table_next(&d->workspaces, &cursor)))
        free(w);
    table_release(&d->workspaces);
    table_release(&d->recalled);
    repair_release(d);
    prefetch_free(d);
    workspace_listing_free(d->workspaces_seen);
    lock_release(d);
    create_ahead_free(d);
    pipeline_free(d);
    handle_table_release(&d->handles);
    inode_table_release(&d->inodes);
    visibility_rules_unref(d->rules);
    if (d->notices)
        event_free(d->notices);
    if (d->drops)
        event_free(d->drops);
    if (d->late)
        event_free(d->late);
    if (d->waiting_timer)
        event_free(d->waiting_timer);
    if (d->base && !d->member)
        event_base_free(d->base);
}

void driver_notices_pending(struct driver *d)
{
    if (d->inodes.forgets.len || d->handles.releases.len)
        event_active(d->notices, EV_TIMEOUT, 0);
    const struct timeval soon = {0};
    if (d->inodes.tree.dropped && !evtimer_pending(d->drops, NULL))
        (void)event_add(d->drops, &soon);
}

int driver_note_workspace(struct driver *d, struct inode *inode, struct bytes thread_id)
{
    if (table_get(&d->workspaces, inode->id))
        return 0;
    struct workspace_ids *w = malloc(sizeof *w + thread_id.len);
    if (!w)
        return -ENOMEM;
    w->len = thread_id.len;
    memcpy(w->thread_id, thread_id.data, thread_id.len);
    int r = table_put(&d->workspaces, inode->id, w, NULL);
    if (r < 0)
        free(w);
    return r;
}

const struct workspace_ids *driver_workspace(const struct driver *d, const struct inode *inode)
{
    return inode->flags & INODE_WORKSPACE ? table_get(&d->workspaces, inode->id) : NULL;
}

void driver_end(struct driver *d, int result)
{
    if (d->member && result == -ESTALE) {
        join_replaced(d);
        return;
    }
    if (d->member)
        d = join_hub(d);
    if (d->result == 0)
        d->result = result;
    (void)event_base_loopbreak(d->base);
}

uint64_t driver_ino(const struct driver *d, uint64_t ino)
{
    return d->member && ino != d->inodes.root->ino ? join_ino(d, ino) : ino;
}
