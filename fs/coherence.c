#include "coherence.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "create_ahead.h"
#include "ops.h"
#include "pipeline.h"
#include "request.h"

/* Nothing but a report of a change ends it: a day is for ever. */
#define KEPT_SECONDS 86400.0

/* A lease is renewed when a third of it is over. */
#define RENEW_MS (WIRE_LEASE_MS / 3)

/* When the kernel has not returned from a call for so long, somebody should know. */
#define STUCK_NS (10 * NSEC_PER_SEC)

struct coherence {
    struct driver *driver;
    struct notifier *notifier;
    struct event *renew;  /* asks for the lease again */
    struct event *expire; /* the lease's end */
    uint64_t tag;         /* of SUBSCRIBE; 0: not subscribed */
    bool live;            /* the service reports changes, and the lease holds */
    bool serving;         /* it did, and what was known then is answered still */
    bool asked;           /* for the lease */
    bool silent;          /* and not answered before it ended */
    uint64_t asked_ns;
    uint64_t told_ns,
        told_position; /* of the CHANGES that is not confirmed yet; 0: there is none */
    struct coherence_times times;
    time_t asked_at, known_at; /* in real time, of the same, and of the last that was answered */
    uint64_t lease_end_ns;
    uint64_t loose_end_ns; /* then the names are over that cannot be taken back */
    uint64_t hold_ns;      /* until then nothing is confirmed */
    uint64_t held;         /* what is to be confirmed then; 0: nothing */
    struct event *late;
    uint32_t linked_news; /* as inode.name_news, of all files with more than one name */
    size_t checks;        /* of directories, under way: until then nothing is confirmed either */
    struct event *again;  /* directories' names are made to expire once more */
    bool stuck;
};

/* --- what is kept ----------------------------------------------------------------- */

bool coherence_live(const struct driver *d)
{
    return d->coherence && d->coherence->live;
}

bool coherence_silent(const struct driver *d)
{
    return d->coherence && d->coherence->silent;
}

bool coherence_serving(const struct driver *d)
{
    return d->coherence && d->coherence->serving;
}

time_t coherence_served_as_of(const struct driver *d)
{
    return coherence_serving(d) ? d->coherence->known_at : 0;
}

int64_t coherence_confirmed_ms(const struct driver *d)
{
    if (!coherence_live(d))
        return -1;
    uint64_t asked_ns = d->coherence->lease_end_ns - WIRE_LEASE_MS * NSEC_PER_MSEC;
    return (int64_t)((clock_monotonic_ns() - asked_ns) / NSEC_PER_MSEC);
}

struct coherence_times coherence_times(const struct driver *d)
{
    return d->coherence ? d->coherence->times : (struct coherence_times){0};
}

bool coherence_knows(const struct driver *d)
{
    return coherence_live(d) || coherence_serving(d);
}

static bool keeps(const struct driver *d, const struct inode *inode, uint64_t stamp)
{
    const struct coherence *c = d->coherence;
    return c && coherence_knows(d) && inode->stamp <= stamp && d->inodes.unknown_stamp <= stamp &&
           !(inode->flags & INODE_ALIAS);
}

double coherence_attr_timeout(const struct driver *d, const struct inode *inode,
                              const struct wire_attr *attr, uint64_t stamp)
{
    return (attr->flags & WIRE_ATTR_COVERED) && keeps(d, inode, stamp) ? KEPT_SECONDS : 0;
}

/* The kernel counts in ticks, and from when the program that asked takes the answer in. */
#define LEASE_MARGIN_MS 200

static double lease_seconds(const struct coherence *c)
{
    uint64_t now = clock_monotonic_ns() + LEASE_MARGIN_MS * NSEC_PER_MSEC;
    return c->lease_end_ns > now ? (double)(c->lease_end_ns - now) / NSEC_PER_SEC : 0;
}

/* What the kernel is told of a name that it has, but whose time is over, it takes in without any
 * lock, when the program that asked comes to run. If the name is told of as changed meanwhile, that
 * is undone, for ever. So within this time after such an answer a name is not made to expire, but
 * dropped, which nothing undoes.
 *
 * Not the name of a directory: those in it would have no path any more (getcwd) until somebody
 * looked it up. It is made to expire, and the service is asked whether it leads elsewhere now; only
 * then it is dropped. Where all is forgotten it expires once more when this time is over, until
 * when a directory that is found to be what it was is not kept. */
#define TAKEN_IN_MS 3000

enum { NEWS_EXPIRED = 1 }; /* in inode.name_news, beside twice the time */

static uint32_t news_now(void)
{
    return (uint32_t)(clock_monotonic_ns() / NSEC_PER_MSEC) * 2;
}

static bool news_within(uint32_t news, uint32_t ms)
{
    return news && news_now() - (news & ~(uint32_t)NEWS_EXPIRED) < 2 * ms;
}

static bool news_lately(uint32_t news)
{
    return news_within(news, TAKEN_IN_MS);
}

void coherence_read_begins(struct driver *d, const struct inode *inode)
{
    if (d->coherence)
        notifier_read_begins(d->coherence->notifier, inode->id);
}

void coherence_read_ends(struct driver *d, const struct inode *inode)
{
    if (d->coherence)
        notifier_read_ends(d->coherence->notifier, inode->id);
}

/* Who writes a file bit by bit, or again and again, does so within this time. */
#define WRITTEN_MS 1000

bool coherence_written_lately(const struct inode *inode)
{
    return news_within(inode->content_news, WRITTEN_MS);
}

/* The kernel is to be told of its name. False: that must not be kept. */
static bool note_told(struct inode *i)
{
    if (!i->nlookup)
        return true; /* new to it: taken in under the lock of the directory */
    if (i->type == S_IFDIR && (i->name_news & NEWS_EXPIRED) && news_lately(i->name_news))
        return false;
    i->name_news = news_now();
    return true;
}

/* And is to be told that it may have changed. True: that may be undone. */
static bool note_expired(struct inode *i)
{
    bool lately = !(i->name_news & NEWS_EXPIRED) && news_lately(i->name_news);
    i->name_news = news_now() | NEWS_EXPIRED;
    return lately;
}

double coherence_entry_timeout(struct driver *d, const struct inode *parent, struct inode *inode,
                               const struct wire_attr *attr, uint64_t stamp)
{
    /* Of workspaces only the removal is reported, as a change of everything. */
    if (!inode && (parent->flags & INODE_LOCAL))
        return 0;
    if (!(parent->flags & (INODE_COVERED | INODE_LOCAL)) || !keeps(d, parent, stamp))
        return 0;
    /* Names that are not to be found in the inode table cannot be taken back all at once when the
     * lease ends, and so end with it: those of nothing, and those beside the one noted. When all is
     * to be forgotten while the lease goes on, their end is waited for. */
    bool linked = inode && !S_ISDIR(attr->mode) && attr->nlink > 1;
    if (linked && inode->nlookup)
        d->coherence->linked_news = news_now();
    if (!inode || inode->parent != parent || linked) {
        d->coherence->loose_end_ns = d->coherence->lease_end_ns;
        return lease_seconds(d->coherence);
    }
    return note_told(inode) ? KEPT_SECONDS : 0;
}

bool coherence_keep_cache(const struct driver *d, struct inode *inode, const struct wire_attr *attr,
                          uint64_t stamp)
{
    bool right =
        (inode->flags & INODE_CACHED) && (attr->flags & WIRE_ATTR_COVERED) && coherence_knows(d);
    if ((attr->flags & WIRE_ATTR_COVERED) && keeps(d, inode, stamp))
        inode->flags |= INODE_CACHED;
    else
        inode->flags &= (uint8_t)~INODE_CACHED;
    return right;
}

/* --- what is taken back ------------------------------------------------------------ */

static void no_memory(struct driver *d)
{
    log_error("out of memory: the kernel cannot be told of changes");
    driver_end(d, -ENOMEM);
}

static int tell_inode(struct notifier *n, const struct inode *i, bool content)
{
    return notifier_inode(n, i->id, i->parent ? i->parent->id : 0, content);
}

static void arm(struct event *event, uint64_t ms)
{
    const struct timeval tv = {.tv_sec = (time_t)(ms / 1000),
                               .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    (void)event_add(event, &tv);
}

static void note_lag(struct coherence *c, uint64_t position, uint64_t now)
{
    if (!c->told_ns || position < c->told_position)
        return;
    struct coherence_times *t = &c->times;
    t->lag_us = (now - c->told_ns) / 1000;
    t->lag_max_us = t->lag_us > t->lag_max_us ? t->lag_us : t->lag_max_us;
    c->told_ns = 0;
}

static void on_forgotten(void *context, uint64_t position)
{
    struct driver *d = context;
    struct coherence *c = d->coherence;
    struct client *client = driver_session(d);
    if (!c || !c->tag || !client)
        return;
    uint64_t now = clock_monotonic_ns();
    if (c->checks || c->hold_ns > now)
        c->held = position;
    if (c->checks)
        return;
    if (c->hold_ns > now) {
        arm(c->late, (c->hold_ns - now) / NSEC_PER_MSEC + 1);
        return;
    }
    c->held = 0;
    note_lag(c, position, now);
    const struct wire_message seen = {.type = WIRE_SEEN, .seen.position = position};
    (void)client_send(client, c->tag, &seen);
}

static void expire_again_later(struct coherence *c)
{
    if (!evtimer_pending(c->again, NULL))
        arm(c->again, TAKEN_IN_MS + 1);
}

static void on_again(evutil_socket_t fd, short what, void *context)
{
    struct driver *d = context;
    size_t cursor = 0;
    int r = 0;
    bool more = false;
    for (struct inode *i = NULL; r == 0 && (i = inode_next(&d->inodes, &cursor, i));) {
        if (i->type != S_IFDIR || !i->nlookup || !i->parent || !(i->name_news & NEWS_EXPIRED))
            continue;
        more = more || news_lately(i->name_news);
        r = notifier_entry(d->coherence->notifier, i->parent->id, inode_name_bytes(i), false);
    }
    if (more)
        expire_again_later(d->coherence);
    if (r < 0)
        no_memory(d);
}

/* The name of an inode may lead elsewhere, or must be asked for again. True: it must be dropped. */
static bool expire(struct driver *d, struct inode *i)
{
    bool lately = note_expired(i), directory = i->type == S_IFDIR;
    if (lately && directory)
        expire_again_later(d->coherence);
    return lately && !directory;
}

static void confirm_held(struct driver *d)
{
    struct coherence *c = d->coherence;
    if (!c->checks && c->held && notifier_then(c->notifier, on_forgotten, d, c->held) < 0)
        no_memory(d);
}

static void checked(struct request *q, int error, const struct wire_message *reply)
{
    struct driver *d = q->driver;
    struct coherence *c = d->coherence;
    struct inode *i = q->target;
    bool same = error == 0 && inode_is(i, &reply->entry.attr);
    if (error == 0)
        inode_give_back(&d->inodes, reply->entry.node, 1);
    if (c) {
        int r = 0;
        c->checks--;
        if (error < 0 && error != -ENOENT)
            expire_again_later(c);
        else if (!same && i->parent == q->inode &&
                 bytes_equal(inode_name_bytes(i), request_name(q)))
            r = notifier_entry(c->notifier, q->inode->id, request_name(q), true);
        if (r < 0)
            no_memory(d);
        confirm_held(d);
    }
    request_free(q);
}

/* Whether the name of a directory, or of an open file, whose path /proc tells, leads to it still.
 */
static int check(struct driver *d, struct inode *i)
{
    struct request *q;
    int r = request_new(d, NULL, WIRE_LOOKUP, inode_name(i), NULL, &q);
    if (r < 0)
        return r;
    q->message.lookup.name = request_name(q);
    q->inode = inode_pin(i->parent);
    q->target = inode_pin(i);
    q->connection = d->inodes.connection;
    q->once = q->quiet = true;
    d->coherence->checks++;
    request_send(q, checked);
    return 0;
}

/* A name in a directory. */
static int tell_name(struct driver *d, struct notifier *n, const struct inode *parent,
                     struct bytes name)
{
    struct inode *i = inode_named(&d->inodes, parent, name);
    known_name_changed(&d->inodes, parent, name);
    /* Of a file with more names only one is known. But what is not known yet may be a directory
     * that is just made or renamed here: dropped when that is done, it would have no path. */
    bool drop = !i && !d->naming && news_lately(d->coherence->linked_news);
    int r = 0;
    for (; i && r == 0; i = inode_named_after(&d->inodes, i, parent, name)) {
        bool lately = note_expired(i);
        if (i->type != S_IFDIR && !i->handles)
            drop = lately || drop;
        else if (lately)
            r = check(d, i);
    }
    return r < 0 ? r : notifier_entry(n, parent->id, name, drop);
}

/* lost: nor can it be asked for. */
static int forget_all(struct driver *d, struct notifier *n, bool lost)
{
    _cleanup_buffer_ struct buffer batch = {0};
    size_t cursor = 0, orders = 0;
    int r = 0;
    tree_forget(&d->inodes);
    content_forget(&d->inodes);
    known_forget(&d->inodes);
    d->coherence->hold_ns = d->coherence->loose_end_ns;
    d->inodes.unknown_stamp = ++d->inodes.stamp;
    for (struct inode *i = NULL; r == 0 && (i = inode_next(&d->inodes, &cursor, i));) {
        i->flags &= (uint8_t)~INODE_CACHED;
        if (i->type == S_IFDIR)
            i->flags &= (uint8_t) ~(INODE_MISSED | INODE_READ);
        if (i->type == S_IFREG) {
            i->flags &= (uint8_t)~INODE_ALLOWED;
            i->dense = false;
            if (lost)
                content_let_go(&d->inodes, i);
            else
                content_rewritten(i);
        }
        if (!i->nlookup)
            continue;
        r = notifier_batch_inode(&batch, i->id, i->parent ? i->parent->id : 0);
        orders += 1 + (i->parent != NULL);
        if (r == 0 && i->parent)
            r = notifier_batch_entry(&batch, i->parent->id, inode_name_bytes(i), expire(d, i));
    }
    if (r == 0 && batch.len)
        r = notifier_batch(n, &batch, orders);
    driver_notices_pending(d);
    return r;
}

static int forget_inode(struct driver *d, struct notifier *n, struct inode *i,
                        const struct wire_change *change)
{
    bool content = change->kinds & (WIRE_CHANGE_CONTENT | WIRE_CHANGE_NAME);
    pipeline_forget_attr(i);
    if (i->type == S_IFDIR)
        create_ahead_forget(d, i);
    if (content) {
        inode_changed(&d->inodes, i);
        i->flags &= (uint8_t)~INODE_CACHED;
    } else {
        inode_attr_changed(&d->inodes, i);
    }
    if (i->type == S_IFREG) {
        open_unopened(d, i);
        if (content)
            i->content_news = news_now();
    }
    int r = tell_inode(n, i, content);
    if (r == 0 && (change->kinds & WIRE_CHANGE_NAME) && change->name.len)
        r = tell_name(d, n, i, change->name);
    return r;
}

/* Anything may have changed. */
static int forget_changed(struct driver *d, struct notifier *n)
{
    struct coherence *c = d->coherence;
    int r = forget_all(d, n, false);
    uint64_t taken_in = clock_monotonic_ns() + (TAKEN_IN_MS + 2) * NSEC_PER_MSEC;
    if (evtimer_pending(c->again, NULL) && c->hold_ns < taken_in)
        c->hold_ns = taken_in;
    return r;
}

static int take_change(struct driver *d, struct notifier *n, const struct wire_change *change)
{
    if (change->kinds & WIRE_CHANGE_ALL)
        return forget_changed(d, n);
    struct inode *i = inode_identified(&d->inodes, change->ino, change->generation, NULL);
    bool names = change->kinds & WIRE_CHANGE_NAME;
    if (!i || names)
        tree_changed(&d->inodes, change->ino, change->generation, names);
    if (!i)
        d->inodes.unknown_stamp = ++d->inodes.stamp;
    int r = 0;
    for (; r == 0 && i; i = inode_identified(&d->inodes, change->ino, change->generation, i))
        r = forget_inode(d, n, i, change);
    return r;
}

static void on_late(evutil_socket_t fd, short what, void *context)
{
    const struct driver *d = context;
    if (d->coherence->held)
        on_forgotten(context, d->coherence->held);
}

void coherence_forget(struct driver *d)
{
    if (d->coherence && forget_all(d, d->coherence->notifier, false) < 0)
        no_memory(d);
}

size_t coherence_forgetting(const struct driver *d)
{
    return d->coherence ? notifier_left(d->coherence->notifier) : 0;
}

static void on_renamed(void *context, uint64_t move)
{
    struct driver *d = context;
    inode_rename_settled(&d->inodes, move);
}

void coherence_renamed(struct driver *d, const struct inode *to, struct bytes name)
{
    struct coherence *c = d->coherence;
    /* Without memory it is done by the time that it takes at most. */
    if (c && notifier_entry(c->notifier, to->id, name, false) == 0)
        (void)notifier_then(c->notifier, on_renamed, d, d->inodes.move.number);
}

int coherence_when_forgotten(struct driver *d, notifier_done_fn *done, void *context,
                             uint64_t number)
{
    if (d->coherence)
        return notifier_then(d->coherence->notifier, done, context, number);
    done(context, number);
    return 0;
}

/* The kernel takes an alias for another directory, and a change it makes by the one for none of
 * the other. */
static int forget_alias(struct driver *d, struct notifier *n, struct inode *alias)
{
    size_t cursor = 0;
    alias->flags |= INODE_ALIAS;
    inode_changed(&d->inodes, alias);
    int r = tell_inode(n, alias, true);
    for (struct inode *i = NULL; r == 0 && (i = inode_next(&d->inodes, &cursor, i));)
        if (i->parent == alias)
            r = notifier_entry(n, alias->id, inode_name_bytes(i), expire(d, i));
    return r;
}

void coherence_entered(struct driver *d, struct inode *inode)
{
    if (!d->coherence || (inode->flags & INODE_ALIAS) ||
        (inode->type != S_IFDIR && inode->type != S_IFLNK))
        return;
    struct inode *i = NULL;
    int r = 0;
    while (r == 0 && (i = inode_identified(&d->inodes, inode->ino, inode->generation, i)))
        if (i != inode && !(i->flags & INODE_ALIAS))
            r = forget_alias(d, d->coherence->notifier, i);
    if (inode_identified(&d->inodes, inode->ino, inode->generation, NULL) != inode ||
        inode_identified(&d->inodes, inode->ino, inode->generation, inode))
        inode->flags |= INODE_ALIAS;
    if (r < 0)
        no_memory(d);
}

void coherence_appended(struct driver *d, struct inode *inode)
{
    inode->flags &= (uint8_t)~INODE_CACHED;
    if (d->coherence && tell_inode(d->coherence->notifier, inode, true) < 0)
        no_memory(d);
}

void coherence_unmade(struct driver *d, const struct inode *directory, struct bytes name)
{
    if (d->coherence && tell_name(d, d->coherence->notifier, directory, name) < 0)
        no_memory(d);
}

/* --- the lease ---------------------------------------------------------------------- */

static void end_live(struct driver *d)
{
    struct coherence *c = d->coherence;
    if (!coherence_knows(d))
        return;
    c->live = c->serving = false;
    if (forget_all(d, c->notifier, true) < 0)
        no_memory(d);
}

/* Nobody reports changes: what is known is either forgotten, or answered as it is. */
static void lapse(struct driver *d)
{
    struct coherence *c = d->coherence;
    if (!d->options->serve) {
        end_live(d);
    } else if (c->live) {
        c->live = false;
        c->serving = true;
        log_warning("changes are not reported any more: answering what was known before");
    }
}

static void on_expired(evutil_socket_t fd, short what, void *context)
{
    struct driver *d = context;
    struct coherence *c = d->coherence;
    uint64_t now = clock_monotonic_ns();
    if (c->lease_end_ns > now) {
        arm(c->expire, (c->lease_end_ns - now) / NSEC_PER_MSEC + 1);
        return;
    }
    c->silent = c->asked;
    if (c->live && !d->options->serve)
        log_info("the service has not answered for %d ms: nothing is kept any more", WIRE_LEASE_MS);
    lapse(d);
}

static void on_renew(evutil_socket_t fd, short what, void *context);

static void on_pong(void *context, int error, const struct wire_message *reply)
{
    struct driver *d = context;
    struct coherence *c = d->coherence;
    c->asked = c->silent = false;
    uint64_t end = c->asked_ns + WIRE_LEASE_MS * NSEC_PER_MSEC;
    uint64_t now = clock_monotonic_ns();
    if (error == 0) {
        uint64_t took = c->times.ping_us = (now - c->asked_ns) / 1000;
        c->times.ping_min_us = took < c->times.ping_min_us ? took : c->times.ping_min_us;
    }
    if (error == 0)
        create_ahead_confirmed(d, c->asked_ns);
    /* An answer that took so long is worth nothing. */
    if (error == 0 && end <= now)
        on_renew(-1, 0, d);
    if (error < 0 || !reply->pong.lease || end <= now)
        return;
    c->lease_end_ns = end;
    c->known_at = c->asked_at;
    arm(c->expire, (end - now) / NSEC_PER_MSEC + 1);
    /* Whatever changed before the service answered has been reported before the answer. What was
     * asked before may have been looked at before the service reported anything. */
    if (c->tag && !c->live) {
        if (c->serving)
            log_info("changes are reported again");
        c->live = true;
        c->serving = false;
        d->inodes.unknown_stamp = ++d->inodes.stamp;
    }
}

static void on_renew(evutil_socket_t fd, short what, void *context)
{
    struct driver *d = context;
    struct coherence *c = d->coherence;
    uint64_t stuck = notifier_stuck_ns(c->notifier);
    if (stuck > STUCK_NS && !c->stuck)
        log_warning("the kernel has not let go of a cached file for %d s",
                    (int)(stuck / NSEC_PER_SEC));
    c->stuck = stuck > STUCK_NS;
    if (!c->tag || !d->client)
        return;
    arm(c->renew, RENEW_MS);
    if (c->asked)
        return;
    const struct wire_message ping = {.type = WIRE_PING};
    const struct client_call call = {.reply = on_pong, .context = d};
    c->asked_ns = clock_monotonic_ns();
    c->asked_at = time(NULL);
    c->asked = client_call(d->client, &ping, &call, NULL) == 0;
}

/* --- the subscription -------------------------------------------------------------- */

static void on_changes(void *context, uint64_t tag, const struct wire_message *item)
{
    struct driver *d = context;
    struct coherence *c = d->coherence;
    if (item->type == WIRE_SYNC)
        pipeline_sync(d, tag, item->sync.number);
    if (item->type == WIRE_DELEGATION)
        create_ahead_delegated(d, item->delegation.slot, item->delegation.number);
    if (item->type != WIRE_CHANGES)
        return;
    const struct wire_changes *changes = &item->changes;
    uint32_t offset = 0;
    struct bytes element;
    int r = 0;
    c->tag = tag;
    while (r == 0 && wire_list_next(&changes->items, &offset, &element)) {
        struct wire_message m;
        if (wire_decode(WIRE_CHANGE, element, &m) < 0) {
            log_error("the service reports a change that cannot be read");
            r = forget_changed(d, c->notifier);
            break;
        }
        r = take_change(d, c->notifier, &m.change);
    }
    if (changes->items.count && !c->told_ns) {
        c->told_ns = clock_monotonic_ns();
        c->told_position = changes->position;
    }
    if (r == 0)
        r = notifier_then(c->notifier, on_forgotten, d, changes->position);
    if (r < 0) {
        no_memory(d);
        return;
    }
    driver_notices_pending(d);
    (void)client_grant(d->client, tag, session_item_cost(WIRE_CHANGES, changes->items.len));
    if (!changes->items.count)
        on_renew(-1, 0, d);
}

static void on_unsubscribed(void *context, int error, const struct wire_message *reply)
{
    struct driver *d = context;
    struct coherence *c = d->coherence;
    c->tag = 0;
    create_ahead_revoked(d);
    if (reply) {
        log_warning("the service does not report changes any more: %s", strerror(-error));
        end_live(d); /* there have been some that it has not */
    } else {
        lapse(d);
    }
    /* Once more: what was kept is gone, and a service that is only late is worth asking. */
    if (reply && error == -ETIMEDOUT)
        coherence_connected(d);
}

void coherence_connected(struct driver *d)
{
    struct coherence *c = d->coherence;
    if (!c || c->tag || !d->client)
        return;
    c->times.ping_min_us = UINT64_MAX;
    const struct wire_message m = {.type = WIRE_SUBSCRIBE};
    const struct client_call call = {
        .reply = on_unsubscribed, .item = on_changes, .context = d, .lasting = true};
    int r = client_call(d->client, &m, &call, NULL);
    if (r < 0)
        log_warning("changes are not reported: %s", strerror(-r));
}

void coherence_resumed(struct driver *d)
{
    create_ahead_resumed(d);
    if (d->coherence)
        on_renew(-1, 0, d);
}

void coherence_disconnected(struct driver *d)
{
    if (d->coherence)
        d->coherence->told_ns = 0;
    struct coherence *c = d->coherence;
    if (!c)
        return;
    c->tag = 0;
    c->held = 0;
    c->asked = c->silent = false;
    lapse(d);
}

void coherence_replaced(struct driver *d)
{
    if (d->coherence)
        end_live(d);
}

int coherence_new(struct driver *d, struct fuse_session *session)
{
    if (!d->options->cache)
        return 0;
    struct coherence *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->driver = d;
    d->coherence = c;
    c->renew = evtimer_new(d->base, on_renew, d);
    c->expire = evtimer_new(d->base, on_expired, d);
    c->late = evtimer_new(d->base, on_late, d);
    c->again = evtimer_new(d->base, on_again, d);
    if (!c->renew || !c->expire || !c->late || !c->again)
        return -ENOMEM;
    int r = notifier_new(d->base, session, &c->notifier);
    if (r == 0)
        coherence_connected(d);
    return r;
}

void coherence_free(struct driver *d)
{
    struct coherence *c = take_ptr(d->coherence);
    if (!c)
        return;
    notifier_free(c->notifier);
    if (c->renew)
        event_free(c->renew);
    if (c->expire)
        event_free(c->expire);
    if (c->late)
        event_free(c->late);
    if (c->again)
        event_free(c->again);
    free(c);
}
