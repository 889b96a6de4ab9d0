#include "watch/watch_private.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "base/log.h"

/* Between two drains of the thread, so that a flood of changes is taken in batches, in which the
 * kernel merges what repeats, instead of one wake-up each. The first change after a rest does not
 * wait. Twice as long each time nobody wanted any of them: else a service would be awake for all
 * that others do on the filesystem. The most is little enough for a bounded queue (16,384 events).
 */
#define GATHER_MS 1
#define GATHER_MAX_MS 8

/* --- reports ------------------------------------------------------------------- */

static bool repeats(const struct watch_event *last, const struct watch_event *event)
{
    return (event->kinds & ~last->kinds) == 0 && event->dir == last->dir &&
           event->target == last->target && event->directory == last->directory &&
           bytes_equal(event->name, last->name);
}

void watch_report(struct watch *w, const struct watch_event *event)
{
    /* Both were read at once, so what the second tells had happened when the first was told. */
    if (repeats(&w->last, event))
        return;
    w->last = *event;
    w->event_count++;
    if (w->events.event(w->events.context, event))
        atomic_store(&w->wanted, true);
}

void watch_report_lost(struct watch *w)
{
    w->overflow_count++;
    watch_report(w, &(struct watch_event){.kinds = WATCH_ALL_LOST});
}

/* --- draining ------------------------------------------------------------------ */

/* Until what was in the queue at the start has been read, which may be less than what is in it
 * then: somebody may go on and on. */
static int read_queue(struct watch *w)
{
    bool first = true;
    size_t left = 0;
    do {
        ssize_t len = read(w->fd, w->buffer, sizeof w->buffer);
        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0)
            return errno == EAGAIN ? 0 : -errno;
        int queued;
        if (first)
            left = ioctl(w->fd, FIONREAD, &queued) < 0 ? SIZE_MAX : (size_t)queued;
        w->last.kinds = 0;
        struct bytes raw = bytes_of(w->buffer, (size_t)len);
        size_t taken = w->mode == WATCH_FANOTIFY ? fanotify_report(w, raw) : inotify_report(w, raw);
        if (!first) {
            left -= taken < left ? taken : left;
            atomic_store(&w->wanted, true); /* more than one buffer: not to be left for long */
        }
        first = false;
    } while (first || left);
    return 0;
}

static void drain_locked(struct watch *w)
{
    uint64_t serves = w->asked;
    uint64_t now = clock_monotonic_ns();
    w->draining = true;
    (void)pthread_mutex_unlock(&w->lock);
    int r = read_queue(w);
    if (r < 0) {
        w->last.kinds = 0;
        log_error("watch: reading the queue of %s: %s", watch_mode_name(w->mode), strerror(-r));
        watch_report_lost(w);
    }
    (void)pthread_mutex_lock(&w->lock);
    w->draining = false;
    w->served = serves;
    w->caught_up_ns = now;
    w->error = r;
    (void)pthread_cond_broadcast(&w->drained);
}

int watch_drain(struct watch *w)
{
    (void)pthread_mutex_lock(&w->lock);
    uint64_t mine = ++w->asked;
    while (w->served < mine && !w->error) {
        if (w->draining)
            (void)pthread_cond_wait(&w->drained, &w->lock);
        else
            drain_locked(w);
    }
    int r = w->error;
    (void)pthread_mutex_unlock(&w->lock);
    return r;
}

static void *thread_main(void *context)
{
    struct watch *w = context;
    struct pollfd fds[] = {{.fd = w->stop_fd, .events = POLLIN}, {.fd = w->fd, .events = POLLIN}};
    int gather = GATHER_MS;
    while (poll(fds, 2, -1) >= 0 || errno == EINTR) {
        if (fds[0].revents || watch_drain(w) < 0)
            break;
        bool wanted = atomic_exchange(&w->wanted, false);
        gather = wanted ? GATHER_MS : gather < GATHER_MAX_MS ? 2 * gather : GATHER_MAX_MS;
        if (poll(fds, 1, gather) > 0)
            break;
    }
    return NULL;
}

int watch_start(struct watch *w)
{
    /* Signals are for the thread that waits for them. */
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = -pthread_create(&w->thread, NULL, thread_main, w);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    w->started = r == 0;
    return r;
}

/* --- life ---------------------------------------------------------------------- */

static int open_queue(struct watch *w, int root_fd, const struct watch_options *options,
                      struct failure *failure)
{
    if (options->mode != WATCH_INOTIFY) {
        int r = fanotify_open(w, root_fd, options, failure);
        if (r == 0 || r == -ENOMEM || options->mode == WATCH_FANOTIFY)
            return r;
        log_info("watch: inotify is used, because %s", failure->text);
    }
    return inotify_open(w, options, failure);
}

int watch_new(int root_fd, const struct watch_options *options, const struct watch_events *events,
              struct watch **ret, struct failure *failure)
{
    struct watch *w = calloc(1, sizeof *w);
    if (!w)
        return failure_set(failure, -ENOMEM, "watching for changes: out of memory");
    w->events = *events;
    w->fd = -1;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->drained, NULL);
    (void)pthread_mutex_init(&w->directories_lock, NULL);
    w->caught_up_ns = clock_monotonic_ns();
    w->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = w->stop_fd < 0 ? failure_set(failure, -errno, "eventfd: %s", strerror(errno))
                           : open_queue(w, root_fd, options, failure);
    if (r < 0) {
        watch_free(w);
        return r;
    }
    *ret = w;
    return 0;
}

void watch_free(struct watch *w)
{
    if (w->started) {
        (void)eventfd_write(w->stop_fd, 1);
        (void)pthread_join(w->thread, NULL);
    }
    close_fd(&w->fd);
    close_fd(&w->stop_fd);
    inotify_release(w);
    (void)pthread_mutex_destroy(&w->directories_lock);
    (void)pthread_cond_destroy(&w->drained);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}

/* --- directories, status ------------------------------------------------------- */

enum watch_mode watch_mode(const struct watch *w)
{
    return w->mode;
}

const char *watch_mode_name(enum watch_mode mode)
{
    switch (mode) {
    case WATCH_AUTO:
        return "auto";
    case WATCH_FANOTIFY:
        return "fanotify";
    case WATCH_INOTIFY:
        return "inotify";
    case WATCH_NONE:
        return "none";
    }
    return "unknown";
}

int watch_directory(struct watch *w, int dir_fd, uint64_t key)
{
    return w->mode == WATCH_FANOTIFY ? fanotify_directory(w, dir_fd)
                                     : inotify_file(w, dir_fd, true, key);
}

void watch_forget_directory(struct watch *w, uint64_t key)
{
    watch_forget(w, key);
}

int watch_file(struct watch *w, int fd, bool directory, uint64_t key)
{
    return w->mode == WATCH_FANOTIFY ? fanotify_directory(w, fd)
                                     : inotify_file(w, fd, directory, key);
}

bool watch_room(struct watch *w, bool directory)
{
    return w->mode == WATCH_FANOTIFY || inotify_room(w, directory);
}

void watch_forget(struct watch *w, uint64_t key)
{
    if (w->mode == WATCH_INOTIFY)
        inotify_forget(w, key);
}

void watch_status(struct watch *w, struct watch_status *ret)
{
    struct pollfd fd = {.fd = w->fd, .events = POLLIN};
    (void)pthread_mutex_lock(&w->lock);
    bool behind = w->draining || poll(&fd, 1, 0) > 0;
    uint64_t caught_up_ns = w->caught_up_ns;
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_mutex_lock(&w->directories_lock);
    uint64_t directories = w->by_wd.count;
    (void)pthread_mutex_unlock(&w->directories_lock);
    *ret = (struct watch_status){
        .mode = w->mode,
        .directories = directories,
        .limit = w->directories_max,
        .refused = w->refused_count,
        .events = w->event_count,
        .own = w->own_count,
        .overflows = w->overflow_count,
        .behind_ns = behind ? clock_monotonic_ns() - caught_up_ns : 0,
    };
}
