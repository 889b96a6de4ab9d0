#include "climb.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

#include "base/clock.h"

/* Walks that are known at the same time. When there are more, one is waited for unseen. */
#define CLIMBS_MAX 64

struct climb {
    pid_t thread;
    struct inode *directory; /* of the link; pinned */
    fuse_ino_t top;
    uint64_t begun_ns;
    uint64_t until_ns;
};

struct climbs {
    struct climb walks[CLIMBS_MAX];
    size_t count;
    uint64_t unseen_ns;     /* until when walks are waited for that had no room */
    struct request *rename; /* that waits; the kernel does one at a time between directories */
    uint64_t rename_ns;     /* since when */
    struct event *timer;
};

/* How often threads are looked for while a rename waits. */
#define LOOK_NS (20 * NSEC_PER_MSEC)

static void remove_walk(struct driver *d, size_t i)
{
    struct climbs *c = d->climbs;
    struct inode *directory = c->walks[i].directory;
    c->walks[i] = c->walks[--c->count];
    inode_unpin(&d->inodes, directory);
}

static void remove_old(struct driver *d, uint64_t now_ns)
{
    struct climbs *c = d->climbs;
    for (size_t i = c->count; i-- > 0;)
        if (c->walks[i].until_ns <= now_ns)
            remove_walk(d, i);
}

static bool thread_is_gone(const struct climb *w)
{
    return w->thread && kill(w->thread, 0) < 0 && errno == ESRCH;
}

static bool is_taken(const struct climb *w, const struct request *r)
{
    bool exchange = r->message.rename.flags & RENAME_EXCHANGE;
    return inode_below_named(w->directory, r->inode, request_name(r)) ||
           (exchange && inode_below_named(w->directory, r->target, request_new_name(r)));
}

/* True while the rename has to wait. Walks that have begun since it was asked for were judged by
 * both places. */
static bool rename_waits(struct driver *d)
{
    struct climbs *c = d->climbs;
    uint64_t now_ns = clock_monotonic_ns();
    remove_old(d, now_ns);
    bool waits = c->unseen_ns > now_ns && now_ns < c->rename_ns + CLIMB_STEP_NS;
    for (size_t i = c->count; i-- > 0;) {
        const struct climb *w = &c->walks[i];
        if (thread_is_gone(w))
            remove_walk(d, i);
        else if (w->begun_ns <= c->rename_ns && is_taken(w, c->rename))
            waits = true;
    }
    return waits;
}

static void try_rename(struct driver *d)
{
    struct climbs *c = d->climbs;
    if (rename_waits(d)) {
        const struct timeval tv = {.tv_usec = LOOK_NS / 1000};
        (void)event_add(c->timer, &tv);
        return;
    }
    struct request *r = take_ptr(c->rename);
    (void)event_del(c->timer);
    request_send(r, r->done);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct driver *d = context;
    if (d->climbs->rename)
        try_rename(d);
}

/* NULL without memory. */
static struct climbs *climbs_of(struct driver *d)
{
    if (d->climbs)
        return d->climbs;
    struct climbs *c = calloc(1, sizeof *c);
    if (c)
        c->timer = event_new(d->base, -1, 0, on_timer, d);
    if (!c || !c->timer) {
        free(c);
        return NULL;
    }
    d->climbs = c;
    return c;
}

int climb_begin(struct driver *d, fuse_req_t reader, struct inode *directory,
                const struct inode *top)
{
    struct climbs *c = climbs_of(d);
    uint64_t now_ns = clock_monotonic_ns();
    if (!c)
        return -ENOMEM;
    if (c->count == CLIMBS_MAX)
        remove_old(d, now_ns);
    if (c->count == CLIMBS_MAX) {
        if (c->walks[0].until_ns > c->unseen_ns)
            c->unseen_ns = c->walks[0].until_ns;
        remove_walk(d, 0);
    }
    c->walks[c->count++] = (struct climb){.thread = fuse_req_ctx(reader)->pid,
                                          .directory = inode_pin(directory),
                                          .top = top->id,
                                          .begun_ns = now_ns,
                                          .until_ns = now_ns + CLIMB_STEP_NS};
    return 0;
}

/* top: 0 for any */
static void end_walks(struct driver *d, fuse_req_t by, fuse_ino_t top)
{
    struct climbs *c = d->climbs;
    if (!c || !c->count)
        return;
    pid_t thread = fuse_req_ctx(by)->pid;
    /* 0: a thread that this process cannot see; there may be many. */
    if (!thread)
        return;
    bool ended = false;
    for (size_t i = c->count; i-- > 0;) {
        struct climb *w = &c->walks[i];
        if (w->thread != thread)
            continue;
        if (!top || w->top == top) {
            remove_walk(d, i);
            ended = true;
            continue;
        }
        uint64_t until_ns = clock_monotonic_ns() + CLIMB_STEP_NS;
        uint64_t max_ns = w->begun_ns + CLIMB_MAX_NS;
        w->until_ns = until_ns < max_ns ? until_ns : max_ns;
    }
    if (ended && c->rename)
        try_rename(d);
}

void climb_end(struct driver *d, fuse_req_t by)
{
    end_walks(d, by, 0);
}

void climb_passed(struct driver *d, fuse_req_t by, fuse_ino_t ino)
{
    end_walks(d, by, ino);
}

void climb_send_rename(struct request *r, request_done_fn *done)
{
    struct driver *d = r->driver;
    struct climbs *c = d->climbs;
    climb_end(d, r->fuse);
    if (!c || c->rename || !inode_rename_climbs(&d->inodes)) {
        request_send(r, done);
        return;
    }
    r->done = done;
    c->rename = r;
    c->rename_ns = clock_monotonic_ns();
    try_rename(d);
}

void climb_stop(struct driver *d)
{
    struct climbs *c = take_ptr(d->climbs);
    if (!c)
        return;
    struct request *r = take_ptr(c->rename);
    if (r)
        r->done(r, -EIO, NULL);
    for (size_t i = 0; i < c->count; i++)
        inode_unpin(&d->inodes, c->walks[i].directory);
    event_free(c->timer);
    free(c);
}
