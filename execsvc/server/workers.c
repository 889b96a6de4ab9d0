#include "server/workers.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "base/cleanup.h"
#include "base/table.h"

struct queue {
    struct job *first, **last;
};

/* Jobs of one key: those that run and those that wait for them. */
struct chain {
    uint64_t key;
    unsigned running;
    bool exclusive; /* the one that runs is */
    struct queue waiting;
};

struct lane {
    struct workers *workers;
    struct lane_events events;
    struct queue ready;
    unsigned running;
    struct job *oldest, *newest; /* outstanding, by arrival */
    struct table chains;
    bool closed;
    bool in_ring;
    struct lane *ring_next;
    struct job finish; /* runs events.finish; part of the lane so that closing cannot fail */
};

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t work;
    unsigned count, idle;
    unsigned lanes;
    bool stopping;
    struct lane *ring_first, **ring_last; /* lanes with a job to run and room to run it */
    struct queue done;
    int wake_fd;
    struct event *wake;
    pthread_t threads[WORKERS_MAX];
};

static void queue_init(struct queue *q)
{
    q->first = NULL;
    q->last = &q->first;
}

static void queue_push(struct queue *q, struct job *job)
{
    job->next = NULL;
    *q->last = job;
    q->last = &job->next;
}

static struct job *queue_pop(struct queue *q)
{
    struct job *job = q->first;
    if (!job)
        return NULL;
    q->first = job->next;
    if (!q->first)
        q->last = &q->first;
    return job;
}

void job_free(struct job *job)
{
    if (!job)
        return;
    wire_frame_free(job->frame);
    buffer_release(&job->reply.storage);
    free(job);
}

/* One lane never gets the last thread: what blocks one client must not block another. */
static bool lane_has_room(const struct lane *lane)
{
    return lane->running + 1 < lane->workers->count;
}

static void ring_add_locked(struct lane *lane)
{
    struct workers *w = lane->workers;
    if (lane->in_ring || !lane->ready.first || !lane_has_room(lane))
        return;
    lane->in_ring = true;
    lane->ring_next = NULL;
    *w->ring_last = lane;
    w->ring_last = &lane->ring_next;
}

static struct lane *ring_take_locked(struct workers *w)
{
    struct lane *lane = w->ring_first;
    if (!lane)
        return NULL;
    w->ring_first = lane->ring_next;
    if (!w->ring_first)
        w->ring_last = &w->ring_first;
    lane->in_ring = false;
    return lane;
}

static void make_ready_locked(struct lane *lane, struct job *job)
{
    queue_push(&lane->ready, job);
    ring_add_locked(lane);
}

static void chain_start_locked(struct lane *lane, struct chain *chain, struct job *job)
{
    chain->running++;
    chain->exclusive = job->order == JOB_EXCLUSIVE;
    make_ready_locked(lane, job);
}

static int chain_enter_locked(struct lane *lane, struct job *job)
{
    struct chain *chain = table_get(&lane->chains, job->key);
    if (!chain) {
        chain = calloc(1, sizeof *chain);
        if (!chain)
            return -ENOMEM;
        chain->key = job->key;
        queue_init(&chain->waiting);
        int r = table_put(&lane->chains, job->key, chain, NULL);
        if (r < 0) {
            free(chain);
            return r;
        }
        chain_start_locked(lane, chain, job);
    } else if (job->order == JOB_SHARED && !chain->exclusive && !chain->waiting.first) {
        chain_start_locked(lane, chain, job);
    } else {
        queue_push(&chain->waiting, job);
    }
    return 0;
}

static void chain_leave_locked(struct lane *lane, const struct job *job)
{
    struct chain *chain = table_get(&lane->chains, job->key);
    if (--chain->running > 0)
        return;
    struct job *next = queue_pop(&chain->waiting);
    if (!next) {
        (void)table_take(&lane->chains, job->key);
        free(chain);
        return;
    }
    chain_start_locked(lane, chain, next);
    while (!chain->exclusive && chain->waiting.first && chain->waiting.first->order == JOB_SHARED)
        chain_start_locked(lane, chain, queue_pop(&chain->waiting));
}

static void outstanding_add_locked(struct lane *lane, struct job *job)
{
    job->newer = NULL;
    job->older = lane->newest;
    if (lane->newest)
        lane->newest->newer = job;
    else
        lane->oldest = job;
    lane->newest = job;
}

static void outstanding_remove_locked(struct lane *lane, struct job *job)
{
    if (job->older)
        job->older->newer = job->newer;
    else
        lane->oldest = job->newer;
    if (job->newer)
        job->newer->older = job->older;
    else
        lane->newest = job->older;
}

static void lane_finish_if_idle_locked(struct lane *lane)
{
    if (lane->closed && !lane->oldest)
        make_ready_locked(lane, &lane->finish);
}

/* Wakes one thread for each lane that can go on, as far as there are idle ones. */
static void wake_workers_locked(struct workers *w)
{
    unsigned n = 0;
    for (const struct lane *lane = w->ring_first; lane && n < w->idle; lane = lane->ring_next)
        n++;
    while (n-- > 0)
        (void)pthread_cond_signal(&w->work);
}

static void job_finished_locked(struct job *job)
{
    struct lane *lane = job->lane;
    lane->running--;
    if (job == &lane->finish)
        return;
    switch (job->order) {
    case JOB_SHARED:
    case JOB_EXCLUSIVE:
        chain_leave_locked(lane, job);
        break;
    case JOB_FREE:
    case JOB_BARRIER:
        break;
    }
    outstanding_remove_locked(lane, job);
    if (lane->oldest && lane->oldest->waiting) {
        lane->oldest->waiting = false;
        make_ready_locked(lane, lane->oldest);
    }
    lane_finish_if_idle_locked(lane);
    ring_add_locked(lane);
}

static void *worker_main(void *context)
{
    struct workers *w = context;
    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        struct lane *lane = ring_take_locked(w);
        if (!lane) {
            if (w->stopping && w->lanes == 0)
                break;
            w->idle++;
            (void)pthread_cond_wait(&w->work, &w->lock);
            w->idle--;
            continue;
        }
        struct job *job = queue_pop(&lane->ready);
        lane->running++;
        ring_add_locked(lane);
        (void)pthread_mutex_unlock(&w->lock);

        if (job == &lane->finish)
            lane->events.finish(lane->events.context);
        else
            lane->events.run(lane->events.context, job);

        (void)pthread_mutex_lock(&w->lock);
        job_finished_locked(job);
        if (job == &lane->finish && --w->lanes == 0 && w->stopping)
            (void)pthread_cond_broadcast(&w->work);
        bool wake = !w->done.first;
        queue_push(&w->done, job);
        wake_workers_locked(w);
        if (wake) { /* else the loop has been woken and has not come yet */
            uint64_t one = 1;
            ssize_t ignored = write(w->wake_fd, &one, sizeof one);
            (void)ignored;
        }
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void take_done(struct workers *w)
{
    (void)pthread_mutex_lock(&w->lock);
    struct job *job = w->done.first;
    queue_init(&w->done);
    (void)pthread_mutex_unlock(&w->lock);
    while (job) {
        struct job *next = job->next;
        struct lane *lane = job->lane;
        if (job == &lane->finish) {
            lane->events.finished(lane->events.context);
            table_release(&lane->chains);
            free(lane);
        } else {
            lane->events.done(lane->events.context, job);
        }
        job = next;
    }
}

static void on_wake(evutil_socket_t fd, short what, void *context)
{
    uint64_t count;
    ssize_t ignored = read(fd, &count, sizeof count);
    (void)ignored;
    take_done(context);
}

static void workers_stop(struct workers *w)
{
    (void)pthread_mutex_lock(&w->lock);
    w->stopping = true;
    (void)pthread_cond_broadcast(&w->work);
    (void)pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->count; i++)
        (void)pthread_join(w->threads[i], NULL);
}

int workers_new(struct event_base *base, unsigned count, struct workers **ret)
{
    struct workers *w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    if (count < WORKERS_MIN)
        count = WORKERS_MIN;
    if (count > WORKERS_MAX)
        count = WORKERS_MAX;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->work, NULL);
    w->ring_last = &w->ring_first;
    queue_init(&w->done);
    int r = 0;
    w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wake_fd < 0) {
        r = -errno;
        goto fail;
    }
    w->wake = event_new(base, w->wake_fd, EV_READ | EV_PERSIST, on_wake, w);
    if (!w->wake || event_add(w->wake, NULL) < 0) {
        r = -ENOMEM;
        goto fail;
    }
    /* Signals are for the loop's thread. */
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; w->count < count; w->count++) {
        r = -pthread_create(&w->threads[w->count], NULL, worker_main, w);
        if (r < 0)
            break;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r < 0)
        goto fail;
    *ret = w;
    return 0;
fail:
    workers_free(w);
    return r;
}

void workers_free(struct workers *w)
{
    if (!w)
        return;
    workers_stop(w);
    take_done(w);
    if (w->wake)
        event_free(w->wake);
    close_fd(&w->wake_fd);
    (void)pthread_cond_destroy(&w->work);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}

unsigned workers_count(const struct workers *w)
{
    return w->count;
}

int lane_new(struct workers *w, const struct lane_events *events, struct lane **ret)
{
    struct lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return -ENOMEM;
    lane->workers = w;
    lane->events = *events;
    lane->finish.lane = lane;
    queue_init(&lane->ready);
    (void)pthread_mutex_lock(&w->lock);
    w->lanes++;
    (void)pthread_mutex_unlock(&w->lock);
    *ret = lane;
    return 0;
}

int lane_submit(struct lane *lane, struct job *job)
{
    struct workers *w = lane->workers;
    int r = 0;
    job->lane = lane;
    job->waiting = false;
    (void)pthread_mutex_lock(&w->lock);
    switch (job->order) {
    case JOB_SHARED:
    case JOB_EXCLUSIVE:
        r = chain_enter_locked(lane, job);
        break;
    case JOB_BARRIER:
        job->waiting = lane->oldest != NULL;
        if (!job->waiting)
            make_ready_locked(lane, job);
        break;
    case JOB_FREE:
        make_ready_locked(lane, job);
        break;
    }
    if (r == 0) {
        outstanding_add_locked(lane, job);
        if (w->idle > 0 && w->ring_first)
            (void)pthread_cond_signal(&w->work);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return r;
}

void lane_close(struct lane *lane)
{
    struct workers *w = lane->workers;
    (void)pthread_mutex_lock(&w->lock);
    lane->closed = true;
    lane_finish_if_idle_locked(lane);
    wake_workers_locked(w);
    (void)pthread_mutex_unlock(&w->lock);
}
