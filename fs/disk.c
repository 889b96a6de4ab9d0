#include "disk_private.h"

#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/table.h"
#include "cache/cache.h"
#include "service_key.h"

/* A segment is said to have been used no more often than this. */
#define TOUCH_NS (60 * NSEC_PER_SEC)

/* Segments that are asked whether they can be gone on with, before a new one is begun. */
#define ADOPT_TRIES 8

static void append(struct jobs *list, struct job *job)
{
    job->next = NULL;
    *list->last = job;
    list->last = &job->next;
}

static struct job *take(struct jobs *list)
{
    struct job *job = list->first;
    if (job) {
        list->first = job->next;
        if (!list->first)
            list->last = &list->first;
    }
    return job;
}

/* --- keys --------------------------------------------------------------------------- */

struct disk_key disk_key_of(const struct wire_attr *attr)
{
    return (struct disk_key){.kind = DISK_CONTENT,
                             .size = attr->size,
                             .words = {attr->ino, attr->generation, (uint64_t)attr->mtime.sec,
                                       attr->mtime.nsec, (uint64_t)attr->ctime.sec,
                                       attr->ctime.nsec}};
}

static struct key_name name_of(const struct disk_key *key)
{
    struct key_name name = {{key->kind, key->size}};
    memcpy(name.words + 2, key->words, sizeof key->words);
    return name;
}

static uint64_t hash_of(const struct key_name *name)
{
    return hash_end(hash_bytes(HASH_START, name, sizeof *name));
}

static struct segment_key segment_key_of(const struct job *job)
{
    return (struct segment_key){.name = bytes_of(&job->name, sizeof job->name),
                                .hash = job->hash,
                                .kind = job->kind == DISK_CONTENT ? SEGMENT_FILE : SEGMENT_LISTING};
}

static void forget_segment(struct disk *d, size_t segment)
{
    (void)pthread_mutex_lock(&d->lock);
    disk_forget_segment_locked(d, segment);
    (void)pthread_mutex_unlock(&d->lock);
}

/* --- reading ------------------------------------------------------------------------ */

static void touch(struct disk *d, struct segment *s)
{
    uint64_t now = clock_monotonic_ns();
    if (s->touched_ns && now - s->touched_ns < TOUCH_NS)
        return;
    s->touched_ns = now;
    cache_used(d->dir, s->name);
}

/* What is not as it should be is not looked for again. */
static void lose(struct disk *d, const struct job *job, int error)
{
    size_t segment;
    (void)pthread_mutex_lock(&d->lock);
    const struct segment_slot *slot = disk_find_locked(d, job->hash, job->len, &segment);
    if (slot && segment == job->segment && slot->unit == job->slot.unit)
        (void)table_take(&d->index, job->hash);
    d->stats.of[job->kind].damaged += error == -EBADMSG;
    (void)pthread_mutex_unlock(&d->lock);
}

static void carry_out_read(struct disk *d, struct job *job)
{
    struct segment *s = d->segments[job->segment];
    if (!s)
        return;
    _cleanup_close_ int fd = -1;
    struct segment_service service;
    struct segment_key key = segment_key_of(job);
    int r = segment_open(d->dir, s->name, &service, &fd);
    if (r == 0)
        r = segment_read(fd, &d->service, &key, &job->slot, job->data);
    job->found = r == 0;
    if (r == -ENOENT)
        forget_segment(d, job->segment); /* removed, by another mount or a person */
    else if (r < 0)
        lose(d, job, r);
    else
        touch(d, s);
}

/* --- writing ------------------------------------------------------------------------ */

static uint64_t segment_size(const struct disk *d)
{
    uint64_t size = d->size_max / 4;
    return size < SEGMENT_SIZE_MAX ? size : SEGMENT_SIZE_MAX;
}

/* Goes on with a segment that an earlier mount began: else each would leave a small one. */
static bool adopt(struct disk *d)
{
    int tries = 0;
    for (size_t i = 0; i < CACHE_SEGMENTS_MAX && tries < ADOPT_TRIES; i++) {
        const struct segment *s = d->segments[i];
        if (!s)
            continue;
        tries++;
        if (segment_adopt(d->dir, s->name, &d->writer) < 0)
            continue;
        if (d->writer.count >= s->count) {
            d->writing = i;
            return true;
        }
        segment_close(&d->writer); /* cut off since it was read */
    }
    return false;
}

/* The segments that are not there any more. */
static void forget_removed(struct disk *d)
{
    for (size_t i = 0; i < CACHE_SEGMENTS_MAX; i++)
        if (d->segments[i] &&
            faccessat(d->dir, d->segments[i]->name, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
            forget_segment(d, i);
}

/* The one used longest ago, while there are too many entries. It stays on disk. */
static void forget_oldest(struct disk *d)
{
    while (d->index.count >= DISK_ENTRIES_MAX) {
        size_t oldest = CACHE_SEGMENTS_MAX;
        /* Those not used in this mount were read in the order of their use, newest first. */
        for (size_t i = 0; i < CACHE_SEGMENTS_MAX; i++)
            if (d->segments[i] && (oldest == CACHE_SEGMENTS_MAX ||
                                   d->segments[i]->touched_ns <= d->segments[oldest]->touched_ns))
                oldest = i;
        forget_segment(d, oldest);
    }
}

static int begin_segment(struct disk *d)
{
    segment_close(&d->writer);
    if (!d->adopted) {
        d->adopted = true;
        if (adopt(d))
            return 0;
    }
    int r = cache_shrink(d->dir, d->size_max, segment_size(d));
    forget_removed(d);
    forget_oldest(d);
    if (r == 0)
        r = segment_make(d->dir, &d->service, &d->writer);
    if (r < 0)
        return r;
    (void)pthread_mutex_lock(&d->lock);
    r = disk_add_segment_locked(d, d->writer.name, NULL, 0, &d->writing);
    if (r == 0)
        d->segments[d->writing]->touched_ns = clock_monotonic_ns();
    (void)pthread_mutex_unlock(&d->lock);
    if (r < 0)
        segment_close(&d->writer);
    return r;
}

static int write_content(struct disk *d, const struct job *job, struct segment_slot *ret)
{
    struct segment_key key = segment_key_of(job);
    struct bytes content = bytes_of(job->data, job->len);
    bool full = d->writer.fd < 0;
    int r = 0;
    if (!full)
        r = segment_append(&d->writer, &d->service, &key, content, segment_size(d), ret, &full);
    if (!full)
        return r;
    /* One that was adopted may have room for less than this. */
    for (int i = 0; full && i < 2; i++) {
        r = begin_segment(d);
        if (r < 0)
            return r;
        r = segment_append(&d->writer, &d->service, &key, content, segment_size(d), ret, &full);
    }
    return r;
}

static void carry_out_write(struct disk *d, const struct job *job)
{
    size_t segment;
    struct segment_slot slot;
    bool paused = clock_monotonic_ns() < d->pause_until_ns;
    if (!paused && disk_find_locked(d, job->hash, job->len, &segment))
        return;
    int r = paused ? -EAGAIN : write_content(d, job, &slot);
    if (r < 0 && !paused) {
        if (!d->warned)
            log_warning("contents of files cannot be kept in %s: %s", d->path, strerror(-r));
        d->warned = true;
        d->pause_until_ns = clock_monotonic_ns() + DISK_PAUSE_MS * NSEC_PER_MSEC;
    }
    (void)pthread_mutex_lock(&d->lock);
    if (r == 0)
        r = d->segments[d->writing] ? disk_add_slot_locked(d, d->writing, &slot) : -ENOENT;
    if (r == 0) {
        d->stats.of[job->kind].written++;
        d->stats.of[job->kind].written_bytes += job->len;
    } else {
        d->stats.unwritten++;
    }
    (void)pthread_mutex_unlock(&d->lock);
}

/* --- beginning and end, on the thread --------------------------------------------------- */

/* Of the directory itself, wherever links lead: the driver would wait for itself. */
static int check_place(const struct disk *d, struct failure *f)
{
    const char *mountpoint = d->mountpoint;
    char link[64], place[PATH_MAX];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", d->dir);
    ssize_t n = mountpoint ? readlink(link, place, sizeof place - 1) : 0;
    if (n < 0)
        return failure_set(f, -errno, "%s: %s", d->path, strerror(errno));
    place[n] = '\0';
    size_t len = mountpoint ? strlen(mountpoint) : 0;
    if (len && strncmp(place, mountpoint, len) == 0 &&
        (place[len] == '/' || place[len] == '\0' || len == 1))
        return failure_set(f, -ELOOP,
                           "%s is under the mountpoint %s, where the mount would hide it", d->path,
                           mountpoint);
    return 0;
}

static int open_directory(struct disk *d, struct failure *f)
{
    int r = cache_open(true, &d->dir, &d->path, f);
    if (r == 0)
        r = check_place(d, f);
    if (r < 0)
        return r;
    r = disk_load(d);
    return r < 0 ? failure_set(f, r, "%s: %s", d->path, strerror(-r)) : 0;
}

/* Nobody else knows of it any more. */
static void release(struct disk *d)
{
    for (size_t i = 0; i < CACHE_SEGMENTS_MAX; i++)
        if (d->segments[i])
            disk_forget_segment_locked(d, i);
    table_release(&d->index);
    for (struct job *job; (job = take(&d->writes));)
        free(job);
    for (struct job *job; (job = take(&d->finished));)
        free(job);
    segment_close(&d->writer);
    close_fd(&d->event_fd);
    close_fd(&d->dir);
    (void)pthread_cond_destroy(&d->told);
    (void)pthread_cond_destroy(&d->wake);
    (void)pthread_mutex_destroy(&d->lock);
    free(d->mountpoint);
    free(d->path);
    free(d);
}

/* --- the thread ---------------------------------------------------------------------- */

/* Hands a read back to the loop. */
static void finish_locked(struct disk *d, struct job *job)
{
    append(&d->finished, job);
    (void)eventfd_write(d->event_fd, 1);
}

static void *run(void *context)
{
    struct disk *d = context;
    struct failure f = {0};
    int opened = open_directory(d, &f);
    (void)pthread_mutex_lock(&d->lock);
    d->opened = true;
    d->failure = f;
    (void)pthread_cond_broadcast(&d->told);
    while (opened == 0) {
        /* Somebody waits for reads. */
        struct job *job = take(&d->reads);
        if (!job && d->stop && (!d->writes.first || clock_monotonic_ns() > d->stop_by_ns))
            break;
        if (!job)
            job = take(&d->writes);
        if (!job) {
            (void)pthread_cond_wait(&d->wake, &d->lock);
            continue;
        }
        bool is_read = job->done;
        d->current = job;
        (void)pthread_mutex_unlock(&d->lock);
        if (is_read)
            carry_out_read(d, job);
        else
            carry_out_write(d, job);
        (void)pthread_mutex_lock(&d->lock);
        d->current = NULL;
        d->stuck = false;
        if (is_read) {
            finish_locked(d, job);
        } else {
            d->write_bytes -= job->len;
            free(job);
        }
    }
    d->ended = true;
    bool orphan = d->orphan;
    (void)pthread_cond_broadcast(&d->told);
    (void)pthread_mutex_unlock(&d->lock);
    if (orphan)
        release(d);
    return NULL;
}

/* --- the loop ------------------------------------------------------------------------- */

static void call_done(const struct job *job)
{
    struct bytes content = bytes_of(job->data, job->len);
    if (job->done)
        job->done(job->context, job->found ? &content : NULL);
}

static void on_finished(evutil_socket_t fd, short what, void *context)
{
    struct disk *d = context;
    eventfd_t value;
    (void)eventfd_read(fd, &value);
    (void)pthread_mutex_lock(&d->lock);
    struct job *job = d->finished.first, *next;
    d->finished.first = NULL;
    d->finished.last = &d->finished.first;
    for (struct job *j = job; j; j = j->next) {
        d->read_bytes -= j->len;
        d->stats.of[j->kind].read += j->found;
        d->stats.of[j->kind].read_bytes += j->found ? j->len : 0;
    }
    (void)pthread_mutex_unlock(&d->lock);
    for (; job; job = next) {
        next = job->next;
        call_done(job);
        free(job);
    }
}

static void watch_reads(struct disk *d)
{
    static const struct timeval timeout = {.tv_sec = DISK_TIMEOUT_MS / 1000,
                                           .tv_usec = DISK_TIMEOUT_MS % 1000 * 1000};
    if (!event_pending(d->timer, EV_TIMEOUT, NULL))
        (void)event_add(d->timer, &timeout);
}

/* Gives up reads that have waited for too long, if there are such. */
static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct disk *d = context;
    struct job given_up = {0};
    (void)pthread_mutex_lock(&d->lock);
    uint64_t now = clock_monotonic_ns();
    struct job *current = d->current && d->current->done ? d->current : NULL;
    const struct job *oldest = current ? current : d->reads.first;
    if (oldest && now - oldest->since_ns >= DISK_TIMEOUT_MS * NSEC_PER_MSEC) {
        d->stuck = d->current;
        if (current) {
            given_up = (struct job){.done = current->done, .context = current->context};
            current->done = NULL;
        }
        for (struct job *job; (job = take(&d->reads));)
            finish_locked(d, job);
    }
    bool more = d->reads.first || (d->current && d->current->done);
    (void)pthread_mutex_unlock(&d->lock);
    if (given_up.done)
        given_up.done(given_up.context, NULL);
    if (more)
        watch_reads(d);
}

static struct job *job_new(const struct disk_key *key)
{
    struct job *job = malloc(sizeof *job + key->size);
    if (!job)
        return NULL;
    *job = (struct job){.name = name_of(key),
                        .kind = key->kind,
                        .len = key->size,
                        .since_ns = clock_monotonic_ns()};
    job->hash = hash_of(&job->name);
    return job;
}

bool disk_has(struct disk *d, const struct disk_key *key)
{
    if (!d)
        return false;
    struct key_name name = name_of(key);
    size_t segment;
    (void)pthread_mutex_lock(&d->lock);
    bool has = !d->stuck && disk_find_locked(d, hash_of(&name), key->size, &segment);
    (void)pthread_mutex_unlock(&d->lock);
    return has;
}

int disk_get(struct disk *d, const struct disk_key *key, disk_done_fn *done, void *context)
{
    if (!d || key->size > SEGMENT_CONTENT_MAX)
        return -ENOENT;
    struct job *job = job_new(key);
    if (!job)
        return -ENOMEM;
    job->done = done;
    job->context = context;
    int r = 0;
    (void)pthread_mutex_lock(&d->lock);
    const struct segment_slot *slot = disk_find_locked(d, job->hash, job->len, &job->segment);
    if (!slot || d->stuck)
        r = -ENOENT;
    else if (d->read_bytes + job->len > DISK_READS_MAX)
        r = -EBUSY;
    if (r == 0) {
        job->slot = *slot;
        d->read_bytes += job->len;
        append(&d->reads, job);
        (void)pthread_cond_signal(&d->wake);
    }
    (void)pthread_mutex_unlock(&d->lock);
    if (r < 0)
        free(job);
    else
        watch_reads(d);
    return r;
}

void disk_put(struct disk *d, const struct disk_key *key, struct bytes content)
{
    assert(content.len == key->size);
    if (!d || content.len > SEGMENT_CONTENT_MAX || disk_has(d, key))
        return;
    struct job *job = job_new(key);
    if (!job)
        return;
    if (content.len)
        memcpy(job->data, content.data, content.len);
    (void)pthread_mutex_lock(&d->lock);
    bool room = !d->ended && d->write_bytes + job->len <= DISK_WRITES_MAX;
    if (room) {
        d->write_bytes += job->len;
        append(&d->writes, job);
        (void)pthread_cond_signal(&d->wake);
    } else {
        d->stats.unwritten++;
    }
    (void)pthread_mutex_unlock(&d->lock);
    if (!room)
        free(job);
}

struct disk_stats disk_stats(struct disk *d)
{
    if (!d)
        return (struct disk_stats){0};
    (void)pthread_mutex_lock(&d->lock);
    struct disk_stats stats = d->stats;
    stats.entries = d->index.count;
    stats.pending = d->write_bytes;
    (void)pthread_mutex_unlock(&d->lock);
    return stats;
}

/* --- beginning and end, for others
 * ------------------------------------------------------------------ */

static int identify(struct disk *d, const struct disk_options *o)
{
    _Static_assert(sizeof d->service.id == SERVICE_KEY_SIZE, "an ID of segments is such a key");
    (void)snprintf(d->service.name, sizeof d->service.name, "%s", o->url);
    return service_key(o->url, o->service_id, d->service.id);
}

int disk_begin(const struct disk_options *options, struct disk **ret)
{
    struct disk *d = calloc(1, sizeof *d);
    if (!d)
        return -ENOMEM;
    d->dir = d->writer.fd = -1;
    d->size_max = options->size_max > DISK_SIZE_MIN ? options->size_max : DISK_SIZE_MIN;
    d->reads.last = &d->reads.first;
    d->writes.last = &d->writes.first;
    d->finished.last = &d->finished.first;
    (void)pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_t clock;
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&d->wake, &clock);
    (void)pthread_cond_init(&d->told, &clock);
    (void)pthread_condattr_destroy(&clock);
    d->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = d->event_fd < 0 ? -errno : identify(d, options);
    if (r == 0 && options->mountpoint && !(d->mountpoint = strdup(options->mountpoint)))
        r = -ENOMEM;
    if (r == 0)
        r = -pthread_create(&d->thread, NULL, run, d);
    if (r < 0) {
        release(d);
        return r;
    }
    *ret = d;
    return 0;
}

static struct timespec time_in(uint32_t ms)
{
    uint64_t ns = clock_monotonic_ns() + ms * NSEC_PER_MSEC;
    return (struct timespec){.tv_sec = (time_t)(ns / NSEC_PER_SEC),
                             .tv_nsec = (long)(ns % NSEC_PER_SEC)};
}

bool disk_wait(struct disk *d, uint32_t ms, struct failure *ret_failure)
{
    const struct timespec until = time_in(ms);
    int r = 0;
    (void)pthread_mutex_lock(&d->lock);
    while (!d->opened && r != ETIMEDOUT)
        r = ms ? pthread_cond_timedwait(&d->told, &d->lock, &until)
               : pthread_cond_wait(&d->told, &d->lock);
    bool opened = d->opened;
    if (opened)
        *ret_failure = d->failure;
    (void)pthread_mutex_unlock(&d->lock);
    return opened;
}

int disk_attach(struct disk *d, struct event_base *base)
{
    d->event = event_new(base, d->event_fd, EV_READ | EV_PERSIST, on_finished, d);
    d->timer = event_new(base, -1, 0, on_timer, d);
    return d->event && d->timer && event_add(d->event, NULL) == 0 ? 0 : -ENOMEM;
}

int disk_open(const struct disk_options *options, struct event_base *base, struct disk **ret,
              struct failure *ret_failure)
{
    struct disk *d;
    struct failure f = {0};
    int r = disk_begin(options, &d);
    if (r < 0)
        return failure_set(ret_failure, r, "%s", strerror(-r));
    (void)disk_wait(d, 0, &f);
    if (f.error == 0 && disk_attach(d, base) < 0)
        (void)failure_set(&f, -ENOMEM, "out of memory");
    if (f.error < 0) {
        *ret_failure = f;
        (void)disk_free(d);
        return f.error;
    }
    *ret = d;
    return 0;
}

/* False: the thread has not ended within wait_ms. */
static bool end_thread_locked(struct disk *d, uint32_t wait_ms)
{
    d->stop = true;
    d->stop_by_ns = clock_monotonic_ns() + DISK_TIMEOUT_MS * NSEC_PER_MSEC;
    (void)pthread_cond_signal(&d->wake);
    const struct timespec until = time_in(wait_ms);
    int r = wait_ms ? 0 : ETIMEDOUT;
    while (!d->ended && r != ETIMEDOUT)
        r = pthread_cond_timedwait(&d->told, &d->lock, &until);
    return d->ended;
}

static bool end(struct disk *d, uint32_t wait_ms)
{
    if (!d)
        return false;
    if (d->event)
        event_free(d->event);
    if (d->timer)
        event_free(d->timer);
    (void)pthread_mutex_lock(&d->lock);
    bool left = !end_thread_locked(d, wait_ms);
    d->orphan = left;
    /* Whoever waits is told, as is who would be by the thread that was left. */
    for (struct job *job; (job = take(&d->reads));)
        append(&d->finished, job);
    struct job *current = left && d->current && d->current->done ? d->current : NULL;
    struct job given_up = {0};
    if (current) {
        given_up = (struct job){.done = current->done, .context = current->context};
        current->done = NULL;
    }
    struct jobs finished = {.last = &finished.first};
    for (struct job *job; (job = take(&d->finished));)
        append(&finished, job);
    pthread_t thread = d->thread;
    (void)pthread_mutex_unlock(&d->lock);
    call_done(&given_up);
    for (struct job *job; (job = take(&finished));) {
        job->found = false;
        call_done(job);
        free(job);
    }
    if (left) {
        (void)pthread_detach(thread);
    } else {
        (void)pthread_join(thread, NULL);
        release(d);
    }
    return left;
}

bool disk_free(struct disk *d)
{
    return end(d, 2 * DISK_TIMEOUT_MS);
}

void disk_leave(struct disk *d)
{
    (void)end(d, 0);
}
