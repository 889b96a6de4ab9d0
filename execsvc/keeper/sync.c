#include "keeper/sync.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "keeper/record.h"

struct sync_job {
    STAILQ_ENTRY(sync_job) entry;
    int directory; /* a copy of our own */
    int error;
    void (*done)(void *context, int error); /* NULL: abandoned. The loop's alone, as the next */
    void *context;
};

STAILQ_HEAD(sync_jobs, sync_job);

struct syncer {
    struct event *finished_event;
    int finished_fd;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    struct sync_jobs waiting;
    struct sync_jobs finished;
    bool stopping;
};

/* --- the thread ------------------------------------------------------------------------------ */

static int sync_file(int directory, const char *name, int flags)
{
    _cleanup_close_ int fd =
        openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    return fsync(fd) < 0 ? -errno : 0;
}

/* From the contents to the names that lead to them. Where nothing has changed since, it costs next
 * to nothing. */
static int sync_directory(int directory)
{
    static const struct {
        const char *name;
        int flags;
    } all[] = {{RECORD_STDOUT, 0}, {RECORD_STDERR, 0},  {RECORD_NAME, 0},
               {".", O_DIRECTORY}, {"..", O_DIRECTORY}, {"../..", O_DIRECTORY}};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        int r = sync_file(directory, all[i].name, all[i].flags);
        if (r < 0)
            return r;
    }
    return 0;
}

static void *run(void *context)
{
    struct syncer *s = context;
    (void)pthread_mutex_lock(&s->lock);
    for (;;) {
        struct sync_job *job = STAILQ_FIRST(&s->waiting);
        if (!job && s->stopping)
            break;
        if (!job) {
            (void)pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        STAILQ_REMOVE_HEAD(&s->waiting, entry);
        (void)pthread_mutex_unlock(&s->lock);
        job->error = sync_directory(job->directory);
        (void)pthread_mutex_lock(&s->lock);
        STAILQ_INSERT_TAIL(&s->finished, job, entry);
        (void)eventfd_write(s->finished_fd, 1);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Signals are the loop's. */
static int start(struct syncer *s)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&s->thread, NULL, run, s);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->started = r == 0;
    if (s->started)
        (void)pthread_setname_np(s->thread, "berth-disk");
    return -r;
}

/* --- the loop -------------------------------------------------------------------------------- */

static void job_free(struct sync_job *job)
{
    close_fd(&job->directory);
    free(job);
}

static void on_finished(evutil_socket_t fd, short what, void *context)
{
    struct syncer *s = context;
    struct sync_jobs finished = STAILQ_HEAD_INITIALIZER(finished);
    struct sync_job *job;
    eventfd_t count;
    (void)eventfd_read(fd, &count);
    (void)pthread_mutex_lock(&s->lock);
    STAILQ_CONCAT(&finished, &s->finished);
    (void)pthread_mutex_unlock(&s->lock);
    while ((job = STAILQ_FIRST(&finished))) {
        STAILQ_REMOVE_HEAD(&finished, entry);
        if (job->done)
            job->done(job->context, job->error);
        job_free(job);
    }
}

int syncer_add(struct syncer *s, int directory, void (*done)(void *context, int error),
               void *context, struct sync_job **ret)
{
    int r = s->started ? 0 : start(s);
    if (r < 0)
        return r;
    struct sync_job *job = calloc(1, sizeof *job);
    if (!job)
        return -ENOMEM;
    *job = (struct sync_job){
        .directory = fcntl(directory, F_DUPFD_CLOEXEC, 3), .done = done, .context = context};
    if (job->directory < 0) {
        r = -errno;
        free(job);
        return r;
    }
    (void)pthread_mutex_lock(&s->lock);
    STAILQ_INSERT_TAIL(&s->waiting, job, entry);
    (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&s->lock);
    *ret = job;
    return 0;
}

void sync_job_abandon(struct sync_job *job)
{
    job->done = NULL;
}

int syncer_new(struct event_base *base, struct syncer **ret)
{
    struct syncer *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    STAILQ_INIT(&s->waiting);
    STAILQ_INIT(&s->finished);
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->wake, NULL);
    s->finished_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->finished_fd >= 0)
        s->finished_event = event_new(base, s->finished_fd, EV_READ | EV_PERSIST, on_finished, s);
    if (!s->finished_event || event_add(s->finished_event, NULL) < 0) {
        int r = s->finished_fd < 0 ? -errno : -ENOMEM;
        syncer_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void syncer_free(struct syncer *s)
{
    struct sync_job *job;
    if (!s)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->stopping = true;
    (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&s->lock);
    if (s->started)
        (void)pthread_join(s->thread, NULL);
    while ((job = STAILQ_FIRST(&s->finished))) {
        STAILQ_REMOVE_HEAD(&s->finished, entry);
        job_free(job);
    }
    if (s->finished_event)
        event_free(s->finished_event);
    close_fd(&s->finished_fd);
    (void)pthread_cond_destroy(&s->wake);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}
