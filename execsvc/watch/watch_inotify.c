#include "watch/watch_private.h"

#include <stdio.h>
#include <sys/inotify.h>

#define NAME_EVENTS (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO)
#define ALL_EVENTS (NAME_EVENTS | IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_ONLYDIR)

/* --- events -------------------------------------------------------------------- */

static uint32_t kinds_of(uint32_t mask)
{
    return (mask & NAME_EVENTS ? WATCH_NAME : 0) | (mask & IN_MODIFY ? WATCH_CONTENT : 0) |
           (mask & (IN_ATTRIB | IN_MOVE_SELF) ? WATCH_ATTR : 0) |
           (mask & IN_OPEN ? WATCH_OPENED : 0) | (mask & IN_CLOSE_WRITE ? WATCH_CLOSED_WRITE : 0) |
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
    if (name.len)
        out.dir = key;
    else
        out.target = key;
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

static bool room_locked(const struct watch *w, bool directory)
{
    uint64_t max = w->directories_max;
    return w->by_wd.count < (directory ? max : max - max / 4);
}

bool inotify_room(struct watch *w, bool directory)
{
    (void)pthread_mutex_lock(&w->directories_lock);
    bool room = room_locked(w, directory);
    (void)pthread_mutex_unlock(&w->directories_lock);
    if (!room)
        w->refused_count++;
    return room;
}

int inotify_file(struct watch *w, int fd, bool directory, uint64_t key)
{
    /* Not IN_DONT_FOLLOW: this is a link, but one that leads where the descriptor does. */
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    (void)pthread_mutex_lock(&w->directories_lock);
    int r = room_locked(w, directory) || table_get(&w->by_key, key) ? 0 : -ENOSPC;
    if (r == 0) {
        int wd = inotify_add_watch(w->fd, path, directory ? w->mask : w->file_mask);
        r = wd < 0 ? -errno : add_locked(w, wd, key);
    }
    (void)pthread_mutex_unlock(&w->directories_lock);
    if (r == -ENOSPC)
        w->refused_count++;
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

/* UINT64_MAX: not told. */
static uint64_t limit_in(const char *file)
{
    unsigned long long limit = UINT64_MAX;
    FILE *f = fopen(file, "re");
    if (f && fscanf(f, "%llu", &limit) != 1)
        limit = UINT64_MAX;
    if (f)
        (void)fclose(f);
    return limit;
}

uint64_t watch_user_limit(void)
{
    /* The second is that of the user namespace, where there are several. */
    uint64_t one = limit_in("/proc/sys/fs/inotify/max_user_watches"),
             two = limit_in("/proc/sys/user/max_inotify_watches"), least = one < two ? one : two;
    return least == UINT64_MAX ? 0 : least;
}

int inotify_open(struct watch *w, const struct watch_options *options, struct failure *failure)
{
    w->mode = WATCH_INOTIFY;
    uint64_t limit = watch_user_limit();
    w->directories_max = limit ? WATCH_SHARE(limit) : UINT64_MAX;
    uint32_t opens = options->opens ? IN_OPEN : 0;
    w->mask = options->files ? NAME_EVENTS | IN_ATTRIB | IN_MODIFY | IN_MOVE_SELF | IN_ONLYDIR
                             : ALL_EVENTS | opens;
    w->file_mask = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_MOVE_SELF | opens;
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
