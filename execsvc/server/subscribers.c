#include "server/subscribers.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/queue.h>

#include "base/clock.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "server/connection.h"
#include "store/changes.h"

/* glibc's queue.h has none. */
#define LIST_FOREACH_SAFE(var, head, field, next) \
    for ((var) = LIST_FIRST(head); (var) && ((next) = LIST_NEXT(var, field), true); (var) = (next))

#define LEASE_NS ((WIRE_LEASE_MS + SUBSCRIBER_MARGIN_MS) * NSEC_PER_MSEC)

struct subscriber {
    LIST_ENTRY(subscriber) link;
    struct subscribers *all;
    struct call *call;
    struct file_session *session;
    struct subscription *subscription;
    uint64_t sent, seen;
    uint64_t asked, synced; /* numbers of SYNC */
    uint64_t lease_end_ns;  /* by our clock, the margin included; 0: it has none */
    struct delegation {
        uint32_t slot;
        uint64_t number;
    } delegations[SUBSCRIBER_DELEGATIONS_MAX];
    size_t delegation_count;
    bool returns;  /* has not confirmed yet, and had a lease of an earlier service */
    bool observes; /* nobody waits for it */
};

struct target {
    struct subscriber *subscriber; /* NULL: reached, or gone */
    uint64_t position;
};

struct barrier {
    LIST_ENTRY(barrier) link;
    barrier_done_fn *done;
    void *context;
    struct subscribers *all;
    struct event *deadline;
    uint64_t started_ns;
    bool syncs;  /* waits for `synced`, else for `seen` */
    bool ghosts; /* waits for those that are gone, too */
    bool all_seen;
    size_t waiting; /* targets with a subscriber */
    size_t count;
    struct target targets[];
};

struct subscribers {
    struct event_base *base;
    LIST_HEAD(, subscriber) list;
    LIST_HEAD(, barrier) barriers;
    size_t count;
    uint64_t last_delegation;
    uint64_t gone_end_ns;    /* leases of those that are gone, */
    size_t gone;             /* how many, at most */
    uint64_t earlier_end_ns; /* and of an earlier service's, */
    size_t earlier;          /* of whom so many have not come back */
    int leases_fd;           /* -1: none */
    int event_fd;
    struct event *woken;
};

/* --- leases of those that are gone -------------------------------------------------- */

static uint64_t ghosts_end(const struct subscribers *all)
{
    uint64_t earlier = all->earlier ? all->earlier_end_ns : 0;
    return all->gone_end_ns > earlier ? all->gone_end_ns : earlier;
}

/* Not synchronised: what the death of this process leaves is what counts. */
static void write_leases(struct subscribers *all)
{
    char text[32];
    if (all->leases_fd < 0)
        return;
    if (all->gone_end_ns <= clock_monotonic_ns())
        all->gone = 0;
    int len = snprintf(text, sizeof text, "%20zu\n", all->count + all->gone);
    if (pwrite(all->leases_fd, text, (size_t)len, 0) != len)
        log_warning("how many leases are given could not be noted");
}

void subscribers_remember(struct subscribers *all, int fd)
{
    char text[32] = "";
    if (pread(fd, text, sizeof text - 1, 0) > 0)
        all->earlier = strtoul(text, NULL, 10);
    all->earlier_end_ns = clock_monotonic_ns() + LEASE_NS;
    all->leases_fd = fd;
    write_leases(all);
}

/* --- barriers -------------------------------------------------------------------- */

static void barrier_free(struct barrier *b)
{
    LIST_REMOVE(b, link);
    if (b->deadline)
        event_free(b->deadline);
    free(b);
}

void barrier_cancel(struct barrier *b)
{
    barrier_free(b);
}

static void barrier_end(struct barrier *b)
{
    barrier_done_fn *done = b->done;
    void *context = b->context;
    bool all_seen = b->all_seen;
    barrier_free(b);
    done(context, all_seen);
}

static bool has_reached(const struct subscriber *s, const struct barrier *b,
                        const struct target *target)
{
    return (b->syncs ? s->synced : s->seen) >= target->position;
}

/* s has got further, or (gone) will not get anywhere any more. */
static void notice(struct subscriber *s, bool gone)
{
    struct barrier *b, *next;
    LIST_HEAD(, barrier) finished = LIST_HEAD_INITIALIZER(finished);
    LIST_FOREACH_SAFE(b, &s->all->barriers, link, next)
    {
        for (size_t i = 0; i < b->count; i++)
            if (b->targets[i].subscriber == s && (gone || has_reached(s, b, &b->targets[i]))) {
                b->targets[i].subscriber = NULL;
                b->waiting--;
            }
        if (b->waiting == 0 && !b->ghosts) {
            LIST_REMOVE(b, link);
            LIST_INSERT_HEAD(&finished, b, link);
        }
    }
    /* What is called may cancel others of these. */
    while ((b = LIST_FIRST(&finished)))
        barrier_end(b);
}

/* Before what is noticed of s. */
static void earlier_returned(struct subscribers *all)
{
    struct barrier *b;
    if (!all->earlier || --all->earlier || all->gone_end_ns > clock_monotonic_ns())
        return;
    LIST_FOREACH(b, &all->barriers, link)
    b->ghosts = false;
}

/* --- subscribers ------------------------------------------------------------------ */

static void subscriber_end(struct subscriber *s)
{
    if (!s->observes) {
        s->all->count--;
        write_leases(s->all);
    }
    LIST_REMOVE(s, link);
    subscription_close(s->subscription);
    notice(s, true);
    free(s);
}

static void on_gone(void *context)
{
    struct subscriber *s = context;
    if (s->lease_end_ns > s->all->gone_end_ns)
        s->all->gone_end_ns = s->lease_end_ns;
    s->all->gone += s->lease_end_ns > clock_monotonic_ns();
    subscriber_end(s);
}

static void cut_off(struct subscriber *s, int error, const char *why)
{
    call_reply_error(s->call, error, why);
    subscriber_end(s);
}

static int send_changes(struct subscriber *s, const struct buffer *list, uint32_t count)
{
    const struct wire_message m = {
        .type = WIRE_CHANGES, .changes = {.position = s->sent, .items = wire_list_of(list, count)}};
    return call_send(s->call, &m);
}

/* Sends what is pending, as far as the client's credit goes. */
static void pump(struct subscriber *s)
{
    _cleanup_buffer_ struct buffer list = {0};
    int n;
    while (call_credit(s->call) >= session_item_cost(WIRE_CHANGES, CHANGES_SIZE_MAX)) {
        list.len = 0;
        n = subscription_take(s->subscription, &list, &s->sent);
        if (n == 0)
            return;
        int r = n < 0 ? n : send_changes(s, &list, (uint32_t)n);
        if (r < 0) {
            cut_off(s, r, "the service could not report what changed");
            return;
        }
    }
}

static struct subscriber *find(const struct subscribers *all, const struct file_session *session)
{
    struct subscriber *s;
    LIST_FOREACH(s, &all->list, link)
    if (s->session == session)
        return s;
    return NULL;
}

static bool is_awaited(const struct subscriber *s, uint64_t now)
{
    const struct barrier *b;
    LIST_FOREACH(b, &s->all->barriers, link)
    {
        if (b->syncs || now - b->started_ns < SUBSCRIBER_PATIENCE_MS * NSEC_PER_MSEC)
            continue;
        for (size_t i = 0; i < b->count; i++)
            if (b->targets[i].subscriber == s)
                return true;
    }
    return false;
}

bool subscribers_renew(struct subscribers *all, const struct file_session *session)
{
    struct subscriber *s = find(all, session);
    uint64_t now = clock_monotonic_ns();
    if (!s || s->observes || is_awaited(s, now))
        return false;
    s->lease_end_ns = now + LEASE_NS;
    pump(s); /* what has changed before the answer is told before it */
    return true;
}

void subscribers_leave(struct subscribers *all, const struct file_session *session)
{
    struct subscriber *s = find(all, session);
    if (s)
        s->lease_end_ns = 0;
}

static void on_writable(void *context)
{
    pump(context);
}

static void on_message(void *context, const struct wire_message *m)
{
    struct subscriber *s = context;
    if (m->type == WIRE_CANCEL) {
        const struct wire_message ok = {.type = WIRE_OK};
        call_reply(s->call, &ok);
        subscriber_end(s);
    } else if (m->type == WIRE_SEEN && s->returns) {
        s->returns = false;
        s->seen = m->seen.position <= s->sent ? m->seen.position : s->seen;
        earlier_returned(s->all);
        notice(s, false);
    } else if (m->type == WIRE_SEEN && m->seen.position > s->seen && m->seen.position <= s->sent) {
        s->seen = m->seen.position;
        notice(s, false);
    } else if (m->type == WIRE_SYNCED && m->synced.number == s->asked && s->synced < s->asked) {
        connection_set_writer(s->call->connection, false);
        s->delegation_count = 0;
        s->synced = s->asked;
        notice(s, false);
    }
}

static void wake(void *context)
{
    const struct subscribers *all = context;
    (void)eventfd_write(all->event_fd, 1);
}

static void on_woken(evutil_socket_t fd, short what, void *context)
{
    struct subscribers *all = context;
    eventfd_t value;
    (void)eventfd_read(fd, &value);
    struct subscriber *s, *next;
    LIST_FOREACH_SAFE(s, &all->list, link, next)
    pump(s);
}

void subscribers_open(struct subscribers *all, struct call *call, struct file_session *session,
                      bool observes)
{
    struct subscriber *s = calloc(1, sizeof *s);
    int r = s ? subscription_open(session, wake, all, &s->subscription) : -ENOMEM;
    if (r < 0) {
        free(s);
        call_reply_error(call, r, r == -EBUSY ? "this connection is subscribed already" : NULL);
        return;
    }
    s->all = all;
    s->call = call;
    s->session = session;
    s->observes = observes;
    s->returns = !observes && connection_returns(call->connection);
    LIST_INSERT_HEAD(&all->list, s, link);
    if (!observes) {
        all->count++;
        write_leases(all);
    }
    const struct call_events events = {
        .message = on_message, .writable = on_writable, .gone = on_gone, .context = s};
    call_set_events(call, &events);
    const struct buffer none = {0};
    r = send_changes(s, &none, 0);
    if (r < 0)
        cut_off(s, r, "the client takes no items");
}

/* --- waiting ---------------------------------------------------------------------- */

static void on_deadline(evutil_socket_t fd, short what, void *context);

static struct barrier *barrier_new(struct subscribers *all)
{
    struct barrier *b = calloc(1, sizeof *b + all->count * sizeof *b->targets);
    if (!b)
        return NULL;
    b->all = all;
    b->deadline = evtimer_new(all->base, on_deadline, b);
    if (!b->deadline) {
        free(b);
        return NULL;
    }
    return b;
}

/* When it need not be waited for any more. */
static uint64_t patience_end(const struct subscriber *s, uint64_t started_ns)
{
    uint64_t end = call_connected(s->call) ? started_ns + LEASE_NS : 0;
    return end > s->lease_end_ns ? end : s->lease_end_ns;
}

static void set_deadline(struct barrier *b, uint64_t now)
{
    uint64_t first = b->ghosts ? ghosts_end(b->all) : UINT64_MAX;
    for (size_t i = 0; i < b->count; i++) {
        const struct subscriber *s = b->targets[i].subscriber;
        uint64_t end = s ? patience_end(s, b->started_ns) : UINT64_MAX;
        first = end < first ? end : first;
    }
    uint64_t left = first > now ? first - now : 0;
    const struct timeval tv = {.tv_sec = (time_t)(left / NSEC_PER_SEC),
                               .tv_usec = (suseconds_t)(left % NSEC_PER_SEC / 1000 + 1)};
    (void)evtimer_add(b->deadline, &tv);
}

static void on_deadline(evutil_socket_t fd, short what, void *context)
{
    struct barrier *b = context;
    uint64_t now = clock_monotonic_ns();
    if (b->syncs) {
        log_warning("what was written at a client is not waited for any longer");
        for (size_t i = 0; i < b->count; i++)
            if (b->targets[i].subscriber)
                b->targets[i].subscriber->delegation_count = 0;
        b->all_seen = false;
        barrier_end(b);
        return;
    }
    if (b->ghosts && ghosts_end(b->all) <= now) {
        b->ghosts = false;
        b->all_seen = false;
    }
    bool ghosts = b->ghosts;
    b->ghosts = true; /* it is not to end, and be freed, by the last one that is cut off here */
    for (size_t i = 0; i < b->count; i++) {
        struct subscriber *s = b->targets[i].subscriber;
        if (!s || patience_end(s, b->started_ns) > now)
            continue;
        b->all_seen = false;
        if (call_connected(s->call)) {
            log_warning("a client did not confirm changes in time, and is not told of more");
            cut_off(s, -ETIMEDOUT, "changes were not confirmed in time");
        } else { /* parked; when it comes back it is told before it has a lease again */
            b->targets[i].subscriber = NULL;
            b->waiting--;
        }
    }
    b->ghosts = ghosts;
    if (b->waiting == 0 && !b->ghosts)
        barrier_end(b);
    else
        set_deadline(b, now);
}

void subscribers_wait(struct subscribers *all, const struct file_session *except,
                      barrier_done_fn *done, void *context, struct barrier **ret)
{
    *ret = NULL;
    uint64_t now = clock_monotonic_ns();
    bool ghosts = ghosts_end(all) > now;
    struct barrier *b = NULL;
    struct subscriber *s;
    bool memory = true;
    if (ghosts)
        memory = (b = barrier_new(all)) != NULL;
    LIST_FOREACH(s, &all->list, link)
    {
        uint64_t end = subscription_end(s->subscription);
        if (!memory || s->observes || s->session == except || s->seen >= end ||
            patience_end(s, now) <= now)
            continue;
        if (!b)
            memory = (b = barrier_new(all)) != NULL;
        if (b)
            b->targets[b->count++] = (struct target){.subscriber = s, .position = end};
    }
    if (!b) {
        done(context, memory);
        return;
    }
    b->done = done;
    b->context = context;
    b->started_ns = now;
    b->all_seen = true;
    b->ghosts = ghosts;
    b->waiting = b->count;
    LIST_INSERT_HEAD(&all->barriers, b, link);
    set_deadline(b, now);
    *ret = b;
}

/* --- what was written ---------------------------------------------------------------- */

bool subscribers_are_synced(const struct subscribers *all)
{
    const struct subscriber *s;
    LIST_FOREACH(s, &all->list, link)
    if (!s->observes && connection_is_writer(s->call->connection))
        return false;
    return true;
}

/* One question answers all that wait for it: from when it arrives until its answer does, the
 * client tells its programs nothing that the service does not know. */
static int ask(struct subscriber *s)
{
    if (s->asked > s->synced)
        return 0;
    const struct wire_message m = {.type = WIRE_SYNC, .sync.number = s->asked + 1};
    int r = call_send_kept(s->call, &m);
    if (r == 0)
        s->asked++;
    return r;
}

static const struct delegation *delegation_of(const struct subscriber *s, uint32_t slot)
{
    for (size_t i = 0; i < s->delegation_count; i++)
        if (s->delegations[i].slot == slot)
            return &s->delegations[i];
    return NULL;
}

void subscribers_sync(struct subscribers *all, uint32_t slot, barrier_done_fn *done, void *context,
                      struct barrier **ret)
{
    struct barrier *b = barrier_new(all);
    struct subscriber *s;
    *ret = NULL;
    if (!b) {
        done(context, false);
        return;
    }
    *b = (struct barrier){.done = done,
                          .context = context,
                          .all = all,
                          .deadline = b->deadline,
                          .started_ns = clock_monotonic_ns(),
                          .syncs = true,
                          .all_seen = true};
    LIST_FOREACH(s, &all->list, link)
    {
        if (s->observes ||
            !(slot ? delegation_of(s, slot) != NULL : connection_is_writer(s->call->connection)))
            continue;
        /* One that is away hears of it when it is back, and not before that somebody else makes
         * names. */
        bool asked = ask(s) == 0;
        if (!asked || !call_connected(s->call)) {
            b->all_seen = false;
            s->delegation_count = 0;
        } else {
            b->targets[b->count++] = (struct target){.subscriber = s, .position = s->asked};
        }
    }
    LIST_INSERT_HEAD(&all->barriers, b, link);
    b->waiting = b->count;
    const struct timeval tv = {.tv_sec = SUBSCRIBER_SYNC_MS / 1000};
    if (b->waiting == 0 || evtimer_add(b->deadline, &tv) < 0) {
        b->all_seen = b->all_seen && b->waiting == 0;
        barrier_end(b);
    } else {
        *ret = b;
    }
}

/* --- who alone makes names ----------------------------------------------------------- */

bool subscribers_has(const struct subscribers *all, const struct file_session *session,
                     uint32_t slot, uint64_t number)
{
    const struct subscriber *s = find(all, session);
    const struct delegation *d = s ? delegation_of(s, slot) : NULL;
    return d && (number == 0 || d->number == number);
}

bool subscribers_others_have(const struct subscribers *all, const struct file_session *session,
                             uint32_t slot)
{
    const struct subscriber *s;
    LIST_FOREACH(s, &all->list, link)
    if (s->session != session && delegation_of(s, slot))
        return true;
    return false;
}

bool subscribers_may_delegate(const struct subscribers *all, const struct file_session *session,
                              uint32_t slot)
{
    const struct subscriber *s = find(all, session);
    return s && !s->observes && s->asked == s->synced && call_connected(s->call) &&
           s->delegation_count < SUBSCRIBER_DELEGATIONS_MAX && !delegation_of(s, slot) &&
           connection_delegates(s->call->connection);
}

bool subscribers_delegate(struct subscribers *all, const struct file_session *session,
                          uint32_t slot)
{
    if (!subscribers_may_delegate(all, session, slot))
        return false;
    struct subscriber *s = find(all, session);
    const struct wire_message m = {
        .type = WIRE_DELEGATION, .delegation = {.slot = slot, .number = all->last_delegation + 1}};
    if (call_send(s->call, &m) < 0)
        return false;
    s->delegations[s->delegation_count++] =
        (struct delegation){.slot = slot, .number = ++all->last_delegation};
    /* It may be ahead of the service from now on. */
    connection_set_writer(s->call->connection, true);
    return true;
}

/* --- all --------------------------------------------------------------------------- */

int subscribers_new(struct event_base *base, struct subscribers **ret)
{
    struct subscribers *all = calloc(1, sizeof *all);
    if (!all)
        return -ENOMEM;
    all->base = base;
    all->leases_fd = -1;
    LIST_INIT(&all->list);
    LIST_INIT(&all->barriers);
    all->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = all->event_fd < 0 ? -errno : 0;
    if (r == 0) {
        all->woken = event_new(base, all->event_fd, EV_READ | EV_PERSIST, on_woken, all);
        if (!all->woken || event_add(all->woken, NULL) < 0)
            r = -ENOMEM;
    }
    if (r < 0) {
        subscribers_free(all);
        return r;
    }
    *ret = all;
    return 0;
}

void subscribers_free(struct subscribers *all)
{
    if (!all)
        return;
    if (all->woken)
        event_free(all->woken);
    close_fd(&all->event_fd);
    close_fd(&all->leases_fd);
    free(all);
}

size_t subscribers_count(const struct subscribers *all)
{
    return all->count;
}
