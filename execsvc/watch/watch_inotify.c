#include "watch/watch_private.h"

#include <stdio.h>
#include <sys/inotify.h>

#define NAME_EVENTS (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO)
#define ALL_EVENTS (NAME_EVENTS | IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_ONLYDIR)

/* --- events -------------------------------------------------------------------- */

static uint32_t kinds_of(uint32_t mask)
{
    return (mask & NAME_EVENTS ? WATCH_NAME : 0) | (mask & IN_MODIFY ? WATCH_CONTENT : 0) |
           (mask & IN_ATTRIB ? WATCH_ATTR : 0) | (mask & IN_OPEN ? WATCH_OPENED : 0) |
           (mask & IN_CLOSE_WRITE ? WATCH_CLOSED_WRITE : 0) |
           (mask & IN_IGNORED ? WATCH_UNWATCHED : 0);
}

/* 0: the watch has been removed, and this was still in the queue. */
static uint64_t key_of(struct watch *w, const struct inotify_event *event)
{
    (void)pthread_mutex_lock(&w->directories_lock);
    struct watched *d = table_get(&w->by_wd, (uint64_t)event->wd);
    uint64_t key = d ? d->key : 0;
    if (d && event->mask & IN_IGNORED) {
        (void)table_take(&w->by_wd, (uint64_t)d->wd);
        d->wd = -1;
    }
    (void)pthread_mutex_unlock(&w->directories_lock);
    return key;
}

static void report(struct watch *w, const struct inotify_event *event, struct bytes name)
{
    if (event->mask & IN_Q_OVERFLOW) {
        watch_report_lost(w);
        return;
    }
    struct watch_event out = {
        .kinds = kinds_of(event->mask), .directory = event->mask & IN_ISDIR, .name = name};
    uint64_t key = key_of(w, event);
    if (!key || !out.kinds)
        return;
    if (name.len) {
        out.dir = key;
    } else {
        out.target = key;
        out.directory = true;
    }
    watch_report(w, &out);
}

size_t inotify_report(struct watch *w, struct bytes raw)
{
    size_t at = 0;
    struct inotify_event event;
    while (raw.len - at >= sizeof event) {
        memcpy(&event, raw.data + at, sizeof event);
        at += sizeof event;
        size_t len = event.len < raw.len - at ? event.len : raw.len - at;
        const uint8_t *name = raw.data + at;
        report(w, &event, bytes_of(name, strnlen((const char *)name, len)));
        at += len;
    }
    return at;
}

/* --- directories --------------------------------------------------------------- */

/* The kernel numbers watches upwards and does not use a number again, so what is still in the
 * queue of a removed watch is not taken for another's. */
static int add_locked(struct watch *w, int wd, uint64_t key)
{
    struct watched *d = table_get(&w->by_key, key);
    struct watched *same = table_get(&w->by_wd, (uint64_t)wd);
    if (same && same == d) {
        d->count++;
        return 0;
    }
    if (same)
        return -EEXIST;
    int r = d && d->wd >= 0 ? -EEXIST : 0;
    struct watched *made = NULL;
    if (r == 0 && !d) {
        d = made = malloc(sizeof *d);
        if (!d)
            r = -ENOMEM;
        else
            *d = (struct watched){.key = key, .wd = -1};
    }
    if (made && r == 0)
        r = table_put(&w->by_key, key, made, NULL);
    if (r == 0)
        r = table_put(&w->by_wd, (uint64_t)wd, d, NULL);
    if (r < 0) {
        if (made)
            (void)table_take(&w->by_key, key);
        free(made);
        (void)inotify_rm_watch(w->fd, wd);
        return r;
    }
    d->wd = wd;
    d->count++;
    return 0;
}

int inotify_directory(struct watch *w, int dir_fd, uint64_t key)
{
    /* Not IN_DONT_FOLLOW: this is a link, but one that leads where the descriptor does. */
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", dir_fd);
    (void)pthread_mutex_lock(&w->directories_lock);
    int wd = inotify_add_watch(w->fd, path, w->mask);
    int r = wd < 0 ? -errno : add_locked(w, wd, key);
    (void)pthread_mutex_unlock(&w->directories_lock);
    return r;
}

void inotify_forget(struct watch *w, uint64_t key)
{
    (void)pthread_mutex_lock(&w->directories_lock);
    struct watched *d = table_get(&w->by_key, key);
    if (d && --d->count == 0) {
        (void)table_take(&w->by_key, key);
        if (d->wd >= 0) {
            (void)table_take(&w->by_wd, (uint64_t)d->wd);
            (void)inotify_rm_watch(w->fd, d->wd);
        }
        free(d);
    }
    (void)pthread_mutex_unlock(&w->directories_lock);
}

/* --- life ---------------------------------------------------------------------- */

int inotify_open(struct watch *w, const struct watch_options *options, struct failure *failure)
{
    w->mode = WATCH_INOTIFY;
    w->mask = ALL_EVENTS | (options->opens ? IN_OPEN : 0);
    w->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (w->fd < 0)
        return failure_set(failure, -errno, "inotify is not to be had: %s", strerror(errno));
    return 0;
}

void inotify_release(struct watch *w)
{
    size_t cursor = 0;
    struct watched *d;
    while ((d = table_next(&w->by_key, &cursor)))
        free(d);
    table_release(&w->by_key);
    table_release(&w->by_wd);
}
