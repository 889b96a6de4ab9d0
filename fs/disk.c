#include "disk.h"

#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
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

/* A segment is said to have been used no more often than this. */
#define TOUCH_NS (60 * NSEC_PER_SEC)

/* Segments that are asked whether they can be gone on with, before a new one is begun. */
#define ADOPT_TRIES 8

/* What a key is made of, in the form that is hashed. */
struct key_name {
    uint64_t words[8];
};

struct job {
    struct job *next;
    struct key_name name;
    uint64_t hash;
    enum disk_kind kind;
    uint64_t since_ns;
    disk_done_fn *done; /* NULL: a content to write; or nobody waits any more */
    void *context;
    size_t segment; /* of reads: where it is, */
    struct segment_slot slot;
    bool found; /* and that it was there */
    size_t len;
    uint8_t data[];
};

struct jobs {
    struct job *first, **last;
};

struct segment {
    char name[SEGMENT_NAME_SIZE];
    uint64_t touched_ns;
    struct segment_slot *slots; /* in memory; their order is not that of the file */
    size_t count, allocated;
};

struct disk {
    int dir;
    char *path;
    uint64_t size_max;
    int64_t used_ms; /* the last time before the mount; 0: nothing is there */
    struct segment_service service;
    struct event *event; /* reads that are done */
    struct event *timer; /* while there are reads */
    int event_fd;
    pthread_t thread;

    /* Of the thread, once it runs. */
    struct segment_writer writer;
    size_t writing; /* index of its segment */
    bool adopted;   /* it was tried to go on with one that is there */
    bool warned;
    uint64_t pause_until_ns;

    pthread_mutex_t lock; /* of all below; the index is changed by the thread alone */
    pthread_cond_t wake;
    struct segment *segments[CACHE_SEGMENTS_MAX];
    struct table index; /* hash of key -> place_of(segment, slot) */
    struct jobs reads, writes, finished;
    size_t read_bytes, write_bytes; /* in memory */
    struct job *current;            /* being carried out */
    bool stuck;                     /* for too long */
    bool stop, ended;
    uint64_t stop_by_ns;
    struct disk_stats stats;
};

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

/* --- the index ------------------------------------------------------------------------ */

static void *place_of(size_t segment, size_t slot)
{
    /* A number, where the table wants a pointer that is not NULL. */
    return (void *)(uintptr_t)(segment * SEGMENT_SLOTS_MAX + slot + 1); /* NOLINT */
}

static const struct segment_slot *slot_at(const struct disk *d, void *place, size_t *ret_segment)
{
    size_t number = (size_t)(uintptr_t)place - 1;
    *ret_segment = number / SEGMENT_SLOTS_MAX;
    return &d->segments[*ret_segment]->slots[number % SEGMENT_SLOTS_MAX];
}

/* What a key leads to, or NULL. A slot of another size belongs to another key. */
static const struct segment_slot *find_locked(const struct disk *d, uint64_t hash, uint64_t size,
                                              size_t *ret_segment)
{
    void *place = table_get(&d->index, hash);
    const struct segment_slot *slot = place ? slot_at(d, place, ret_segment) : NULL;
    return slot && slot->size == size ? slot : NULL;
}

static int add_slot_locked(struct disk *d, size_t segment, const struct segment_slot *slot)
{
    struct segment *s = d->segments[segment];
    assert(s->count < SEGMENT_SLOTS_MAX);
    if (s->count == s->allocated) {
        size_t more = s->allocated ? s->allocated * 2 : 64;
        struct segment_slot *slots = realloc(s->slots, more * sizeof *slots);
        if (!slots)
            return -ENOMEM;
        s->slots = slots;
        s->allocated = more;
    }
    int r = table_put(&d->index, slot->hash, place_of(segment, s->count), NULL);
    if (r == 0)
        s->slots[s->count++] = *slot;
    return r;
}

static void forget_segment_locked(struct disk *d, size_t segment)
{
    struct segment *s = d->segments[segment];
    for (size_t i = 0; i < s->count; i++)
        if (table_get(&d->index, s->slots[i].hash) == place_of(segment, i))
            (void)table_take(&d->index, s->slots[i].hash);
    free(s->slots);
    free(s);
    d->segments[segment] = NULL;
}

static void forget_segment(struct disk *d, size_t segment)
{
    (void)pthread_mutex_lock(&d->lock);
    forget_segment_locked(d, segment);
    (void)pthread_mutex_unlock(&d->lock);
}

/* Takes over slots, also on failure. *ret: its index. -ENOSPC: there are too many; -ENOMEM. */
static int add_segment_locked(struct disk *d, const char *name, struct segment_slot *slots,
                              size_t count, size_t *ret)
{
    size_t at = 0;
    while (at < CACHE_SEGMENTS_MAX && d->segments[at])
        at++;
    struct segment *s = at < CACHE_SEGMENTS_MAX ? calloc(1, sizeof *s) : NULL;
    if (!s) {
        free(slots);
        return at < CACHE_SEGMENTS_MAX ? -ENOMEM : -ENOSPC;
    }
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    s->slots = slots;
    s->count = s->allocated = count;
    d->segments[at] = s;
    /* Segments used later come first, and of one what was written last: it replaced what was
     * damaged. */
    for (size_t i = count; i > 0; i--) {
        if (table_get(&d->index, slots[i - 1].hash))
            continue;
        int r = table_put(&d->index, slots[i - 1].hash, place_of(at, i - 1), NULL);
        if (r < 0) {
            forget_segment_locked(d, at);
            return r;
        }
    }
    *ret = at;
    return 0;
}

static int64_t ms_of(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000 + t->tv_nsec / 1000000;
}

/* One file of the directory, if it is of our service. What cannot be read is left out. -ENOMEM. */
static int load_segment(struct disk *d, const char *name, int64_t used_ms)
{
    _cleanup_close_ int fd = -1;
    struct segment_service service;
    int r = segment_open(d->dir, name, &service, &fd);
    if (r == -EBADMSG)
        segment_discard(d->dir, name);
    if (r < 0 || memcmp(service.id, d->service.id, sizeof service.id) != 0)
        return 0;
    struct segment_slot *slots;
    uint32_t count;
    size_t index;
    r = segment_slots(fd, &slots, &count);
    if (r == 0)
        r = add_segment_locked(d, name, slots, count, &index);
    if (r == 0 && used_ms > d->used_ms)
        d->used_ms = used_ms;
    return r == -ENOMEM ? r : 0;
}

static int load(struct disk *d)
{
    _cleanup_cache_list_ struct cache_list list = {0};
    int r = cache_list(d->dir, &list);
    for (size_t i = list.count; r == 0 && i > 0 && d->index.count < DISK_ENTRIES_MAX; i--)
        r = load_segment(d, list.segments[i - 1].name, ms_of(&list.segments[i - 1].used));
    return r;
}

int64_t disk_age_ms(const struct disk *d)
{
    struct timespec now;
    if (!d || !d->used_ms)
        return -1;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    int64_t age = ms_of(&now) - d->used_ms;
    return age > 0 ? age : 0;
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
    const struct segment_slot *slot = find_locked(d, job->hash, job->len, &segment);
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
    r = add_segment_locked(d, d->writer.name, NULL, 0, &d->writing);
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
    if (!paused && find_locked(d, job->hash, job->len, &segment))
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
        r = d->segments[d->writing] ? add_slot_locked(d, d->writing, &slot) : -ENOENT;
    if (r == 0) {
        d->stats.of[job->kind].written++;
        d->stats.of[job->kind].written_bytes += job->len;
    } else {
        d->stats.unwritten++;
    }
    (void)pthread_mutex_unlock(&d->lock);
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
    (void)pthread_mutex_lock(&d->lock);
    for (;;) {
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
    (void)pthread_cond_signal(&d->wake);
    (void)pthread_mutex_unlock(&d->lock);
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
    bool has = !d->stuck && find_locked(d, hash_of(&name), key->size, &segment);
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
    const struct segment_slot *slot = find_locked(d, job->hash, job->len, &job->segment);
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
    bool room = d->write_bytes + job->len <= DISK_WRITES_MAX;
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

/* --- beginning and end ------------------------------------------------------------------ */

/* Of what the service says of itself and of the way to it: another service that takes the ID for
 * its own finds and leaves nothing here. */
static int identify(struct disk *d, const struct disk_options *o)
{
    _cleanup_buffer_ struct buffer b = {0};
    int r = buffer_append(&b, o->service_id, sizeof o->service_id);
    if (r == 0)
        r = buffer_append(&b, o->url, strlen(o->url));
    if (r == 0 && EVP_Digest(b.data, b.len, d->service.id, NULL, EVP_sha256(), NULL) != 1)
        r = -EIO;
    (void)snprintf(d->service.name, sizeof d->service.name, "%s", o->url);
    return r;
}

/* Of the directory itself, wherever links lead: the driver would wait for itself. */
static int check_place(const struct disk *d, const char *mountpoint, struct failure *f)
{
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

static void release(struct disk *d)
{
    for (size_t i = 0; i < CACHE_SEGMENTS_MAX; i++)
        if (d->segments[i])
            forget_segment_locked(d, i);
    table_release(&d->index);
    for (struct job *job; (job = take(&d->writes));)
        free(job);
    segment_close(&d->writer);
    if (d->event)
        event_free(d->event);
    if (d->timer)
        event_free(d->timer);
    close_fd(&d->event_fd);
    close_fd(&d->dir);
    (void)pthread_cond_destroy(&d->wake);
    (void)pthread_mutex_destroy(&d->lock);
    free(d->path);
    free(d);
}

static int start(struct disk *d, struct event_base *base)
{
    d->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->event_fd < 0)
        return -errno;
    d->event = event_new(base, d->event_fd, EV_READ | EV_PERSIST, on_finished, d);
    d->timer = event_new(base, -1, 0, on_timer, d);
    if (!d->event || !d->timer || event_add(d->event, NULL) < 0)
        return -ENOMEM;
    return -pthread_create(&d->thread, NULL, run, d);
}

int disk_open(const struct disk_options *options, struct event_base *base, struct disk **ret,
              struct failure *ret_failure)
{
    struct disk *d = calloc(1, sizeof *d);
    if (!d)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    d->dir = d->event_fd = d->writer.fd = -1;
    d->size_max = options->size_max > DISK_SIZE_MIN ? options->size_max : DISK_SIZE_MIN;
    d->reads.last = &d->reads.first;
    d->writes.last = &d->writes.first;
    d->finished.last = &d->finished.first;
    (void)pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_t clock;
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&d->wake, &clock);
    (void)pthread_condattr_destroy(&clock);
    int r = cache_open(true, &d->dir, &d->path, ret_failure);
    if (r == 0)
        r = check_place(d, options->mountpoint, ret_failure);
    if (r < 0) {
        release(d);
        return r;
    }
    r = identify(d, options);
    if (r == 0)
        r = load(d);
    if (r == 0)
        r = start(d, base);
    if (r < 0) {
        (void)failure_set(ret_failure, r, "%s: %s", d->path, strerror(-r));
        release(d);
        return r;
    }
    *ret = d;
    return 0;
}

/* False: the thread has not ended in time. */
static bool end_thread_locked(struct disk *d)
{
    d->stop = true;
    d->stop_by_ns = clock_monotonic_ns() + DISK_TIMEOUT_MS * NSEC_PER_MSEC;
    (void)pthread_cond_signal(&d->wake);
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 2 * DISK_TIMEOUT_MS / 1000;
    int r = 0;
    while (!d->ended && r != ETIMEDOUT)
        r = pthread_cond_timedwait(&d->wake, &d->lock, &until);
    return d->ended;
}

bool disk_free(struct disk *d)
{
    if (!d)
        return false;
    (void)pthread_mutex_lock(&d->lock);
    bool left = !end_thread_locked(d);
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
    (void)pthread_mutex_unlock(&d->lock);
    call_done(&given_up);
    for (struct job *job; (job = take(&finished));) {
        job->found = false;
        call_done(job);
        free(job);
    }
    if (left) {
        (void)pthread_detach(d->thread);
    } else {
        (void)pthread_join(d->thread, NULL);
        release(d);
    }
    return left;
}
