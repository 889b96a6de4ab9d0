#include "stop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "base/log.h"
#include "mount.h"

/* After a lazy unmount of a busy mount, how long the driver still answers those inside. */
#define LINGER_SECONDS 1

enum { SIGNAL_COUNT = 3 };

struct stop {
    struct driver *driver;
    struct event *signals[SIGNAL_COUNT];
    struct event *unmounted;
    struct event *linger;
    int event_fd;
    uint32_t minor;
    bool running;
    pthread_t thread;
    bool lazy;  /* written by the thread before it signals event_fd */
    int result; /* as lazy */
};

/* Blocks until the kernel has let go of the mount, which takes the driver's answers. */
static void *unmount_thread(void *argument)
{
    struct stop *s = argument;
    s->result = mount_remove(s->driver->mountpoint, s->minor, false);
    if (s->result < 0) {
        s->lazy = true;
        s->result = mount_remove(s->driver->mountpoint, s->minor, true);
    }
    (void)eventfd_write(s->event_fd, 1);
    return NULL;
}

static void on_unmounted(evutil_socket_t fd, short what, void *context)
{
    struct stop *s = context;
    (void)pthread_join(s->thread, NULL);
    s->running = false;
    (void)event_del(s->unmounted);
    if (s->result < 0)
        log_error("cannot unmount %s: %s", s->driver->mountpoint, strerror(-s->result));
    else if (s->lazy)
        log_warning("%s was in use; programs in it lose it now", s->driver->mountpoint);
    /* An ordinary end comes from the kernel, through the device; this is for a lazy unmount,
     * after which the kernel waits for the last user. */
    struct timeval tv = {.tv_sec = LINGER_SECONDS};
    (void)event_add(s->linger, &tv);
}

static void on_linger(evutil_socket_t fd, short what, void *context)
{
    struct stop *s = context;
    driver_end(s->driver, s->result);
}

static void on_signal(evutil_socket_t number, short what, void *context)
{
    struct stop *s = context;
    if (s->running) {
        /* The second time it is meant: whoever waits for us gets an error. */
        log_warning("stopping at once");
        (void)mount_abort(s->minor);
        return;
    }
    log_info("unmounting %s", s->driver->mountpoint);
    s->running = true;
    if (pthread_create(&s->thread, NULL, unmount_thread, s) != 0) {
        s->running = false;
        s->result = mount_remove(s->driver->mountpoint, s->minor, true);
        driver_end(s->driver, s->result);
    }
}

int stop_watch(struct driver *d, uint32_t minor, struct failure *ret_failure)
{
    static const int numbers[SIGNAL_COUNT] = {SIGTERM, SIGINT, SIGHUP};
    struct stop *s = calloc(1, sizeof *s);
    if (!s)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    d->stop = s;
    s->driver = d;
    s->minor = minor;
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->event_fd >= 0)
        s->unmounted = event_new(d->base, s->event_fd, EV_READ | EV_PERSIST, on_unmounted, s);
    s->linger = event_new(d->base, -1, 0, on_linger, s);
    bool ok = s->unmounted && s->linger && event_add(s->unmounted, NULL) == 0;
    for (size_t i = 0; ok && i < SIGNAL_COUNT; i++) {
        s->signals[i] = evsignal_new(d->base, numbers[i], on_signal, s);
        ok = s->signals[i] && event_add(s->signals[i], NULL) == 0;
    }
    return ok ? 0 : failure_set(ret_failure, -ENOMEM, "cannot watch signals");
}

void stop_free(struct driver *d)
{
    struct stop *s = d->stop;
    if (!s)
        return;
    if (s->running)
        (void)pthread_join(s->thread, NULL);
    for (size_t i = 0; i < SIGNAL_COUNT; i++)
        if (s->signals[i])
            event_free(s->signals[i]);
    if (s->unmounted)
        event_free(s->unmounted);
    if (s->linger)
        event_free(s->linger);
    close_fd(&s->event_fd);
    free(s);
    d->stop = NULL;
}
