#include "lock.h"

#include "interrupt.h"

#include <fcntl.h>
#include <sys/file.h>

#include "base/lock_ranges.h"
#include "base/log.h"
#include "ops.h"
#include "repair.h"

/* Times a lock is asked for again when it is not clear who answered EIO. */
#define RETAKE_TRIES 3

/* The locks of one kind that one owner holds on one file. */
struct lock_owner {
    struct lock_owner *next; /* on the same inode */
    struct inode *inode;     /* pinned */
    uint64_t owner;
    uint64_t handle; /* through which it locked last */
    uint32_t pid;    /* likewise, as this machine has it */
    bool flock;
    struct lock_ranges ranges;

    /* Being taken again. */
    bool retaking;
    bool changed;   /* unlocked something meanwhile: starts anew */
    bool unlocking; /* the request under way is that */
    uint8_t tries;
    size_t position;     /* in ranges */
    uint32_t connection; /* on which the ranges before position are held again */
};

/* --- what is held --------------------------------------------------------------- */

static struct lock_owner *find_owner(const struct driver *d, const struct inode *i, uint64_t owner,
                                     bool flock)
{
    struct lock_owner *o = table_get(&d->locks, i->id);
    while (o && (o->owner != owner || o->flock != flock))
        o = o->next;
    return o;
}

static int take_owner(struct driver *d, struct inode *i, uint64_t owner, bool flock,
                      struct lock_owner **ret)
{
    struct lock_owner *o = find_owner(d, i, owner, flock);
    void *next = NULL;
    int error = 0;
    if (!o) {
        o = calloc(1, sizeof *o);
        error = o ? table_put(&d->locks, i->id, o, &next) : -ENOMEM;
        if (error < 0) {
            free(o);
            return error;
        }
        o->next = next;
        o->inode = inode_pin(i);
        o->owner = owner;
        o->flock = flock;
        d->lock_owners++;
    }
    *ret = o;
    return 0;
}

static void free_owner(struct lock_owner *o, struct inode_table *inodes)
{
    inode_unpin(inodes, o->inode);
    lock_ranges_release(&o->ranges);
    free(o);
}

/* Frees it when nothing is left of it. */
static void drop_owner(struct driver *d, struct lock_owner *o)
{
    if (o->ranges.count > 0 || o->retaking)
        return;
    struct lock_owner *first = table_get(&d->locks, o->inode->id);
    if (first != o) {
        while (first->next != o)
            first = first->next;
        first->next = o->next;
    } else if (o->next) {
        (void)table_put(&d->locks, o->inode->id, o->next, NULL);
    } else {
        (void)table_take(&d->locks, o->inode->id);
    }
    d->lock_owners--;
    free_owner(o, &d->inodes);
}

static bool is_flock(const struct wire_lock_set *s)
{
    return s->flags & WIRE_LOCK_FLOCK;
}

/* Without memory the note is not made: such a lock stays locked at the service when part of it
 * should be unlocked, which is told to the program. */
static int note_unlocked(struct driver *d, const struct inode *i, const struct wire_lock_set *s)
{
    struct lock_owner *o = find_owner(d, i, s->owner, is_flock(s));
    if (!o)
        return 0;
    int error = lock_ranges_reserve(&o->ranges);
    if (error < 0)
        return error;
    lock_ranges_set(&o->ranges, s->start, s->end, WIRE_LOCK_NONE);
    o->changed = o->retaking;
    drop_owner(d, o);
    return 0;
}

/* --- requests to the service ---------------------------------------------------- */

static void whole_file(struct wire_lock_set *s, uint64_t owner, bool flock)
{
    *s = (struct wire_lock_set){
        .owner = owner, .end = WIRE_LOCK_END, .flags = flock ? WIRE_LOCK_FLOCK : 0};
}

/* Tells the service who we are, so that after the next reconnection it gives up what this
 * connection still holds there. Once a connection, before its first lock. */
static int claim(struct driver *d, request_done_fn *done)
{
    struct request *r;
    int error = request_new(d, NULL, WIRE_LOCK_CLAIM, NULL, NULL, &r);
    if (error < 0)
        return error;
    d->lock_claimed = d->inodes.connection;
    r->quiet = true;
    r->urgent = true;
    r->once = true;
    r->connection = d->inodes.connection;
    r->message.lock_claim.secret = bytes_of(d->lock_secret, sizeof d->lock_secret);
    request_send(r, done);
    return 0;
}

static void ended(struct request *r, int error, const struct wire_message *reply)
{
    request_free(r);
}

/* What was granted to r and cannot be noted must not stay locked: nobody would unlock it. */
static void give_back(const struct request *r)
{
    struct request *q;
    if (request_new(r->driver, NULL, WIRE_LOCK_SET, NULL, NULL, &q) < 0)
        return; /* it ends with the connection */
    q->quiet = true;
    q->inode = inode_pin(r->inode);
    q->message.lock_set = r->message.lock_set;
    q->message.lock_set.type = WIRE_LOCK_NONE;
    q->message.lock_set.flags &= ~(uint32_t)WIRE_LOCK_WAIT;
    request_send(q, ended);
}

static void answer_request(struct request *r, int error)
{
    if (error < 0)
        request_fail(r, error);
    else
        request_reply_ok(r);
}

static void unlocked_later(void *context, int error, const struct wire_message *reply)
{
    struct driver *d = context;
    d->locks_abandoned |= d->abandoning;
}

/* The session may go on: what the service unlocks then is noted as unlocked at once. If it does not
 * the lock has gone with it. */
static void unlock_later(struct driver *d, const struct inode *i, const struct wire_lock_set *s)
{
    struct wire_message m = {.type = WIRE_LOCK_SET, .lock_set = *s};
    const struct client_call call = {.reply = unlocked_later, .context = d};
    m.lock_set.node = i->node;
    m.lock_set.handle = 0;
    if (d->suspended && repair_inode_current(d, i) &&
        client_call(d->suspended, &m, &call, NULL) < 0)
        log_error("out of memory: a lock stays locked at the service");
}

static void unlocked(struct request *r, int error, const struct wire_message *reply)
{
    /* With the connection, or if the service has no such file any more, the lock has gone too. */
    if (error == -ENOLCK)
        request_fail(r, error);
    else
        answer_request(r, note_unlocked(r->driver, r->inode, &r->message.lock_set));
}

/* Unlocks, and answers the kernel, if it is the kernel's request. The message is complete. */
static void unlock(struct request *r)
{
    struct driver *d = r->driver;
    const struct wire_lock_set *s = &r->message.lock_set;
    if (!find_owner(d, r->inode, s->owner, is_flock(s))) {
        request_reply_ok(r);
    } else if (d->client && repair_inode_current(d, r->inode)) {
        request_send(r, unlocked);
    } else { /* fork(), exec() and exit() close descriptors: they must not wait for a service */
        unlock_later(d, r->inode, s);
        unlocked(r, -ENOTCONN, NULL);
    }
}

static void locked(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    const struct wire_lock_set *s = &r->message.lock_set;
    struct lock_owner *o;
    bool granted = error == 0;
    if (error == -EAGAIN && is_flock(s))
        (void)note_unlocked(d, r->inode, s); /* a change that fails gives up the old lock */
    if (error == -ECANCELED)
        error = -EINTR;
    if (granted)
        error = take_owner(d, r->inode, s->owner, is_flock(s), &o);
    if (error == 0) {
        error = lock_ranges_reserve(&o->ranges);
        if (error == 0) {
            lock_ranges_set(&o->ranges, s->start, s->end, s->type);
            o->handle = r->handle->id;
            o->pid = (uint32_t)r->position;
        } else {
            drop_owner(d, o);
        }
    }
    if (granted && error < 0)
        give_back(r);
    answer_request(r, error);
}

static void interrupted(fuse_req_t req, void *context)
{
    interrupt_signalled(context);
    request_cancel(context);
}

/* From now on it is what the owner locks by, whatever comes of it: that it has closed another one,
 * of which a copy has been left, must not end what it is about to lock. */
static void note_asked(struct request *r, uint64_t owner)
{
    struct lock_owner *o = find_owner(r->driver, r->inode, owner, false);
    if (o)
        o->handle = r->handle->id;
    r->inode->locked = true;
}

/* A LOCK_SET for a file that is open; NULL when it was answered already. */
static struct request *start_set(fuse_req_t req, const struct fuse_file_info *fi)
{
    struct request *r = request_start(req, WIRE_LOCK_SET, NULL, NULL);
    if (!r || !request_set_handle(r, fi))
        return NULL;
    r->inode = inode_pin(r->handle->inode);
    return r;
}

static void set(struct request *r, bool wait)
{
    if (r->message.lock_set.type == WIRE_LOCK_NONE) {
        unlock(r);
        return;
    }
    struct driver *d = r->driver;
    if (d->client && d->lock_claimed != d->inodes.connection)
        (void)claim(d, ended);
    if (wait) {
        r->waits = true;
        r->message.lock_set.flags |= WIRE_LOCK_WAIT;
        fuse_req_interrupt_func(r->fuse, interrupted, r);
    }
    request_send(r, locked);
}

static uint32_t wire_type(int type)
{
    return type == F_UNLCK ? WIRE_LOCK_NONE : type == F_RDLCK ? WIRE_LOCK_READ : WIRE_LOCK_WRITE;
}

static uint64_t last_byte(const struct flock *lock)
{
    return lock->l_len == 0 ? WIRE_LOCK_END : (uint64_t)(lock->l_start + lock->l_len - 1);
}

void op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock,
              int sleep)
{
    struct request *r = start_set(req, fi);
    if (!r)
        return;
    if (lock->l_type != F_UNLCK)
        note_asked(r, fi->lock_owner);
    r->message.lock_set = (struct wire_lock_set){.owner = fi->lock_owner,
                                                 .start = (uint64_t)lock->l_start,
                                                 .end = last_byte(lock),
                                                 .type = wire_type(lock->l_type)};
    r->position = (uint64_t)lock->l_pid;
    set(r, sleep);
}

void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
    struct request *r = start_set(req, fi);
    if (!r)
        return;
    whole_file(&r->message.lock_set, fi->lock_owner, true);
    r->message.lock_set.type = op & LOCK_SH   ? WIRE_LOCK_READ
                               : op & LOCK_EX ? WIRE_LOCK_WRITE
                                              : WIRE_LOCK_NONE;
    set(r, !(op & LOCK_NB));
}

/* Who it is, if it is a process of this machine: the service does not know them. */
static uint32_t holder(const struct driver *d, const struct inode *i, uint64_t asking,
                       const struct wire_lock_found *found)
{
    for (const struct lock_owner *o = table_get(&d->locks, i->id); o; o = o->next)
        if (!o->flock && o->owner != asking &&
            lock_ranges_find(&o->ranges, found->start, found->end, found->type))
            return o->pid;
    return 0;
}

static void got(struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0) {
        request_fail(r, error);
        return;
    }
    const struct wire_lock_found *found = &reply->lock_found;
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    if (found->type != WIRE_LOCK_NONE && found->start <= found->end &&
        found->end <= WIRE_LOCK_END) {
        lock.l_type = found->type == WIRE_LOCK_READ ? F_RDLCK : F_WRLCK;
        lock.l_start = (off_t)found->start;
        lock.l_len = found->end == WIRE_LOCK_END ? 0 : (off_t)(found->end - found->start + 1);
        /* A process beside the files has a number that means nothing here. */
        lock.l_pid =
            found->pid ? 0 : (pid_t)holder(r->driver, r->inode, r->message.lock_get.owner, found);
    }
    (void)fuse_reply_lock(r->fuse, &lock);
    request_free(r);
}

void op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock)
{
    struct request *r = request_start(req, WIRE_LOCK_GET, NULL, NULL);
    if (!r || !request_set_handle(r, fi))
        return;
    r->inode = inode_pin(r->handle->inode);
    r->message.lock_get = (struct wire_lock_get){.owner = fi->lock_owner,
                                                 .start = (uint64_t)lock->l_start,
                                                 .end = last_byte(lock),
                                                 .type = wire_type(lock->l_type)};
    request_send(r, got);
}

/* --- closing -------------------------------------------------------------------- */

static void flush_unlocked(struct request *r, int error, const struct wire_message *reply)
{
    (void)note_unlocked(r->driver, r->inode, &r->message.lock_set);
    answer_request(r, r->error);
}

void lock_end_flush(struct request *r, uint64_t owner, int error)
{
    struct driver *d = r->driver;
    struct inode *i = r->handle->inode;
    if (!find_owner(d, i, owner, false)) {
        answer_request(r, error);
        return;
    }
    r->error = error;
    r->inode = inode_pin(i);
    handle_unpin(&d->handles, take_ptr(r->handle));
    r->message = (struct wire_message){.type = WIRE_LOCK_SET};
    whole_file(&r->message.lock_set, owner, false);
    if (d->client && repair_inode_current(d, i)) {
        request_send(r, flush_unlocked);
    } else {
        unlock_later(d, i, &r->message.lock_set);
        flush_unlocked(r, 0, NULL);
    }
}

/* Some owner that locked last through the handle. */
static struct lock_owner *find_by_handle(const struct driver *d, const struct handle *h)
{
    struct lock_owner *o = table_get(&d->locks, h->inode->id);
    while (o && o->handle != h->id)
        o = o->next;
    return o;
}

void lock_end_handle(struct driver *d, struct handle *h)
{
    struct lock_owner *o;
    while ((o = find_by_handle(d, h))) {
        struct request *r;
        o->handle = 0;
        if (request_new(d, NULL, WIRE_LOCK_SET, NULL, NULL, &r) < 0)
            continue; /* stays locked until the connection ends */
        r->quiet = true;
        r->inode = inode_pin(h->inode);
        whole_file(&r->message.lock_set, o->owner, o->flock);
        unlock(r);
    }
}

/* --- after a lost connection ---------------------------------------------------- */

static void recovery_ended(struct driver *d)
{
    if (--d->lock_recoveries == 0)
        request_resume_all(d);
}

static void lost_for_good(struct driver *d, struct lock_owner *o, int error)
{
    struct handle *h = handle_get(&d->handles, o->handle);
    char text[256];
    const char *name = inode_name(o->inode) ? inode_name(o->inode) : "";
    log_warning("a lock on \"%s\" was lost with the connection: %s",
                log_escape(name, strlen(name), text, sizeof text), strerror(-error));
    d->stats.locks_lost++;
    if (h)
        h->lost = true;
    o->ranges.count = 0;
}

static void retaken(struct request *r, int error, const struct wire_message *reply);

/* Asks for the next of its ranges, or first gives up what may be locked there. */
static void retake(struct driver *d, struct lock_owner *o)
{
    struct handle *h = handle_get(&d->handles, o->handle);
    struct request *r;
    int error = h ? request_new(d, NULL, WIRE_LOCK_SET, NULL, NULL, &r) : -ESTALE;
    if (error < 0) {
        o->retaking = false;
        lost_for_good(d, o, error);
        drop_owner(d, o);
        return;
    }
    whole_file(&r->message.lock_set, o->owner, o->flock);
    o->unlocking = o->changed;
    if (!o->changed) {
        const struct lock_range *range = &o->ranges.items[o->position];
        r->message.lock_set.start = range->start;
        r->message.lock_set.end = range->end;
        r->message.lock_set.type = range->type;
    }
    o->changed = false;
    o->retaking = true;
    d->lock_recoveries++;
    r->context = o;
    r->quiet = true;
    r->urgent = true;
    r->once = true;
    r->connection = o->connection;
    r->inode = inode_pin(o->inode);
    r->handle = handle_pin(h);
    request_send(r, retaken);
}

static void retake_all(struct driver *d, struct lock_owner *o)
{
    if (!o->handle) { /* closed, and not told to the service before the connection was lost */
        o->ranges.count = 0;
        drop_owner(d, o);
        return;
    }
    o->position = 0;
    o->changed = false;
    o->tries = 0;
    o->connection = d->inodes.connection;
    retake(d, o);
}

static void retaken(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    struct lock_owner *o = r->context;
    bool later = o->connection != d->inodes.connection;
    request_free(r);
    if (error == -ENOTCONN || later) {
        /* The connection was lost again. What comes after the next one's claim, if that has not
         * come and gone meanwhile, finds it as it is. */
        o->retaking = false;
        if (later && d->lock_ready == d->inodes.connection)
            retake_all(d, o);
    } else if (error == -EIO && o->tries++ < RETAKE_TRIES) {
        o->changed = true; /* perhaps the connection's */
    } else if (error < 0) {
        lost_for_good(d, o, error);
    } else if (o->unlocking) {
        o->position = 0;
    } else {
        o->position++;
    }
    if (o->retaking && (o->changed || o->position < o->ranges.count)) {
        retake(d, o);
    } else {
        o->retaking = false;
        drop_owner(d, o);
    }
    recovery_ended(d);
}

static void recover_claimed(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    request_free(r);
    if (error != -ENOTCONN) {
        d->lock_ready = d->inodes.connection;
        /* The table may change when one is taken again. */
        size_t cursor = 0, count = 0;
        struct lock_owner *o, **all = calloc(d->lock_owners + 1, sizeof *all);
        if (!all)
            log_error("out of memory: locks are not taken again");
        while (all && (o = table_next(&d->locks, &cursor)))
            for (; o; o = o->next)
                if (!o->retaking)
                    all[count++] = o;
        for (size_t i = 0; i < count; i++)
            retake_all(d, all[i]);
        free(all);
    }
    recovery_ended(d);
}

void lock_recover(struct driver *d)
{
    if (d->lock_claimed == 0)
        return; /* never locked anything */
    d->lock_recoveries++;
    if (claim(d, recover_claimed) < 0) {
        log_error("out of memory: locks are not taken again");
        d->lock_recoveries--;
    }
}

size_t lock_count(const struct driver *d)
{
    return d->lock_owners;
}

void lock_release(struct driver *d)
{
    size_t cursor = 0;
    struct lock_owner *o;
    while ((o = table_next(&d->locks, &cursor)))
        for (struct lock_owner *next; o; o = next) {
            next = o->next;
            free_owner(o, &d->inodes);
        }
    table_release(&d->locks);
}
