#include "ops.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "coherence.h"
#include "create_ahead.h"
#include "device.h"
#include "fetch.h"
#include "lock.h"
#include "names.h"
#include "pipeline.h"
#include "prefetch.h"
#include "repair.h"

/* Access times are the service's: the kernel here sets none, and so obeys noatime for itself
 * alone. */
uint32_t open_atime_flag(const struct driver *d, int flags, unsigned long mount_flags)
{
    return (flags & O_NOATIME) || (d->options->mount_flags & mount_flags) ? WIRE_OPEN_NO_ATIME : 0;
}

static uint32_t wire_open_flags(const struct driver *d, int flags)
{
    static const struct {
        int posix;
        uint32_t wire;
    } bits[] = {
        {O_TRUNC, WIRE_OPEN_TRUNCATE},
        {O_EXCL, WIRE_OPEN_EXCLUSIVE},
        {O_SYNC, WIRE_OPEN_SYNC},
        {O_DSYNC, WIRE_OPEN_DSYNC},
    };
    uint32_t wire = open_atime_flag(d, flags, MS_NOATIME);
    switch (flags & O_ACCMODE) {
    case O_RDONLY:
        wire |= WIRE_OPEN_READ;
        break;
    case O_WRONLY:
        wire |= WIRE_OPEN_WRITE;
        break;
    default:
        wire |= WIRE_OPEN_READ | WIRE_OPEN_WRITE;
        break;
    }
    for (size_t i = 0; i < ARRAY_SIZE(bits); i++)
        if ((flags & bits[i].posix) == bits[i].posix)
            wire |= bits[i].wire;
    return wire;
}

/* Through its page cache the kernel splits a write where its own idea of the end of the file falls
 * into a page, so that others' records could get between the parts. Without
 * FUSE_DIRECT_IO_ALLOW_MMAP such a file could not be mapped any more, which is worse. */
static bool wants_direct(const struct driver *d, int flags)
{
    return (flags & (O_APPEND | O_DIRECT)) && device_direct_allows_mmap(d);
}

/* Nobody says when the content changes, so what is read is to be asked for each time. */
static bool is_written(const struct driver *d, const struct wire_attr *attr)
{
    return coherence_live(d) && (attr->flags & WIRE_ATTR_WRITTEN) && device_direct_allows_mmap(d);
}

/* The kernel waits for nobody when a descriptor is closed, and tells the driver only of the last
 * copy of it. Nothing was written through one that is open for reading; but with any descriptor of
 * the file that a process closes, all end that it has locked there by fcntl(). Who may lock is not
 * known before it does: see semantics.md, Locks, for what is not as locally then. */
static bool closes_quietly(const struct driver *d, const struct inode *i, uint32_t flags)
{
    if (flags & WIRE_OPEN_WRITE)
        return false;
    if (d->options->locks_local)
        return true;
    const struct handle *h = i->locked ? NULL : i->handles;
    while (h && !(h->flags & WIRE_OPEN_WRITE))
        h = h->next;
    return !i->locked && !h;
}

/* Into its page cache the kernel takes an answer that ends before what it believes to be the end of
 * the file with zeros behind it, unless it is told nothing of the file in between. So what somebody
 * rewrites in place is read past the cache as well, lest zeros are shown that were never there. */
static bool is_rewritten(const struct driver *d, const struct inode *i)
{
    return coherence_written_lately(i) && device_direct_allows_mmap(d);
}

/* Gives the server's handle back when the kernel did not get it. */
static void discard_wire_handle(struct driver *d, uint64_t wire)
{
    (void)buffer_append_u64(&d->handles.releases, wire);
    driver_notices_pending(d);
}

/* Reading alone: what the driver may answer by itself. */
static bool only_reads(const struct request *r)
{
    return !r->direct &&
           !(r->message.open.flags & ~(uint32_t)(WIRE_OPEN_READ | WIRE_OPEN_NO_ATIME));
}

static void open_done(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    if (error < 0) {
        /* Replaced between look-up and open: ESTALE makes the kernel look up once more,
         * where ENOENT would reach a program that rightly believes the name exists. */
        request_fail(r, error == -ENOENT ? -ESTALE : error);
        return;
    }
    uint32_t flags = r->message.open.flags;
    struct handle *h;
    error = handle_new(&d->handles, r->inode, reply->opened.handle, r->connection, flags, &h);
    if (error < 0) {
        discard_wire_handle(d, reply->opened.handle);
        request_fail(r, error);
        return;
    }
    bool asked_each_time = r->direct || is_written(d, &reply->opened.attr);
    struct fuse_file_info fi = {
        .fh = h->id,
        .direct_io = asked_each_time || is_rewritten(d, r->inode),
        .noflush = closes_quietly(d, r->inode, flags),
        .keep_cache = coherence_keep_cache(d, r->inode, &reply->opened.attr, r->stamp)};
    bool current = r->inode->stamp <= r->stamp;
    if (flags & WIRE_OPEN_TRUNCATE) {
        inode_changed(&d->inodes, r->inode);
        pipeline_forget_attr(r->inode);
    } else if ((flags & WIRE_OPEN_READ) && (r->inode->flags & INODE_CACHED)) {
        r->inode->flags |= INODE_ALLOWED;
    }
    if (flags & WIRE_OPEN_WRITE)
        pipeline_known(r);
    if (current)
        pipeline_note_attr(d, h, &reply->opened.attr);
    h->direct = fi.direct_io;
    if (!asked_each_time && (flags & WIRE_OPEN_READ))
        h->size = reply->opened.attr.size;
    if (fuse_reply_open(r->fuse, &fi) != 0)
        handle_release(&d->handles, h);
    request_free(r);
}

/* Programs that read a file and close it are done by then. */
#define UNOPENED_NS (20 * NSEC_PER_MSEC)

static void arm_late(struct driver *d)
{
    const struct timeval tv = {.tv_usec = UNOPENED_NS / 1000};
    if (d->handles.oldest && !evtimer_pending(d->late, NULL))
        (void)event_add(d->late, &tv);
}

static void open_later(struct driver *d, struct handle *h)
{
    handle_list_unopened(&d->handles, h, clock_monotonic_ns());
    arm_late(d);
}

/* A file that stays open is opened at the service too, while it can be: it may be unlinked. */
void open_late(evutil_socket_t fd, short what, void *context)
{
    struct driver *d = context;
    uint64_t now = clock_monotonic_ns();
    struct handle *h;
    while ((h = d->handles.oldest) && now - h->opened_ns >= UNOPENED_NS) {
        handle_unlist_unopened(&d->handles, h);
        if (h->connection == 0 && d->client)
            repair_handle(d, h, NULL);
    }
    arm_late(d);
}

/* Answers without the service, which opens the file later; nobody waits for that. It does so at
 * once when not all of the content is here, or c is NULL: the kernel has it, but may lose it. */
static void open_here(struct request *r, struct content *c, const struct wire_attr *attr)
{
    struct driver *d = r->driver;
    struct handle *h;
    int error = handle_new(&d->handles, r->inode, 0, 0, r->message.open.flags, &h);
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    h->attr = *attr;
    h->size = attr->size;
    if (c) {
        bool first = c->ahead && !c->used;
        content_use(&d->inodes, c);
        h->content = content_pin(&d->inodes, c);
        r->inode->flags |= INODE_ALLOWED;
        if (first)
            prefetch_used(d, c);
    }
    /* What the kernel was told last can be of another version. */
    bool rewritten = is_rewritten(d, r->inode) ||
                     (r->inode->told != (uint32_t)attr->version && device_direct_allows_mmap(d));
    /* It is right as of now. */
    struct fuse_file_info fi = {.fh = h->id,
                                .direct_io = rewritten,
                                .noflush = closes_quietly(d, r->inode, h->flags),
                                .keep_cache =
                                    coherence_keep_cache(d, r->inode, attr, d->inodes.stamp)};
    h->direct = fi.direct_io;
    if (fuse_reply_open(r->fuse, &fi) != 0)
        handle_release(&d->handles, h);
    else if ((!c || c->ends) && !coherence_serving(d))
        repair_handle(d, h, NULL);
    else
        open_later(d, h);
    request_free(r);
}

void open_fetched(struct request *r, struct content *c)
{
    if (c && content_may_pin(&r->driver->inodes, c))
        open_here(r, c, &c->attr);
    else
        request_send(r, open_done);
}

void open_unopened(struct driver *d, const struct inode *file)
{
    for (struct handle *h = file->handles; h; h = h->next)
        if (h->connection == 0 && d->client)
            repair_handle(d, h, NULL);
}

static bool find_attr(struct driver *d, const struct inode *i, struct wire_attr *ret)
{
    const struct wire_attr *told = coherence_serving(d) ? known_attr(&d->inodes, i) : NULL;
    if (told)
        *ret = *told;
    return told || tree_file_attr(&d->inodes, i->ino, i->generation, ret);
}

/* Asks the disk, or the service, for the whole file instead of opening it, and then in advance for
 * others. */
static bool fetch(struct request *r)
{
    struct driver *d = r->driver;
    const struct inode *i = r->inode;
    struct fetch *f;
    struct content *c;
    struct wire_attr attr;
    if (find_attr(d, i, &attr) && fetch_from_disk(d, &attr, &c)) {
        c->waiters = r;
        return true;
    }
    if (!(i->flags & INODE_SMALL) || !repair_inode_current(d, i) ||
        fetch_new(d, 0, r->message.open.flags & WIRE_OPEN_NO_ATIME, &f) < 0)
        return false;
    bool added = fetch_add(f, i->node, i->ino, i->generation, 0, &c) == 0;
    if (added)
        c->waiters = r;
    fetch_send(f);
    if (added)
        prefetch_missed(d, i);
    return added;
}

/* Answers without the service, or waits for what was asked for. */
static bool find_content(struct request *r)
{
    struct driver *d = r->driver;
    struct inode *i = r->inode;
    if (!only_reads(r) || i->type != S_IFREG || !(i->flags & INODE_COVERED) ||
        !coherence_knows(d) || pipeline_pending(d, i))
        return false;
    struct content *c = content_get(&d->inodes, i->ino, i->generation);
    struct wire_attr attr;
    if (c && c->here) {
        open_fetched(r, c);
    } else if (c) {
        r->next = c->waiters;
        c->waiters = r;
    } else if ((i->flags & INODE_CACHED) && (i->flags & INODE_ALLOWED) && find_attr(d, i, &attr)) {
        open_here(r, NULL, &attr);
    } else {
        return fetch(r);
    }
    return true;
}

void open_start(struct request *r)
{
    if (!find_content(r))
        request_send(r, open_done);
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_OPEN, NULL, NULL);
    if (!r || !request_set_inode(r, ino))
        return;
    r->message.open.flags = wire_open_flags(r->driver, fi->flags) & ~(uint32_t)WIRE_OPEN_EXCLUSIVE;
    r->direct = wants_direct(r->driver, fi->flags);
    if (device_open_kills_priv(r->driver))
        r->message.open.flags |= WIRE_OPEN_KILL_PRIV;
    open_start(r);
}

static void reply_created(struct request *r, struct inode *i, const struct wire_attr *attr)
{
    struct driver *d = r->driver;
    struct handle *h = r->output;
    if (!attr) {
        handle_release(&d->handles, h);
        request_fail(r, r->error);
        return;
    }
    /* Of a file that it has already, the kernel believes these attributes even if it has been told
     * meanwhile that they changed. */
    if (i->nlookup)
        inode_changed(&d->inodes, i);
    struct fuse_entry_param e;
    request_entry(d, r->inode, i, attr, r->stamp, &e);
    struct fuse_file_info fi = {.fh = h->id,
                                .direct_io = r->direct,
                                .keep_cache = coherence_keep_cache(d, i, attr, r->stamp)};
    h->direct = r->direct;
    inode_changed(&d->inodes, i);
    inode_looked_up(i);
    pipeline_note_attr(d, h, attr);
    if (fuse_reply_create(r->fuse, &e, &fi) != 0) {
        inode_forget(&d->inodes, i, 1); /* the handle still pins it */
        handle_release(&d->handles, h);
    }
    request_free(r);
}

static void create_done(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    const struct wire_created *c = &reply->created;
    struct inode *i, *directory = inode_pin(r->inode);
    struct handle *h;
    names_made(r, directory, &c->attr, &c->directory);
    error = inode_enter(&d->inodes, c->node, &c->attr, 0, r->inode, request_name(r), &i);
    if (error == 0) {
        error = handle_new(&d->handles, i, c->handle, r->connection, r->message.create.flags, &h);
        if (error < 0)
            inode_drop(&d->inodes, i);
    }
    if (error < 0) {
        discard_wire_handle(d, c->handle);
        request_fail(r, error);
    } else {
        if (h->flags & WIRE_OPEN_WRITE)
            pipeline_known(r);
        create_ahead_created(r, &c->directory);
        r->output = handle_pin(h);
        request_with_attributes(r, i, &c->attr, reply_created);
    }
    names_made_end(d, directory);
    inode_unpin(&d->inodes, directory);
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi)
{
    if (root_is_local(request_driver(req), parent)) {
        (void)fuse_reply_err(req, EPERM);
        return;
    }
    struct request *r = request_start(req, WIRE_CREATE, name, NULL);
    if (!r || !request_set_inode(r, parent))
        return;
    r->message.create = (struct wire_create){.flags = wire_open_flags(r->driver, fi->flags),
                                             .mode = mode & 07777,
                                             .name = request_name(r)};
    r->direct = wants_direct(r->driver, fi->flags);
    REQUEST_SET_MAKER(r, create);
    if (device_open_kills_priv(r->driver))
        r->message.create.flags |= WIRE_OPEN_KILL_PRIV;
    if (!create_ahead(r))
        request_send(r, create_done);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct driver *d = request_driver(req);
    struct handle *h = handle_get(&d->handles, fi->fh);
    if (h) {
        lock_end_handle(d, h);
        handle_release(&d->handles, h);
    }
    (void)fuse_reply_err(req, 0);
    driver_notices_pending(d);
}
