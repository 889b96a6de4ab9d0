#include "server/lock_waits.h"

#include "base/table.h"

struct lock_wait {
    TAILQ_ENTRY(lock_wait) link;
    struct lock_queue *queue;
    struct call *call;
    struct job *job; /* NULL while it is being tried */
    bool due;        /* to be tried */
};

/* Those that wait for locks on one node's file, by arrival. */
struct lock_queue {
    TAILQ_HEAD(, lock_wait) waits;
    struct lock_waits *owner;
    uint64_t node;
    bool trying; /* one of them */
};

struct lock_waits {
    struct event *tick;
    struct table queues; /* node -> struct lock_queue */
    size_t count;
};

static void set_tick(struct lock_waits *w)
{
    uint64_t ms = LOCK_WAITS_TICK_MS * (1 + w->count / LOCK_WAITS_PER_TICK);
    struct timeval t = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    if (w->count > 0 && !event_pending(w->tick, EV_TIMEOUT, NULL))
        (void)event_add(w->tick, &t);
}

static void wait_free(struct lock_wait *wait)
{
    struct lock_queue *q = wait->queue;
    TAILQ_REMOVE(&q->waits, wait, link);
    q->owner->count--;
    if (TAILQ_EMPTY(&q->waits)) {
        (void)table_take(&q->owner->queues, q->node);
        free(q);
    }
    if (wait->call->connection)
        connection_count_lock_waits(wait->call->connection, -1);
    wait->call->wait = NULL;
    free(wait);
}

/* Tries the first that is due; its end leads to the next. */
static void try_next(struct lock_queue *q)
{
    struct lock_wait *wait;
    TAILQ_FOREACH(wait, &q->waits, link)
    if (wait->due && wait->job)
        break;
    if (!wait || q->trying)
        return;
    struct call *call = wait->call;
    wait->due = false;
    if (lane_submit(connection_lane(call->connection), wait->job) < 0)
        return; /* no memory now; the timer comes again */
    call->job = take_ptr(wait->job);
    q->trying = true;
}

static void queue_due(struct lock_queue *q)
{
    struct lock_wait *wait;
    TAILQ_FOREACH(wait, &q->waits, link)
    wait->due = true; /* also what is being tried, which may have come too early */
    try_next(q);
}

void lock_wait_end(struct lock_wait *wait)
{
    if (!wait)
        return;
    struct lock_queue *q = wait->queue;
    bool last = TAILQ_NEXT(wait, link) == NULL && TAILQ_FIRST(&q->waits) == wait;
    if (!wait->job)
        q->trying = false;
    wait_free(wait);
    if (!last)
        try_next(q);
}

static void on_message(void *context, const struct wire_message *message)
{
    struct lock_wait *wait = context;
    struct call *call = wait->call;
    if (message->type != WIRE_CANCEL)
        return;
    call->cancelled = true;
    if (!wait->job)
        return; /* the attempt that runs decides */
    job_free(wait->job);
    wait->job = NULL;
    wait_free(wait);
    call_reply_error(call, -ECANCELED, NULL);
}

static void on_gone(void *context)
{
    struct lock_wait *wait = context;
    job_free(wait->job);
    wait_free(wait);
}

static void on_tick(evutil_socket_t fd, short what, void *context)
{
    struct lock_waits *w = context;
    lock_waits_unlocked(w, REPLY_UNLOCKED_ANY);
    set_tick(w);
}

int lock_waits_new(struct event_base *base, struct lock_waits **ret)
{
    struct lock_waits *w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    w->tick = event_new(base, -1, 0, on_tick, w);
    if (!w->tick) {
        free(w);
        return -ENOMEM;
    }
    *ret = w;
    return 0;
}

void lock_waits_free(struct lock_waits *w)
{
    if (!w)
        return;
    event_free(w->tick);
    table_release(&w->queues);
    free(w);
}

size_t lock_waits_count(const struct lock_waits *w)
{
    return w->count;
}

static struct lock_wait *wait_new(struct lock_waits *w, struct call *call, uint64_t node)
{
    struct lock_wait *wait = calloc(1, sizeof *wait);
    if (!wait)
        return NULL;
    struct lock_queue *q = table_get(&w->queues, node);
    if (!q) {
        q = calloc(1, sizeof *q);
        if (!q || table_put(&w->queues, node, q, NULL) < 0) {
            free(q);
            free(wait);
            return NULL;
        }
        TAILQ_INIT(&q->waits);
        q->owner = w;
        q->node = node;
    }
    wait->queue = q;
    wait->call = call;
    call->wait = wait;
    TAILQ_INSERT_TAIL(&q->waits, wait, link);
    w->count++;
    connection_count_lock_waits(call->connection, 1);
    static const struct call_events events = {.message = on_message, .gone = on_gone};
    call->events = events;
    call->events.context = wait;
    return wait;
}

bool lock_waits_keep(struct lock_waits *w, struct call *call, struct job *job)
{
    const struct wire_message *m = &job->frame->message;
    if (m->type != WIRE_LOCK_SET || !(m->lock_set.flags & WIRE_LOCK_WAIT) ||
        job->result != -EAGAIN || !connection_answers(call->connection))
        return false;
    struct lock_wait *wait = call->wait;
    if (call->cancelled) {
        job->result = -ECANCELED;
        return false;
    }
    if (!wait && (w->count >= LOCK_WAITS_MAX ||
                  connection_count_lock_waits(call->connection, 0) >= WIRE_LOCK_WAITS_MAX)) {
        job->result = -ENOLCK;
        return false;
    }
    bool tried = wait;
    if (!wait)
        wait = wait_new(w, call, m->lock_set.node);
    if (!wait) {
        job->result = -ENOMEM;
        return false;
    }
    wait->job = job;
    if (tried)
        wait->queue->trying = false;
    try_next(wait->queue);
    set_tick(w);
    return true;
}

void lock_waits_unlocked(struct lock_waits *w, uint64_t node)
{
    if (node != REPLY_UNLOCKED_ANY) {
        struct lock_queue *q = table_get(&w->queues, node);
        if (q)
            queue_due(q);
        return;
    }
    size_t cursor = 0;
    struct lock_queue *q;
    while ((q = table_next(&w->queues, &cursor)))
        queue_due(q);
}
