/* What of this service is in the directory: in memory, by a hash of each key. */
#include "disk_private.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

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

const struct segment_slot *disk_find_locked(const struct disk *d, uint64_t hash, uint64_t size,
                                            size_t *ret_segment)
{
    void *place = table_get(&d->index, hash);
    const struct segment_slot *slot = place ? slot_at(d, place, ret_segment) : NULL;
    return slot && slot->size == size ? slot : NULL;
}

int disk_add_slot_locked(struct disk *d, size_t segment, const struct segment_slot *slot)
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

void disk_forget_segment_locked(struct disk *d, size_t segment)
{
    struct segment *s = d->segments[segment];
    for (size_t i = 0; i < s->count; i++)
        if (table_get(&d->index, s->slots[i].hash) == place_of(segment, i))
            (void)table_take(&d->index, s->slots[i].hash);
    free(s->slots);
    free(s);
    d->segments[segment] = NULL;
}

int disk_add_segment_locked(struct disk *d, const char *name, struct segment_slot *slots,
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
            disk_forget_segment_locked(d, at);
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
    if (r < 0)
        return r == -ENOMEM ? r : 0;
    (void)pthread_mutex_lock(&d->lock);
    r = disk_add_segment_locked(d, name, slots, count, &index);
    if (r == 0 && used_ms > d->used_ms)
        d->used_ms = used_ms;
    (void)pthread_mutex_unlock(&d->lock);
    return r == -ENOMEM ? r : 0;
}

static bool is_stopped(struct disk *d)
{
    (void)pthread_mutex_lock(&d->lock);
    bool stop = d->stop;
    (void)pthread_mutex_unlock(&d->lock);
    return stop;
}

int disk_load(struct disk *d)
{
    _cleanup_cache_list_ struct cache_list list = {0};
    int r = cache_list(d->dir, &list);
    for (size_t i = list.count;
         r == 0 && i > 0 && d->index.count < DISK_ENTRIES_MAX && !is_stopped(d); i--)
        r = load_segment(d, list.segments[i - 1].name, ms_of(&list.segments[i - 1].used));
    return r;
}

int64_t disk_age_ms(struct disk *d)
{
    struct timespec now;
    if (!d)
        return -1;
    (void)pthread_mutex_lock(&d->lock);
    int64_t used_ms = d->used_ms;
    (void)pthread_mutex_unlock(&d->lock);
    if (!used_ms)
        return -1;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    int64_t age = ms_of(&now) - used_ms;
    return age > 0 ? age : 0;
}
