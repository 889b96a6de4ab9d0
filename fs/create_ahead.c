#include "create_ahead.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "coherence.h"
#include "names.h"
#include "pipeline.h"
#include "repair.h"
#include "visibility/visibility.h"

#define SLOT_SHIFT 40 /* of a workspace's slot in the numbers of its files */

/* For so long the kernel may keep what is foreseen of a file: it looks at it once more before it
 * returns from open(). Then it is to be asked of the service. */
#define OPENING_S 0.001

/* Of what has none, where a name is asked for: nothing is called so. */
#define SPARE_NAME ".berth-unnamed"

struct spare {
    uint64_t node, handle;
    struct wire_attr attr;
    uint64_t came_ns;
};

/* Of directories in which new files are alike. */
struct likes {
    size_t refs; /* directories, and requests for spares */
    /* What the spares were made for. */
    uint32_t mode, make, uid, gid;
    struct spare spares[CREATE_AHEAD_SPARES];
    size_t count, asked;
    bool unable; /* they do not come out as they were asked for */
};

struct delegation {
    uint32_t slot;
    uint64_t number;
};

struct create_ahead {
    uint32_t connection;      /* that all of it belongs to */
    struct table directories; /* inode ID -> struct likes */
    size_t directory_count;
    struct delegation delegations[CREATE_AHEAD_DELEGATIONS_MAX];
    size_t delegation_count;
    uint64_t doubted_ns;     /* not 0: they count when what is asked later was answered */
    bool unable;             /* its filesystem makes no files without a name */
    struct request *placing; /* PLACEs under way, linked by `behind` */
    struct request_queue waiting;
    struct event *idle;
    uint64_t used_ns;
};

/* --- spares ------------------------------------------------------------------------- */

static void likes_unref(struct likes *p)
{
    if (--p->refs == 0)
        free(p);
}

static void discard(struct driver *d, const struct spare *spare)
{
    (void)buffer_append_u64(&d->handles.releases, spare->handle);
    inode_give_back(&d->inodes, spare->node, 1);
    driver_notices_pending(d);
}

static void discard_all(struct driver *d, struct likes *p)
{
    while (p->count > 0)
        discard(d, &p->spares[--p->count]);
}

/* there: the service has the spares still. */
static void forget_directories(struct driver *d, bool there)
{
    struct create_ahead *a = d->create_ahead;
    struct likes *p;
    size_t cursor = 0;
    while ((p = table_next(&a->directories, &cursor))) {
        if (!there)
            p->count = 0;
        discard_all(d, p);
        likes_unref(p);
    }
    table_release(&a->directories);
    a->directory_count = 0;
}

static void on_idle(evutil_socket_t fd, short what, void *context)
{
    struct driver *d = context;
    struct create_ahead *a = d->create_ahead;
    uint64_t end = a->used_ns + CREATE_AHEAD_IDLE_MS * NSEC_PER_MSEC, now = clock_monotonic_ns();
    if (end <= now) {
        forget_directories(d, a->connection == d->inodes.connection);
        return;
    }
    uint64_t ms = (end - now) / NSEC_PER_MSEC + 1;
    const struct timeval tv = {.tv_sec = (time_t)(ms / 1000),
                               .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    (void)event_add(a->idle, &tv);
}

static void note_use(struct create_ahead *a)
{
    const struct timeval tv = {.tv_sec = CREATE_AHEAD_IDLE_MS / 1000};
    a->used_ns = clock_monotonic_ns();
    if (!evtimer_pending(a->idle, NULL))
        (void)event_add(a->idle, &tv);
}

/* NULL: there is nothing that counts. */
static struct create_ahead *current(struct driver *d)
{
    struct create_ahead *a = d->create_ahead;
    if (!a || a->connection == d->inodes.connection)
        return a;
    forget_directories(d, false);
    a->delegation_count = 0;
    a->unable = false;
    a->connection = d->inodes.connection;
    return a;
}

static struct likes *likes_of(const struct create_ahead *a, const struct inode *directory)
{
    return table_get(&a->directories, directory->id);
}

/* Without memory, or beyond the limit, it has none. */
static void join(struct driver *d, const struct inode *directory, struct likes *p)
{
    struct create_ahead *a = d->create_ahead;
    if (likes_of(a, directory) || a->directory_count == CREATE_AHEAD_DIRECTORIES_MAX ||
        table_put(&a->directories, directory->id, p, NULL) < 0)
        return;
    a->directory_count++;
    p->refs++;
}

static bool is_made_for(const struct likes *p, const struct wire_create *c)
{
    return p->mode == c->mode && p->make == c->make && p->uid == c->uid && p->gid == c->gid;
}

static void spare_came(struct request *q, int error, const struct wire_message *reply)
{
    struct driver *d = q->driver;
    struct likes *p = q->context;
    p->asked--;
    struct create_ahead *a = current(d);
    if (error == 0) {
        const struct wire_created *c = &reply->created;
        const struct spare spare = {
            .node = c->node, .handle = c->handle, .attr = c->attr, .came_ns = clock_monotonic_ns()};
        a->unable = a->unable || c->attr.nlink != 0; /* it has one for want of O_TMPFILE */
        /* An ACL has a say in it. */
        p->unable = c->attr.mode != (S_IFREG | q->message.create.mode);
        if (a->unable || p->unable || p->refs == 1 + p->asked || p->count == CREATE_AHEAD_SPARES ||
            a->connection != q->connection || !is_made_for(p, &q->message.create))
            discard(d, &spare);
        else
            p->spares[p->count++] = spare;
    } else {
        p->unable = true;
    }
    likes_unref(p);
    request_free(q);
}

/* Until there are so many. */
static void fill(struct driver *d, struct likes *p, struct inode *directory, size_t wanted)
{
    while (!p->unable && p->count + p->asked < wanted) {
        struct request *q;
        if (request_new(d, NULL, WIRE_CREATE, SPARE_NAME, NULL, &q) < 0)
            return;
        q->inode = inode_pin(directory);
        q->context = p;
        q->quiet = q->once = true;
        q->connection = d->inodes.connection;
        q->message.create =
            (struct wire_create){.flags = WIRE_OPEN_READ | WIRE_OPEN_WRITE | WIRE_OPEN_UNNAMED,
                                 .mode = p->mode,
                                 .make = p->make,
                                 .uid = p->uid,
                                 .gid = p->gid,
                                 .name = request_name(q)};
        p->refs++;
        p->asked++;
        request_send(q, spare_came);
    }
}

/* --- delegations ----------------------------------------------------------------------- */

static struct delegation *delegation_of(struct create_ahead *a, const struct inode *directory)
{
    for (size_t i = 0; i < a->delegation_count; i++)
        if (a->delegations[i].slot == directory->ino >> SLOT_SHIFT)
            return &a->delegations[i];
    return NULL;
}

static struct create_ahead *begin(struct driver *d)
{
    struct create_ahead *a = d->create_ahead;
    if (a)
        return current(d);
    a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->waiting.last = &a->waiting.first;
    a->connection = d->inodes.connection;
    a->idle = evtimer_new(d->base, on_idle, d);
    if (!a->idle) {
        free(a);
        return NULL;
    }
    d->create_ahead = a;
    return a;
}

void create_ahead_free(struct driver *d)
{
    struct create_ahead *a = d->create_ahead;
    if (!a)
        return;
    forget_directories(d, false);
    event_free(a->idle);
    free(take_ptr(d->create_ahead));
}

void create_ahead_delegated(struct driver *d, uint32_t slot, uint64_t number)
{
    struct create_ahead *a = begin(d);
    if (!a || a->delegation_count == CREATE_AHEAD_DELEGATIONS_MAX)
        return;
    a->delegations[a->delegation_count++] = (struct delegation){.slot = slot, .number = number};
    pipeline_delegated(d);
}

void create_ahead_revoked(struct driver *d)
{
    if (d->create_ahead)
        d->create_ahead->delegation_count = 0;
}

void create_ahead_resumed(struct driver *d)
{
    if (d->create_ahead)
        d->create_ahead->doubted_ns = clock_monotonic_ns();
}

void create_ahead_confirmed(struct driver *d, uint64_t asked_ns)
{
    if (d->create_ahead && asked_ns > d->create_ahead->doubted_ns)
        d->create_ahead->doubted_ns = 0;
}

/* It pays to make files ahead in this directory; the delegation's number, else 0. */
static uint64_t usable(struct driver *d, const struct inode *directory)
{
    struct create_ahead *a = current(d);
    const struct delegation *delegation = a ? delegation_of(a, directory) : NULL;
    bool pays = delegation && !a->doubted_ns && !a->unable && coherence_live(d) &&
                (directory->flags & INODE_COVERED) &&
                coherence_times(d).ping_min_us >= CREATE_AHEAD_PING_US;
    return pays ? delegation->number : 0;
}

/* --- what waits ------------------------------------------------------------------------- */

bool create_ahead_at(const struct driver *d, const struct inode *directory, struct bytes name)
{
    const struct create_ahead *a = d->create_ahead;
    for (const struct request *q = a ? a->placing : NULL; q; q = q->behind)
        if (q->inode == directory && bytes_equal(request_name(q), name))
            return true;
    return false;
}

bool create_ahead_in(const struct driver *d, const struct inode *directory)
{
    const struct create_ahead *a = d->create_ahead;
    for (const struct request *q = a ? a->placing : NULL; q; q = q->behind)
        if (q->inode == directory)
            return true;
    return false;
}

bool create_ahead_holds(const struct request *r)
{
    const struct driver *d = r->driver;
    if (!d->create_ahead || !d->create_ahead->placing)
        return false;
    switch ((uint32_t)r->message.type) {
    case WIRE_CREATE:
        return !(r->message.create.flags & WIRE_OPEN_UNNAMED) &&
               create_ahead_at(d, r->inode, request_name(r));
    case WIRE_LOOKUP:
        return create_ahead_at(d, r->inode, request_name(r));
    case WIRE_GETATTR:
    case WIRE_SETATTR:
        return r->inode->type == S_IFDIR && create_ahead_in(d, r->inode);
    case WIRE_READDIR:
        return create_ahead_in(d, r->handle->inode);
    case WIRE_READTREE:
    case WIRE_MKNOD:
    case WIRE_MKDIR:
    case WIRE_SYMLINK:
    case WIRE_LINK:
    case WIRE_UNLINK:
    case WIRE_RMDIR:
    case WIRE_RENAME:
        return true;
    default:
        return false;
    }
}

void create_ahead_wait(struct request *r, request_done_fn *again)
{
    struct request_queue *q = &r->driver->create_ahead->waiting;
    r->joins = again != NULL;
    if (again)
        r->done = again;
    r->next = NULL;
    *q->last = r;
    q->last = &r->next;
}

void create_ahead_go_on(struct driver *d)
{
    struct create_ahead *a = d->create_ahead;
    if (!a || !a->waiting.first)
        return;
    struct request *next, *r = a->waiting.first;
    a->waiting = (struct request_queue){.last = &a->waiting.first};
    for (; r; r = next) {
        next = r->next;
        r->next = NULL;
        if (r->joins) {
            r->joins = false;
            r->done(r, 0, NULL);
        } else {
            request_send(r, r->done);
        }
    }
}

/* --- making files ------------------------------------------------------------------------ */

static bool is_known_missing(struct request *r)
{
    struct inode_table *inodes = &r->driver->inodes;
    struct tree_directory *listing = tree_find(inodes, r->inode);
    bool reserved = (r->inode->flags & INODE_WORKSPACE) &&
                    bytes_equal(request_name(r), bytes_of_string(VISIBILITY_RESERVED_NAME));
    return !reserved && listing && tree_lacks(inodes, listing, request_name(r)) &&
           !create_ahead_at(r->driver, r->inode, request_name(r));
}

static bool may_be_ahead(const struct request *r)
{
    const uint32_t plain = WIRE_OPEN_READ | WIRE_OPEN_WRITE | WIRE_OPEN_TRUNCATE |
                           WIRE_OPEN_EXCLUSIVE | WIRE_OPEN_KILL_PRIV | WIRE_OPEN_NO_ATIME;
    const struct driver *d = r->driver;
    uint32_t flags = r->message.create.flags;
    return !r->direct && (flags & WIRE_OPEN_WRITE) && !(flags & ~plain) &&
           repair_inode_current(d, r->inode) &&
           /* Nobody waits for ever because others go on making files. */
           !d->create_ahead->waiting.first;
}

/* As it will be once it has its name. Made now by the clock of the service, as far as that is
 * known: never in its future, and late by the way of the spare. */
static struct wire_attr foresee(const struct spare *spare)
{
    struct wire_attr attr = spare->attr;
    uint64_t nsec = attr.ctime.nsec + (clock_monotonic_ns() - spare->came_ns);
    attr.ctime.sec += (int64_t)(nsec / NSEC_PER_SEC);
    attr.ctime.nsec = (uint32_t)(nsec % NSEC_PER_SEC);
    attr.nlink = 1;
    attr.atime = attr.mtime = attr.ctime;
    return attr;
}

static int send_place(const struct request *r, struct handle *h, const struct wire_attr *attr,
                      uint64_t delegation)
{
    struct driver *d = r->driver;
    struct request *q;
    int error = request_new(d, NULL, WIRE_PLACE, r->names, NULL, &q);
    if (error < 0)
        return error;
    q->inode = inode_pin(r->inode);
    q->handle = handle_pin(h);
    q->message.place = (struct wire_place){.flags = RENAME_NOREPLACE | WIRE_PLACE_TIME,
                                           .delegation = delegation,
                                           .time = attr->mtime,
                                           .name = request_name(q)};
    q->behind = d->create_ahead->placing;
    d->create_ahead->placing = q;
    if (pipeline_begin(q))
        return 0;
    d->create_ahead->placing = q->behind;
    request_free(q);
    return -EAGAIN;
}

/* Takes the spare into the tables, and sends PLACE. */
static int use(const struct request *r, const struct spare *spare, const struct wire_attr *attr,
               uint64_t delegation, struct inode **ret_inode, struct handle **ret_handle)
{
    struct driver *d = r->driver;
    struct inode *i;
    struct handle *h;
    int error = inode_enter(&d->inodes, spare->node, attr, 0, r->inode, request_name(r), &i);
    if (error < 0) {
        (void)buffer_append_u64(&d->handles.releases, spare->handle);
        return error;
    }
    error = handle_new(&d->handles, i, spare->handle, d->inodes.connection, r->message.create.flags,
                       &h);
    if (error < 0) {
        (void)buffer_append_u64(&d->handles.releases, spare->handle);
        inode_drop(&d->inodes, i);
        return error;
    }
    pipeline_note_attr(d, h, attr);
    error = send_place(r, h, attr, delegation);
    if (error < 0) {
        handle_release(&d->handles, h);
        return error;
    }
    *ret_inode = i;
    *ret_handle = h;
    return 0;
}

bool create_ahead(struct request *r)
{
    struct driver *d = r->driver;
    uint64_t delegation = usable(d, r->inode);
    struct likes *p = delegation ? likes_of(d->create_ahead, r->inode) : NULL;
    if (!p || p->count == 0 || !may_be_ahead(r) || !is_made_for(p, &r->message.create) ||
        !is_known_missing(r))
        return false;
    const struct spare spare = p->spares[--p->count];
    const struct wire_attr attr = foresee(&spare);
    struct inode *i;
    struct handle *h;
    if (use(r, &spare, &attr, delegation, &i, &h) < 0) {
        driver_notices_pending(d);
        return false;
    }
    struct fuse_entry_param e;
    request_entry(d, r->inode, i, &attr, d->inodes.stamp, &e);
    e.attr_timeout = OPENING_S;
    struct fuse_file_info fi = {.fh = h->id,
                                .keep_cache = coherence_keep_cache(d, i, &attr, d->inodes.stamp)};
    inode_looked_up(i);
    if (fuse_reply_create(r->fuse, &e, &fi) != 0) {
        inode_forget(&d->inodes, i, 1); /* the handle still pins it */
        handle_release(&d->handles, h);
    }
    note_use(d->create_ahead);
    fill(d, p, r->inode, CREATE_AHEAD_SPARES);
    request_free(r);
    return true;
}

void create_ahead_placed(struct request *q, int error, const struct wire_message *reply)
{
    struct driver *d = q->driver;
    struct request **at = &d->create_ahead->placing;
    while (*at != q)
        at = &(*at)->behind;
    *at = q->behind;
    if (error < 0) {
        if (error == -ESTALE) /* it has been given to somebody else, or is nobody's */
            create_ahead_revoked(d);
        coherence_unmade(d, q->inode, request_name(q));
        inode_removed(&d->inodes, q->inode, request_name(q));
        return;
    }
    names_made(q, q->inode, &reply->placed.attr, &reply->placed.directory);
    names_made_end(d, q->inode);
}

/* --- where --------------------------------------------------------------------------------- */

static struct likes *new_likes(struct driver *d, const struct inode *directory,
                               const struct wire_create *as)
{
    struct likes *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    *p = (struct likes){
        .refs = 1, .mode = as->mode, .make = as->make, .uid = as->uid, .gid = as->gid};
    join(d, directory, p);
    likes_unref(p);
    return likes_of(d->create_ahead, directory);
}

void create_ahead_created(const struct request *r, const struct wire_attr *directory)
{
    struct driver *d = r->driver;
    const struct wire_create *c = &r->message.create;
    if (!usable(d, r->inode) || (directory->mode & S_ISGID))
        return;
    struct likes *p = likes_of(d->create_ahead, r->inode);
    if (!p)
        p = new_likes(d, r->inode, c);
    if (!p)
        return;
    if (!is_made_for(p, c)) {
        discard_all(d, p);
        p->mode = c->mode;
        p->make = c->make;
        p->uid = c->uid;
        p->gid = c->gid;
        p->unable = false;
    }
    note_use(d->create_ahead);
    fill(d, p, r->inode, 1); /* there may be no other */
}

void create_ahead_made_directory(const struct request *r, const struct inode *made,
                                 const struct wire_attr *attr)
{
    struct driver *d = r->driver;
    if (!usable(d, r->inode) || (attr->mode & S_ISGID))
        return;
    const struct wire_create as = {.mode = 0644,
                                   .make = r->message.mkdir.make,
                                   .uid = r->message.mkdir.uid,
                                   .gid = r->message.mkdir.gid};
    struct likes *p = likes_of(d->create_ahead, r->inode);
    if (!p)
        p = new_likes(d, r->inode, &as);
    if (!p)
        return;
    join(d, made, p);
    note_use(d->create_ahead);
    fill(d, p, r->inode, 1); /* there may be no other */
}

void create_ahead_forget(struct driver *d, const struct inode *directory)
{
    struct likes *p =
        d->create_ahead ? table_take(&d->create_ahead->directories, directory->id) : NULL;
    if (!p)
        return;
    d->create_ahead->directory_count--;
    /* The last one. */
    if (p->refs == 1 + p->asked)
        discard_all(d, p);
    likes_unref(p);
}
