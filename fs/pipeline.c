#include "pipeline.h"

#include <sys/stat.h>

#include "coherence.h"
#include "create_ahead.h"
#include "interrupt.h"
#include "repair.h"

/* What is under way for one file. */
struct file {
    struct inode *inode;   /* pinned */
    struct handle *handle; /* pinned by the requests */
    size_t bytes;          /* of data that the kernel believes to be written */
    unsigned count;        /* requests */
    struct request_queue waiting;
};

struct pipeline {
    struct table files; /* inode ID -> struct file */
    size_t bytes;
    unsigned count;
    struct request_queue unanswered; /* writes that wait for room, linked by `behind` */
    bool careful;                    /* a change has failed since the last write that succeeded */

    uint32_t known_on;     /* connection on which the service knows that we write; 0: none */
    uint64_t synced_stamp; /* inode_table.stamp at the last SYNCED */
    uint32_t asked_on;     /* connection of a SYNC that is not answered; 0: there is none */
    uint64_t asked_tag;
    uint64_t asked_number;
};

int pipeline_new(struct driver *d)
{
    struct pipeline *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->unanswered.last = &p->unanswered.first;
    d->pipeline = p;
    return 0;
}

void pipeline_free(struct driver *d)
{
    struct pipeline *p = take_ptr(d->pipeline);
    if (!p)
        return;
    table_release(&p->files);
    free(p);
}

static struct file *find(const struct driver *d, const struct inode *inode)
{
    return d->pipeline->count ? table_get(&d->pipeline->files, inode->id) : NULL;
}

bool pipeline_pending(const struct driver *d, const struct inode *inode)
{
    return find(d, inode) != NULL;
}

struct handle *pipeline_handle(const struct driver *d, const struct inode *inode)
{
    const struct file *f = find(d, inode);
    return f ? f->handle : NULL;
}

bool pipeline_outdates(const struct driver *d, const struct inode *inode, uint64_t stamp)
{
    return inode->type == S_IFREG && (inode->stamp > stamp || pipeline_pending(d, inode));
}

void pipeline_ordered(struct request *r)
{
    const struct handle *h = r->handle;
    if (h && h->inode->stamp == h->answered_stamp && h->sent_stamp <= r->stamp &&
        h->others_stamp <= r->stamp && r->driver->inodes.unknown_stamp <= r->stamp)
        r->stamp = h->inode->stamp;
}

/* --- attributes ------------------------------------------------------------------------ */

void pipeline_note_attr(struct driver *d, struct handle *h, const struct wire_attr *attr)
{
    if (!coherence_live(d) || !(h->flags & WIRE_OPEN_WRITE))
        return;
    if (!h->foreseen)
        h->foreseen = malloc(sizeof *h->foreseen);
    if (h->foreseen) /* without memory it has to be asked */
        *h->foreseen = *attr;
}

static void forget_attr_but(struct inode *inode, const struct handle *keep)
{
    for (struct handle *h = inode->handles; h; h = h->next)
        if (h != keep)
            free(take_ptr(h->foreseen));
}

void pipeline_forget_attr(struct inode *inode)
{
    forget_attr_but(inode, NULL);
}

/* --- the service's question -------------------------------------------------------------- */

static void answer_sync(struct driver *d)
{
    struct pipeline *p = d->pipeline;
    if (!p->asked_on || p->count)
        return;
    struct client *client = driver_session(d);
    if (p->asked_on == d->inodes.connection && client) {
        const struct wire_message synced = {.type = WIRE_SYNCED, .synced.number = p->asked_number};
        (void)client_send(client, p->asked_tag, &synced);
        /* What was sent before it does not count for the service any more. */
        p->synced_stamp = ++d->inodes.stamp;
    }
    p->asked_on = 0;
}

void pipeline_sync(struct driver *d, uint64_t tag, uint64_t number)
{
    struct pipeline *p = d->pipeline;
    create_ahead_revoked(d);
    p->known_on = 0;
    p->asked_on = d->inodes.connection;
    p->asked_tag = tag;
    p->asked_number = number;
    answer_sync(d);
}

void pipeline_known(const struct request *r)
{
    struct pipeline *p = r->driver->pipeline;
    if (!p->asked_on && r->stamp >= p->synced_stamp)
        p->known_on = r->connection;
}

void pipeline_delegated(struct driver *d)
{
    struct pipeline *p = d->pipeline;
    if (!p->asked_on)
        p->known_on = d->inodes.connection;
}

/* --- waiting ---------------------------------------------------------------------------- */

static void queue_add(struct request_queue *q, struct request *r)
{
    r->next = NULL;
    *q->last = r;
    q->last = &r->next;
}

/* The file of a name, as far as it is known. */
static const struct inode *named(const struct request *r)
{
    return inode_file_named(&r->driver->inodes, r->inode, request_name(r));
}

/* The file whose changes under way r must not overtake, and through which handle it would not. */
static const struct inode *concerned(const struct request *r, const struct handle **ret_through)
{
    *ret_through = NULL;
    switch ((uint32_t)r->message.type) {
    case WIRE_READ:
    case WIRE_SEEK:
    case WIRE_WRITE:
    case WIRE_FSYNC:
    case WIRE_FALLOCATE:
        *ret_through = r->handle;
        return r->handle->inode;
    case WIRE_FLUSH:
        /* What was written through another handle does not concern who closes this one. */
        return NULL;
    case WIRE_GETATTR:
    case WIRE_SETATTR:
        *ret_through = r->handle;
        return r->inode;
    case WIRE_OPEN:
    case WIRE_LINK:
    case WIRE_LOCK_GET:
    case WIRE_LOCK_SET:
        return r->inode;
    case WIRE_CREATE:
        return r->message.create.flags & WIRE_OPEN_UNNAMED ? NULL : named(r);
    case WIRE_RENAME:
        return named(r);
    default:
        return NULL;
    }
}

static struct file *in_the_way(const struct request *r)
{
    const struct driver *d = r->driver;
    const struct handle *through;
    struct file *f;
    if (r->message.type == WIRE_COPY) {
        f = find(d, r->handle->inode);
        if (f)
            return f;
        f = find(d, r->output->inode);
        return f && f->handle != r->output ? f : NULL;
    }
    const struct inode *i = concerned(r, &through);
    f = i ? find(d, i) : NULL;
    return f && (!through || f->handle != through) ? f : NULL;
}

bool pipeline_holds(const struct request *r)
{
    return r->driver->pipeline->count && in_the_way(r);
}

void pipeline_wait(struct request *r)
{
    queue_add(&in_the_way(r)->waiting, r);
}

void pipeline_join(struct request *r, request_done_fn *done)
{
    struct file *f = find(r->driver, r->handle->inode);
    r->joins = true;
    r->done = done;
    if (f)
        queue_add(&f->waiting, r);
    else
        done(r, 0, NULL);
}

/* --- sending ---------------------------------------------------------------------------- */

static bool may_send(const struct request *r)
{
    const struct driver *d = r->driver;
    const struct pipeline *p = d->pipeline;
    const struct handle *h = r->handle;
    const struct file *f = find(d, h->inode);
    return d->client && coherence_live(d) && p->known_on == d->inodes.connection && !p->careful &&
           p->count < PIPELINE_REQUESTS_MAX && !d->lock_recoveries && repair_handle_current(d, h) &&
           repair_inode_current(d, h->inode) && (h->flags & WIRE_OPEN_WRITE) &&
           !(h->flags & (WIRE_OPEN_SYNC | WIRE_OPEN_DSYNC)) && !h->error &&
           (!f || (f->handle == h && !f->waiting.first));
}

static bool has_room(const struct driver *d, const struct request *r)
{
    const struct file *f = find(d, r->handle->inode);
    return f->bytes + r->size <= PIPELINE_FILE_MAX &&
           d->pipeline->bytes + r->size <= PIPELINE_ALL_MAX;
}

/* The kernel has its answer; from now on only an error is of interest. */
static void answered(struct request *r)
{
    find(r->driver, r->handle->inode)->bytes += r->size;
    r->driver->pipeline->bytes += r->size;
    interrupt_forget(r);
    r->fuse = NULL;
}

static void answer_writers(struct driver *d)
{
    struct request_queue *q = &d->pipeline->unanswered;
    struct request *r;
    /* In their order: a small write must not keep a large one waiting for ever. */
    while ((r = q->first) && has_room(d, r)) {
        q->first = r->behind;
        if (!q->first)
            q->last = &q->first;
        (void)fuse_reply_write(r->fuse, r->size);
        answered(r);
    }
}

static void remove_unanswered(struct pipeline *p, const struct request *r)
{
    for (struct request **at = &p->unanswered.first; *at; at = &(*at)->behind)
        if (*at == r) {
            *at = r->behind;
            if (!*at)
                p->unanswered.last = at;
            return;
        }
}

/* All of it is answered: who has waited for that goes on. */
static void file_end(struct driver *d, struct file *f)
{
    struct request *next, *r = f->waiting.first;
    (void)table_take(&d->pipeline->files, f->inode->id);
    inode_unpin(&d->inodes, f->inode);
    free(f);
    for (; r; r = next) {
        next = r->next;
        r->next = NULL;
        if (r->joins)
            r->done(r, 0, NULL);
        else
            request_send(r, r->done);
    }
}

static void failed(struct driver *d, struct inode *inode, int error)
{
    d->pipeline->careful = true;
    for (struct handle *h = inode->handles; h; h = h->next)
        if (!h->error)
            h->error = error;
    /* The kernel shows what it believes to be written. */
    pipeline_forget_attr(inode);
    coherence_appended(d, inode);
}

/* A change by this handle. What others change in between, answers asked for before may not show. */
static void note_change(struct driver *d, struct handle *h)
{
    uint64_t stamp = h->inode->stamp;
    if (stamp > h->sent_stamp && stamp > h->answered_stamp)
        h->others_stamp = stamp;
    inode_changed(&d->inodes, h->inode);
}

static int error_of(const struct request *r, int error, const struct wire_message *reply)
{
    if (error < 0)
        return error == -ENOTCONN ? -EIO : error; /* whether it had its effect is not known */
    if (r->message.type != WIRE_WRITE || reply->written.size >= r->size)
        return 0;
    return reply->written.error ? request_errno(-(int)reply->written.error) : -EIO;
}

static void done(struct request *r, int error, const struct wire_message *reply)
{
    struct driver *d = r->driver;
    struct pipeline *p = d->pipeline;
    struct inode *inode = r->handle->inode;
    struct file *f = find(d, inode);
    note_change(d, r->handle);
    r->handle->answered_stamp = inode->stamp;
    error = error_of(r, error, reply);
    if (r->message.type == WIRE_PLACE)
        create_ahead_placed(r, error, reply);
    p->count--;
    f->count--;
    if (r->fuse) {
        /* As if it had not been meant to be told early. */
        remove_unanswered(p, r);
        if (error == 0 || (reply && reply->written.size))
            (void)fuse_reply_write(r->fuse, error < 0 ? (size_t)reply->written.size : r->size);
        else
            (void)fuse_reply_err(r->fuse, -error);
        if (error < 0) {
            p->careful = true;
            pipeline_forget_attr(inode);
        }
    } else {
        f->bytes -= r->size;
        p->bytes -= r->size;
        if (error < 0)
            failed(d, inode, error);
    }
    bool last = f->count == 0;
    if (last)
        (void)inode_pin(inode);
    request_free(r);
    if (last) {
        inode_unpin(&d->inodes, inode);
        file_end(d, f);
    }
    answer_writers(d);
    answer_sync(d);
    create_ahead_go_on(d);
}

static struct file *take_file(struct driver *d, struct handle *h)
{
    struct file *f = find(d, h->inode);
    if (f)
        return f;
    f = calloc(1, sizeof *f);
    if (!f || table_put(&d->pipeline->files, h->inode->id, f, NULL) < 0) {
        free(f);
        return NULL;
    }
    f->inode = inode_pin(h->inode);
    f->handle = h;
    f->waiting.last = &f->waiting.first;
    return f;
}

static void tell(struct request *r, const struct wire_attr *attr)
{
    if (attr) {
        struct stat st;
        request_stat(r->driver, attr, &st);
        (void)fuse_reply_attr(r->fuse, &st, 0); /* the service knows it better */
    } else {
        (void)fuse_reply_write(r->fuse, r->size);
    }
}

static bool ends_far_out(const struct wire_message *m)
{
    if (m->type == WIRE_WRITE)
        return m->write.offset > PIPELINE_END_MAX - m->write.data.len;
    return (m->setattr.valid & WIRE_SET_SIZE) && m->setattr.size > PIPELINE_END_MAX;
}

int pipeline_take_error(struct handle *h)
{
    int error = h->error;
    h->error = 0;
    return error;
}

/* What came behind the change that failed has failed with it: that is told with it. */
static void failed_earlier(struct request *r, int error, const struct wire_message *reply)
{
    (void)pipeline_take_error(r->handle);
    request_fail(r, r->error);
}

bool pipeline_failed(struct request *r)
{
    if (!r->handle->error)
        return false;
    r->error = pipeline_take_error(r->handle);
    pipeline_join(r, failed_earlier);
    return true;
}

/* Behind others through the same handle a write, or a new size, counts on them: what they failed
 * to write must not become a hole in front of it. */
void pipeline_follow(struct request *r)
{
    const struct file *f = find(r->driver, r->handle->inode);
    if (!f || f->handle != r->handle)
        return;
    if (r->message.type == WIRE_WRITE)
        r->message.write.flags |= WIRE_WRITE_BEHIND;
    else if (r->message.setattr.valid & WIRE_SET_SIZE)
        r->message.setattr.valid |= WIRE_SET_BEHIND;
}

/* It is under way from now on. */
static bool enter(struct request *r)
{
    struct driver *d = r->driver;
    struct file *f = may_send(r) ? take_file(d, r->handle) : NULL;
    if (!f)
        return false;
    note_change(d, r->handle);
    forget_attr_but(f->inode, r->handle);
    r->handle->sent_stamp = f->inode->stamp;
    f->count++;
    d->pipeline->count++;
    r->once = true;
    r->connection = d->inodes.connection;
    return true;
}

bool pipeline_begin(struct request *r)
{
    if (!enter(r))
        return false;
    r->quiet = true;
    request_send(r, done);
    return true;
}

bool pipeline_send(struct request *r, const struct wire_attr *attr)
{
    struct driver *d = r->driver;
    struct pipeline *p = d->pipeline;
    if (ends_far_out(&r->message) || !enter(r))
        return false;
    if (attr || has_room(d, r)) {
        tell(r, attr);
        answered(r);
        r->quiet = true;
    } else {
        r->behind = NULL;
        *p->unanswered.last = r;
        p->unanswered.last = &r->behind;
    }
    request_send(r, done);
    return true;
}

void pipeline_succeeded(struct driver *d)
{
    d->pipeline->careful = false;
}
