#include "request.h"

#include "climb.h"
#include "coherence.h"
#include "connection.h"
#include "create_ahead.h"
#include "interrupt.h"
#include "ops.h"
#include "pipeline.h"

#include <sys/stat.h>

#include "base/clock.h"
#include "repair.h"

#define KERNEL_ERRNO_MAX 511 /* the device refuses an answer with a greater one */

int request_errno(int error)
{
    switch (error) {
    case -EINTR:
        /* The server was interrupted, not the program: it must not repeat what had an effect. */
        return -EIO;
    case -ENOSYS:
        /* To the kernel this means that no file of the mount can do it, for ever. */
        return -EOPNOTSUPP;
    default:
        return error < 0 && error >= -KERNEL_ERRNO_MAX ? error : -EIO;
    }
}

int request_new(struct driver *d, fuse_req_t fuse, enum wire_type type, const char *name,
                const char *new_name, struct request **ret)
{
    size_t len = name ? strlen(name) : 0, new_len = new_name ? strlen(new_name) : 0;
    if (len > WIRE_NAME_MAX || new_len > WIRE_NAME_MAX)
        return -ENAMETOOLONG;
    struct request *r = calloc(1, sizeof *r + len + new_len + 2);
    if (!r)
        return -ENOMEM;
    r->driver = d;
    r->fuse = fuse;
    r->message.type = type;
    r->name_len = (uint8_t)len;
    r->new_name_len = (uint8_t)new_len;
    if (len)
        memcpy(r->names, name, len);
    if (new_len)
        memcpy(r->names + len + 1, new_name, new_len);
    *ret = r;
    return 0;
}

struct request *request_start(fuse_req_t fuse, enum wire_type type, const char *name,
                              const char *new_name)
{
    struct driver *d = request_driver(fuse);
    struct request *r;
    /* Asking for attributes is a step of a walk; all else comes after it. */
    if (type != WIRE_GETATTR)
        climb_end(d, fuse);
    int error = request_new(d, fuse, type, name, new_name, &r);
    if (error < 0) {
        (void)fuse_reply_err(fuse, -error);
        return NULL;
    }
    interrupt_watch(r);
    return r;
}

void request_free(struct request *r)
{
    struct driver *d = r->driver;
    interrupt_forget(r);
    if (r->reads)
        read_ends(r);
    handle_unpin(&d->handles, r->handle);
    handle_unpin(&d->handles, r->output);
    inode_unpin(&d->inodes, r->victim);
    inode_unpin(&d->inodes, r->inode);
    inode_unpin(&d->inodes, r->target);
    driver_notices_pending(d);
    buffer_release(&r->storage);
    free(r);
}

void request_fail(struct request *r, int error)
{
    if (r->fuse)
        (void)fuse_reply_err(r->fuse, -error);
    request_free(r);
}

void request_reply_ok(struct request *r)
{
    if (r->fuse)
        (void)fuse_reply_err(r->fuse, 0);
    request_free(r);
}

bool request_set_inode(struct request *r, fuse_ino_t id)
{
    struct inode *i = inode_get(&r->driver->inodes, id);
    if (!i) {
        request_fail(r, -ESTALE);
        return false;
    }
    r->inode = inode_pin(i);
    return true;
}

bool request_set_target(struct request *r, fuse_ino_t id)
{
    struct inode *i = inode_get(&r->driver->inodes, id);
    if (!i) {
        request_fail(r, -ESTALE);
        return false;
    }
    r->target = inode_pin(i);
    return true;
}

bool request_set_handle(struct request *r, const struct fuse_file_info *fi)
{
    struct handle *h = fi ? handle_get(&r->driver->handles, fi->fh) : NULL;
    if (!h) {
        request_fail(r, -EBADF);
        return false;
    }
    if (h->lost && r->message.type != WIRE_FLUSH) {
        request_fail(r, -EIO);
        return false;
    }
    r->handle = handle_pin(h);
    return true;
}

static uint64_t node_of(const struct inode *i)
{
    return i ? i->node : 0;
}

static uint64_t wire_of(const struct handle *h)
{
    return h ? h->wire : 0;
}

/* Fills in the numbers by which the service knows what the request names. */
static void bind_numbers(struct request *r)
{
    struct wire_message *m = &r->message;
    uint64_t node = node_of(r->inode), handle = wire_of(r->handle);
#define SET(message, field, value) \
    case WIRE_##message:           \
        m->field = (value);        \
        break
    switch ((uint32_t)m->type) {
        SET(LOOKUP, lookup.parent, node);
        SET(READLINK, readlink.node, node);
        SET(MKNOD, mknod.parent, node);
        SET(MKDIR, mkdir.parent, node);
        SET(SYMLINK, symlink.parent, node);
        SET(UNLINK, unlink.parent, node);
        SET(RMDIR, rmdir.parent, node);
        SET(OPEN, open.node, node);
        SET(CREATE, create.parent, node);
        SET(STATFS, statfs.node, node);
        SET(GETXATTR, getxattr.node, node);
        SET(SETXATTR, setxattr.node, node);
        SET(LISTXATTR, listxattr.node, node);
        SET(REMOVEXATTR, removexattr.node, node);
        SET(READ, read.handle, handle);
        SET(WRITE, write.handle, handle);
        SET(FLUSH, flush.handle, handle);
        SET(FSYNC, fsync.handle, handle);
        SET(READDIR, readdir.handle, handle);
        SET(READTREE, readtree.node, node);
        SET(FALLOCATE, fallocate.handle, handle);
        SET(SEEK, seek.handle, handle);
    case WIRE_LOCK_GET:
        m->lock_get.node = node;
        m->lock_get.handle = handle;
        break;
    case WIRE_LOCK_SET:
        m->lock_set.node = node;
        m->lock_set.handle = handle;
        break;
    case WIRE_GETATTR:
        m->getattr.node = node;
        m->getattr.handle = handle;
        break;
    case WIRE_SETATTR:
        m->setattr.node = node;
        m->setattr.handle = handle;
        break;
    case WIRE_LINK:
        m->link.node = node;
        m->link.parent = node_of(r->target);
        break;
    case WIRE_RENAME:
        m->rename.parent = node;
        m->rename.new_parent = node_of(r->target);
        break;
    case WIRE_PLACE:
        m->place.parent = node;
        m->place.handle = handle;
        break;
    case WIRE_COPY:
        m->copy.handle_in = handle;
        m->copy.handle_out = wire_of(r->output);
        break;
    default: /* the others name neither */
        break;
    }
#undef SET
}

/* Keeps what would otherwise be gone when the handler of the kernel's request returns. */
static int keep_data(struct request *r)
{
    if (r->message.type != WIRE_WRITE || r->storage.len || !r->message.write.data.len)
        return 0;
    struct bytes data = r->message.write.data;
    int error = buffer_append(&r->storage, data.data, data.len);
    if (error == 0)
        r->message.write.data = buffer_view(&r->storage);
    return error;
}

static void arm_waiting_timer(struct driver *d)
{
    uint64_t first = UINT64_MAX, now = clock_monotonic_ns();
    for (struct request *r = d->waiting.first; r; r = r->next)
        if (r->deadline_ns < first)
            first = r->deadline_ns;
    if (first == UINT64_MAX)
        return;
    uint64_t left = first > now ? first - now : 0;
    struct timeval tv = {.tv_sec = (time_t)(left / NSEC_PER_SEC),
                         .tv_usec = (suseconds_t)(left % NSEC_PER_SEC / 1000 + 1)};
    (void)event_add(d->waiting_timer, &tv);
}

/* A program makes many calls, and must not wait for each. When the service has been away for the
 * timeout, a call waits for one attempt to connect, or not at all just after one has failed. */
static void set_deadline(struct request *r)
{
    struct driver *d = r->driver;
    uint64_t now = r->deferred_ns = clock_monotonic_ns();
    uint64_t hurried = d->client ? 0 : connection_hurry(d);
    r->deadline_ns = (d->client ? now : d->lost_ns) + d->options->timeout_ms * NSEC_PER_MSEC;
    r->overdue = r->deadline_ns <= now;
    if (r->overdue && hurried > now)
        r->deadline_ns = hurried;
}

static void defer(struct request *r)
{
    struct driver *d = r->driver;
    int error = keep_data(r);
    if (error < 0) {
        r->done(r, error, NULL);
        return;
    }
    /* Set once: a connection that comes and goes does not prolong the wait. */
    if (!r->deferred || r->waits) {
        r->deferred = true;
        set_deadline(r);
    }
    r->next = NULL;
    *d->waiting.last = r;
    d->waiting.last = &r->next;
    arm_waiting_timer(d);
}

static bool names_locks(const struct request *r)
{
    return r->message.type == WIRE_LOCK_SET || r->message.type == WIRE_LOCK_CLAIM;
}

static void answered(void *context, int error, const struct wire_message *reply)
{
    struct request *r = context;
    struct driver *d = r->driver;
    r->tag = 0;
    if (error == 0) {
        r->done(r, 0, reply);
    } else if (!reply && r->once) {
        d->locks_abandoned |= d->abandoning && names_locks(r);
        r->done(r, -ENOTCONN, NULL);
    } else if (d->abandoning) {
        d->locks_abandoned |= names_locks(r);
        r->done(r, r->interrupted ? -ECANCELED : -EIO, NULL);
    } else if (reply) {
        r->done(r, request_errno(error), NULL);
    } else if (wire_row(r->message.type)->effect == WIRE_EFFECT_READS &&
               (!r->repeated || r->waits) && !d->stopping) {
        /* The connection was lost. A question can be asked again, once. */
        r->repeated = true;
        defer(r);
    } else {
        /* Whether it had its effect is not known. */
        r->done(r, -EIO, NULL);
    }
}

static void send_cancel(struct request *r)
{
    const struct wire_message cancel = {.type = WIRE_CANCEL};
    (void)client_send(driver_session(r->driver), r->tag, &cancel);
}

/* A request that had to queue behind others has a tag now. */
static void sent(void *context, uint64_t tag)
{
    struct request *r = context;
    bool late = r->interrupted && r->tag == 0;
    r->tag = tag;
    if (late)
        send_cancel(r);
}

static void dispatch(struct request *r)
{
    struct driver *d = r->driver;
    if (r->interrupted) {
        r->done(r, -ECANCELED, NULL);
        return;
    }
    if (r->once && (!d->client || r->connection != d->inodes.connection)) {
        r->done(r, -ENOTCONN, NULL);
        return;
    }
    if (!d->client || (d->lock_recoveries && !r->urgent)) {
        defer(r);
        return;
    }
    struct inode *const inodes[] = {r->inode, r->target};
    struct handle *const handles[] = {r->handle, r->output};
    for (size_t i = 0; i < ARRAY_SIZE(inodes); i++)
        if (inodes[i] && !repair_inode_current(d, inodes[i])) {
            int error = keep_data(r);
            if (error < 0)
                r->done(r, error, NULL);
            else
                repair_inode(d, inodes[i], r);
            return;
        }
    for (size_t i = 0; i < ARRAY_SIZE(handles); i++)
        if (handles[i] && !repair_handle_current(d, handles[i])) {
            int error = keep_data(r);
            if (error < 0)
                r->done(r, error, NULL);
            else
                repair_handle(d, handles[i], r);
            return;
        }
    struct handle *unopened = r->victim ? handle_of(r->victim, 0, 0, 0) : NULL;
    if (unopened) {
        repair_handle(d, unopened, r);
        return;
    }
    if (pipeline_holds(r)) {
        int error = keep_data(r);
        if (error < 0)
            r->done(r, error, NULL);
        else
            pipeline_wait(r);
        return;
    }
    if (create_ahead_holds(r)) {
        create_ahead_wait(r, NULL);
        return;
    }
    bind_numbers(r);
    r->stamp = d->inodes.stamp;
    r->connection = d->inodes.connection;
    struct client_call call = {.reply = answered, .context = r, .blocking = !r->quiet};
    if (r->waits)
        call.writable = sent;
    int error = client_call(d->client, &r->message, &call, r->waits ? &r->tag : NULL);
    if (error == -ENOTCONN && r->once) {
        r->done(r, error, NULL);
    } else if (error == -ENOTCONN) {
        defer(r);
    } else if (error < 0) {
        r->done(r, request_errno(error), NULL);
    } else if ((uint32_t)r->message.type < DRIVER_TYPES) {
        d->stats.requests[r->message.type]++;
    }
}

void request_send(struct request *r, request_done_fn *done)
{
    r->done = done;
    dispatch(r);
}

static struct request *take_waiting(struct driver *d)
{
    struct request *first = d->waiting.first;
    d->waiting = (struct request_queue){.last = &d->waiting.first};
    return first;
}

void request_cancel(struct request *r)
{
    struct driver *d = r->driver;
    r->interrupted = true;
    if (r->tag && driver_session(d)) {
        send_cancel(r);
        return;
    }
    /* If it does not wait for a connection, it comes back when it has a tag or its file. */
    for (struct request **at = &d->waiting.first; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            if (!*at)
                d->waiting.last = at;
            r->next = NULL;
            r->done(r, -ECANCELED, NULL);
            return;
        }
}

void request_resume_all(struct driver *d)
{
    struct request *next;
    for (struct request *r = take_waiting(d); r; r = next) {
        next = r->next;
        r->next = NULL;
        dispatch(r);
    }
}

void request_fail_all(struct driver *d, int error)
{
    struct request *next;
    for (struct request *r = take_waiting(d); r; r = next) {
        next = r->next;
        r->next = NULL;
        r->done(r, error, NULL);
    }
}

static void fail_waiting(struct driver *d, uint64_t failed_begun_ns)
{
    uint64_t now = clock_monotonic_ns();
    struct request *next;
    for (struct request *r = take_waiting(d); r; r = next) {
        next = r->next;
        r->next = NULL;
        if (r->deadline_ns <= now || (r->overdue && r->deferred_ns <= failed_begun_ns)) {
            r->done(r, -EIO, NULL);
        } else {
            *d->waiting.last = r;
            d->waiting.last = &r->next;
        }
    }
    arm_waiting_timer(d);
}

void request_waiting_expired(evutil_socket_t fd, short what, void *context)
{
    fail_waiting(context, 0);
}

void request_attempt_failed(struct driver *d, uint64_t begun_ns)
{
    fail_waiting(d, begun_ns);
    if (d->waiting.first)
        (void)connection_hurry(d);
}

void request_done_ok(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0)
        request_fail(r, error);
    else
        request_reply_ok(r);
}

void request_stat(const struct driver *d, const struct wire_attr *attr, struct stat *ret)
{
    *ret = (struct stat){
        .st_ino = driver_ino(d, attr->ino),
        .st_mode = attr->mode,
        .st_nlink = attr->nlink,
        .st_uid = d->options->owner_server ? attr->uid : d->uid,
        .st_gid = d->options->owner_server ? attr->gid : d->gid,
        .st_rdev = attr->rdev,
        .st_size = (off_t)attr->size,
        .st_blksize = attr->blksize,
        .st_blocks = (blkcnt_t)attr->blocks,
        .st_atim = {.tv_sec = attr->atime.sec, .tv_nsec = attr->atime.nsec},
        .st_mtim = {.tv_sec = attr->mtime.sec, .tv_nsec = attr->mtime.nsec},
        .st_ctim = {.tv_sec = attr->ctime.sec, .tv_nsec = attr->ctime.nsec},
    };
}

/* For how long the kernel may keep them. */
static double tell_attr(struct driver *d, struct inode *inode, const struct wire_attr *attr,
                        uint64_t stamp)
{
    double timeout = coherence_attr_timeout(d, inode, attr, stamp);
    inode->permissions = attr->mode & (uint16_t)~S_IFMT;
    if (timeout > 0)
        known_note_attr(&d->inodes, inode, attr);
    return timeout;
}

void request_entry(struct driver *d, const struct inode *parent, struct inode *inode,
                   const struct wire_attr *attr, uint64_t stamp, struct fuse_entry_param *ret)
{
    content_seen(&d->inodes, attr);
    inode->told = (uint32_t)attr->version;
    coherence_entered(d, inode);
    *ret = (struct fuse_entry_param){.ino = inode->id,
                                     .generation = inode->generation,
                                     .attr_timeout = tell_attr(d, inode, attr, stamp),
                                     .entry_timeout =
                                         coherence_entry_timeout(d, parent, inode, attr, stamp)};
    request_stat(d, attr, &ret->attr);
}

void request_reply_attr(struct request *r, struct inode *inode, const struct wire_attr *attr)
{
    if (!inode_is(inode, attr)) {
        request_fail(r, -ESTALE);
        return;
    }
    if (inode == r->driver->inodes.root)
        r->driver->root_attr = *attr;
    content_seen(&r->driver->inodes, attr);
    inode->told = (uint32_t)attr->version;
    struct stat st;
    request_stat(r->driver, attr, &st);
    (void)fuse_reply_attr(r->fuse, &st, tell_attr(r->driver, inode, attr, r->stamp));
    request_free(r);
}

static void reply_entry(struct request *r, struct inode *inode, const struct wire_attr *attr)
{
    if (!attr) {
        request_fail(r, r->error);
        return;
    }
    struct fuse_entry_param e;
    const struct inode *parent = r->target ? r->target : r->inode;
    request_entry(r->driver, parent ? parent : r->driver->inodes.root, inode, attr, r->stamp, &e);
    inode_looked_up(inode);
    /* An answer that did not arrive gave the kernel no reference. */
    if (fuse_reply_entry(r->fuse, &e) != 0)
        inode_forget(&r->driver->inodes, inode, 1);
    request_free(r);
}

static void attributes_asked(struct request *q, int error, const struct wire_message *reply)
{
    struct request *r = q->context;
    if (error == 0 && !inode_is(q->inode, &reply->attrs.attr))
        error = -ESTALE;
    r->error = error;
    r->stamp = q->stamp;
    q->reply(r, q->inode, error == 0 ? &reply->attrs.attr : NULL);
    request_free(q);
}

void request_with_attributes(struct request *r, struct inode *inode, const struct wire_attr *attr,
                             request_attr_fn *reply)
{
    struct driver *d = r->driver;
    struct request *q;
    if (!pipeline_outdates(d, inode, r->stamp)) {
        reply(r, inode, attr);
        return;
    }
    int error = request_new(d, NULL, WIRE_GETATTR, NULL, NULL, &q);
    if (error < 0) {
        r->error = error;
        reply(r, inode, NULL);
        return;
    }
    struct handle *h = pipeline_handle(d, inode);
    q->inode = inode_pin(inode);
    q->handle = h ? handle_pin(h) : NULL;
    q->context = r;
    q->reply = reply;
    request_send(q, attributes_asked);
}

void request_reply_entry(struct request *r, struct inode *inode, const struct wire_attr *attr)
{
    request_with_attributes(r, inode, attr, reply_entry);
}

bool request_reply_told(struct request *r)
{
    struct driver *d = r->driver;
    const struct inode *parent = r->inode ? r->inode : d->inodes.root;
    struct inode *i =
        coherence_serving(d) ? known_named(&d->inodes, parent, request_name(r)) : NULL;
    if (!i)
        return false;
    const struct wire_attr attr = *known_attr(&d->inodes, i);
    r->stamp = d->inodes.stamp;
    request_reply_entry(r, i, &attr);
    return true;
}

/* What an error says of the name. */
static bool tells_of_name(int error)
{
    return error == -ENOENT || error == -ENOTDIR || error == -ESTALE || error == -EACCES ||
           error == -EPERM || error == -ELOOP || error == -ENAMETOOLONG;
}

bool request_reply_unsure(struct request *r, int error)
{
    struct driver *d = r->driver;
    const struct inode *parent = r->inode ? r->inode : d->inodes.root;
    struct inode *i =
        tells_of_name(error) ? NULL : inode_named(&d->inodes, parent, request_name(r));
    while (i && (i->type != S_IFDIR || !i->nlookup))
        i = inode_named_after(&r->driver->inodes, i, parent, request_name(r));
    if (!i)
        return false;
    struct fuse_entry_param e = {.ino = i->id, .generation = i->generation};
    const struct wire_attr attr = {.ino = i->ino, .mode = S_IFDIR | i->permissions, .nlink = 2};
    const struct wire_attr *known = known_attr(&d->inodes, i);
    request_stat(d, known ? known : &attr, &e.attr);
    inode_looked_up(i);
    if (fuse_reply_entry(r->fuse, &e) != 0)
        inode_forget(&d->inodes, i, 1);
    request_free(r);
    return true;
}
