#include "server/subscribers.h"

#include <sys/eventfd.h>
#include <sys/queue.h>

#include "base/clock.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "store/changes.h"

/* glibc's queue.h has none. */
#define LIST_FOREACH_SAFE(var, head, field, next) \
    for ((var) = LIST_FIRST(head); (var) && ((next) = LIST_NEXT(var, field), true); (var) = (next))

struct subscriber {
    LIST_ENTRY(subscriber) link;
    struct subscribers *all;
    struct call *call;
    struct file_session *session;
    struct subscription *subscription;
    uint64_t sent, seen;
};

struct target {
    struct subscriber *subscriber; /* NULL: reached, or gone */
    uint64_t position;
};

struct barrier {
    LIST_ENTRY(barrier) link;
    barrier_done_fn *done;
    void *context;
    struct event *deadline;
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
    int event_fd;
    struct event *woken;
};

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

/* s has seen up to its position, or (gone) will not see anything any more. */
static void notice(struct subscriber *s, bool gone)
{
    struct barrier *b, *next;
    LIST_HEAD(, barrier) finished = LIST_HEAD_INITIALIZER(finished);
    LIST_FOREACH_SAFE(b, &s->all->barriers, link, next)
    {
        for (size_t i = 0; i < b->count; i++)
            if (b->targets[i].subscriber == s && (gone || s->seen >= b->targets[i].position)) {
                b->targets[i].subscriber = NULL;
                b->waiting--;
            }
        if (b->waiting == 0) {
            LIST_REMOVE(b, link);
            LIST_INSERT_HEAD(&finished, b, link);
        }
    }
    /* What is called may cancel others of these. */
    while ((b = LIST_FIRST(&finished))) {
        barrier_done_fn *done = b->done;
        void *context = b->context;
        bool all_seen = b->all_seen;
        barrier_free(b);
        done(context, all_seen);
    }
}

/* --- subscribers ------------------------------------------------------------------ */

static void subscriber_end(struct subscriber *s)
{
    s->all->count--;
    LIST_REMOVE(s, link);
    subscription_close(s->subscription);
    notice(s, true);
    free(s);
}

static void on_gone(void *context)
{
    subscriber_end(context);
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
    } else if (m->type == WIRE_SEEN && m->seen.position > s->seen && m->seen.position <= s->sent) {
        s->seen = m->seen.position;
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

void subscribers_open(struct subscribers *all, struct call *call, struct file_session *session)
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
    LIST_INSERT_HEAD(&all->list, s, link);
    all->count++;
    const struct call_events events = {
        .message = on_message, .writable = on_writable, .gone = on_gone, .context = s};
    call_set_events(call, &events);
    const struct buffer none = {0};
    r = send_changes(s, &none, 0);
    if (r < 0)
        cut_off(s, r, "the client takes no items");
}

/* --- waiting ---------------------------------------------------------------------- */

static void on_deadline(evutil_socket_t fd, short what, void *context)
{
    struct barrier *b = context;
    b->all_seen = false;
    /* The last one to be cut off ends the barrier. */
    for (size_t i = 0, left = b->waiting; left > 0; i++) {
        struct subscriber *s = b->targets[i].subscriber;
        if (!s)
            continue;
        left--;
        log_warning("a client did not confirm changes in time, and is not told of more");
        cut_off(s, -ETIMEDOUT, "changes were not confirmed in time");
    }
}

void subscribers_wait(struct subscribers *all, const struct file_session *except,
                      barrier_done_fn *done, void *context, struct barrier **ret)
{
    *ret = NULL;
    struct barrier *b = NULL;
    struct subscriber *s;
    bool memory = true;
    LIST_FOREACH(s, &all->list, link)
    {
        uint64_t end = subscription_end(s->subscription);
        if (s->session == except || s->seen >= end)
            continue;
        if (!b)
            b = calloc(1, sizeof *b + all->count * sizeof *b->targets);
        if (!b) {
            memory = false;
            break;
        }
        b->targets[b->count++] = (struct target){.subscriber = s, .position = end};
    }
    if (b) {
        b->deadline = evtimer_new(all->base, on_deadline, b);
        const unsigned ms = WIRE_LEASE_MS + SUBSCRIBER_MARGIN_MS;
        const struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
        if (!b->deadline || evtimer_add(b->deadline, &tv) < 0) {
            if (b->deadline)
                event_free(b->deadline);
            free(take_ptr(b));
            memory = false;
        }
    }
    if (!b) {
        done(context, memory);
        return;
    }
    b->done = done;
    b->context = context;
    b->all_seen = true;
    b->waiting = b->count;
    LIST_INSERT_HEAD(&all->barriers, b, link);
    *ret = b;
}

/* --- all --------------------------------------------------------------------------- */

int subscribers_new(struct event_base *base, struct subscribers **ret)
{
    struct subscribers *all = calloc(1, sizeof *all);
    if (!all)
        return -ENOMEM;
    all->base = base;
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
    free(all);
}

size_t subscribers_count(const struct subscribers *all)
{
    return all->count;
}
