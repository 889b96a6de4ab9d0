#include "server/reaper.h"

#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "store/fault.h"
#include "store/index.h"

/* One whose time is over. */
struct ending {
    STAILQ_ENTRY(ending) entry;
    struct reaper *reaper;
    struct index_over over;
    struct exec_removal *removal;
};

STAILQ_HEAD(ending_list, ending);

struct reaper {
    struct store *store;
    struct exec_service *exec;
    struct lane *lane; /* NULL: not begun, or stopped */
    int fd;
    struct event *event;
    pthread_mutex_t lock;
    struct ending_list found; /* under lock */
};

/* On the store's thread. What is lost for want of memory is found again. */
static void on_expired(void *context, const struct index_over *over)
{
    struct reaper *r = context;
    struct ending *x = calloc(1, sizeof *x);
    if (!x)
        return;
    x->reaper = r;
    x->over = *over;
    (void)pthread_mutex_lock(&r->lock);
    STAILQ_INSERT_TAIL(&r->found, x, entry);
    (void)pthread_mutex_unlock(&r->lock);
    const uint64_t one = 1;
    ssize_t ignored = write(r->fd, &one, sizeof one);
    (void)ignored;
}

static struct ending *take_found(struct reaper *r)
{
    (void)pthread_mutex_lock(&r->lock);
    struct ending *x = STAILQ_FIRST(&r->found);
    if (x)
        STAILQ_REMOVE_HEAD(&r->found, entry);
    (void)pthread_mutex_unlock(&r->lock);
    return x;
}

static void on_cleared(void *context, struct exec_removal *removal, uint64_t ended)
{
    struct ending *x = context;
    struct reaper *r = x->reaper;
    struct job *job = removal && r->lane ? calloc(1, sizeof *job) : NULL;
    x->removal = removal;
    if (!removal)
        store_used(r->store, &x->over); /* by a command, as far as anybody knows */
    if (job) {
        fault_point(FAULT_WORKSPACE_CLEARED);
        job->owner = x;
        job->order = JOB_FREE;
        if (lane_submit(r->lane, job) == 0)
            return;
        free(job);
    }
    exec_removal_end(removal);
    free(x);
}

static void on_found(evutil_socket_t fd, short what, void *context)
{
    struct reaper *r = context;
    struct ending *x;
    uint64_t count;
    ssize_t ignored = read(fd, &count, sizeof count);
    (void)ignored;
    while ((x = take_found(r)))
        exec_service_clear_over(r->exec, &x->over, on_cleared, x);
}

/* --- on workers ------------------------------------------------------------------ */

static void run(void *context, struct job *job)
{
    struct reaper *r = context;
    const struct ending *x = job->owner;
    job->result = store_expire(r->store, &x->over);
}

static void done(void *context, struct job *job)
{
    struct ending *x = job->owner;
    if (job->result == 0)
        log_info("workspace %s: its time is over; removed", x->over.name);
    else if (job->result != -EBUSY && job->result != -ENOENT)
        log_warning("workspace %s: its time is over, but it cannot be removed: %s", x->over.name,
                    strerror(-job->result));
    exec_removal_end(x->removal);
    free(x);
    job_free(job);
}

static void finish(void *context)
{
    (void)context;
}

/* --- all ------------------------------------------------------------------------- */

int reaper_new(struct event_base *base, struct store *store, struct reaper **ret)
{
    struct reaper *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->store = store;
    STAILQ_INIT(&r->found);
    (void)pthread_mutex_init(&r->lock, NULL);
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int error = r->fd < 0 ? -errno : 0;
    r->event = error == 0 ? event_new(base, r->fd, EV_READ | EV_PERSIST, on_found, r) : NULL;
    if (!r->event) {
        reaper_free(r);
        return error < 0 ? error : -ENOMEM;
    }
    store_set_expired(store, on_expired, r);
    *ret = r;
    return 0;
}

int reaper_begin(struct reaper *r, struct exec_service *exec, struct workers *workers)
{
    const struct lane_events events = {
        .run = run, .done = done, .finish = finish, .finished = finish, .context = r};
    r->exec = exec;
    int error = lane_new(workers, &events, &r->lane);
    if (error < 0)
        return error;
    return event_add(r->event, NULL) < 0 ? -ENOMEM : 0;
}

void reaper_stop(struct reaper *r)
{
    if (!r)
        return;
    (void)event_del(r->event);
    if (r->lane)
        lane_close(take_ptr(r->lane));
}

void reaper_free(struct reaper *r)
{
    if (!r)
        return;
    struct ending *x;
    while ((x = take_found(r)))
        free(x);
    if (r->event)
        event_free(r->event);
    close_fd(&r->fd);
    (void)pthread_mutex_destroy(&r->lock);
    free(r);
}
