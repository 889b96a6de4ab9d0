#include "store/index.h"

#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct index {
    pthread_mutex_t lock;
    struct index_entry **entries; /* in byte order of their names */
    size_t count, allocated;
    size_t unknown; /* none before this place is not known */
};

static uint64_t now_ms(clockid_t clock)
{
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return t.tv_sec < 0 ? 0 : (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / NSEC_PER_MSEC;
}

static uint64_t before(uint64_t now, uint64_t age)
{
    return age < now ? now - age : 0;
}

static int64_t boot_before(uint64_t age)
{
    return (int64_t)now_ms(CLOCK_BOOTTIME) - (int64_t)age;
}

static void entry_free(struct index_entry *e)
{
    free(e->name);
    free(e->thread_id);
    free(e->labels);
    free(e);
}

int index_new(struct index **ret)
{
    struct index *index = calloc(1, sizeof *index);
    if (!index)
        return -ENOMEM;
    (void)pthread_mutex_init(&index->lock, NULL);
    *ret = index;
    return 0;
}

void index_free(struct index *index)
{
    if (!index)
        return;
    for (size_t i = 0; i < index->count; i++)
        entry_free(index->entries[i]);
    free(index->entries);
    (void)pthread_mutex_destroy(&index->lock);
    free(index);
}

static void lock(struct index *index)
{
    (void)pthread_mutex_lock(&index->lock);
}

static void unlock(struct index *index)
{
    (void)pthread_mutex_unlock(&index->lock);
}

/* --- places ---------------------------------------------------------------------- */

static int compare(const struct index_entry *e, struct bytes name)
{
    size_t len = strlen(e->name), common = len < name.len ? len : name.len;
    int order = common ? memcmp(e->name, name.data, common) : 0;
    return order ? order : (len > name.len) - (len < name.len);
}

/* The place of the first that is not before this name; *ret_there: it is of this name. */
static size_t place_of(const struct index *index, struct bytes name, bool *ret_there)
{
    size_t low = 0, high = index->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(index->entries[middle], name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *ret_there = low < index->count && compare(index->entries[low], name) == 0;
    return low;
}

static struct index_entry *find(const struct index *index, const char *name)
{
    bool there;
    size_t i = place_of(index, bytes_of_string(name), &there);
    return there ? index->entries[i] : NULL;
}

static int make_room(struct index *index)
{
    if (index->count < index->allocated)
        return 0;
    size_t larger = index->allocated ? 2 * index->allocated : 64;
    struct index_entry **entries = reallocarray(index->entries, larger, sizeof *entries);
    if (!entries)
        return -ENOMEM;
    index->entries = entries;
    index->allocated = larger;
    return 0;
}

static int find_or_make(struct index *index, const char *name, struct index_entry **ret)
{
    bool there;
    size_t i = place_of(index, bytes_of_string(name), &there);
    if (there) {
        *ret = index->entries[i];
        return 0;
    }
    struct index_entry *e = calloc(1, sizeof *e);
    if (!e || !(e->name = strdup(name)) || make_room(index) < 0) {
        if (e)
            entry_free(e);
        return -ENOMEM;
    }
    memmove(index->entries + i + 1, index->entries + i,
            (index->count - i) * sizeof(struct index_entry *));
    index->entries[i] = e;
    index->count++;
    if (i < index->unknown)
        index->unknown = i;
    *ret = e;
    return 0;
}

/* --- entries --------------------------------------------------------------------- */

int index_add(struct index *index, const char *name)
{
    struct index_entry *e;
    lock(index);
    int r = find_or_make(index, name, &e);
    unlock(index);
    return r;
}

static bool is_same(const struct index_entry *e, const struct meta *meta)
{
    return e->known && !e->broken && e->slot == meta->slot && e->revision == meta->revision;
}

static int fill(struct index_entry *e, const struct meta *meta, uint64_t written_ms)
{
    uint8_t *thread_id = malloc(meta->thread_id_len);
    char *labels = strdup(meta->labels);
    if (!thread_id || !labels) {
        free(thread_id);
        free(labels);
        return -ENOMEM;
    }
    memcpy(thread_id, meta->thread_id, meta->thread_id_len);
    free(e->thread_id);
    free(e->labels);
    /* Of another one, or of one that nobody has used since this began, the disk knows. */
    if (!e->known || e->broken || e->slot != meta->slot) {
        e->used_ms = boot_before(before(now_ms(CLOCK_REALTIME), written_ms));
        e->written_ms = written_ms;
        e->retry_ms = 0;
    }
    e->known = true;
    e->broken = false;
    e->slot = meta->slot;
    e->state = meta->state;
    e->revision = meta->revision;
    e->idle_ms = meta->idle_ms;
    e->expires_ms = meta->expires_ms;
    e->created_at = meta->created_at;
    e->thread_id = thread_id;
    e->thread_id_len = meta->thread_id_len;
    e->labels = labels;
    return 0;
}

int index_put(struct index *index, const char *name, const struct meta *meta, uint64_t used_ms)
{
    struct index_entry *e;
    lock(index);
    int r = find_or_make(index, name, &e);
    if (r == 0 && !is_same(e, meta))
        r = fill(e, meta, used_ms);
    unlock(index);
    return r;
}

void index_put_broken(struct index *index, const char *name)
{
    lock(index);
    struct index_entry *e = find(index, name);
    if (e && !e->known)
        e->known = e->broken = true;
    unlock(index);
}

void index_drop(struct index *index, const char *name, uint32_t slot)
{
    bool there;
    lock(index);
    size_t i = place_of(index, bytes_of_string(name), &there);
    if (there && (slot == 0 || index->entries[i]->slot == slot)) {
        entry_free(index->entries[i]);
        index->count--;
        memmove(index->entries + i, index->entries + i + 1,
                (index->count - i) * sizeof(struct index_entry *));
        if (i < index->unknown)
            index->unknown--;
    }
    unlock(index);
}

size_t index_count(struct index *index)
{
    lock(index);
    size_t count = index->count;
    unlock(index);
    return count;
}

int index_walk(struct index *index, struct bytes after, bool from,
               int (*visit)(void *context, const struct index_entry *entry), void *context)
{
    bool there;
    int r = 0;
    lock(index);
    size_t i = place_of(index, after, &there);
    for (i += there && !from; r == 0 && i < index->count; i++)
        r = visit(context, index->entries[i]);
    unlock(index);
    return r;
}

bool index_unknown(struct index *index, char ret_name[WIRE_NAME_MAX + 1])
{
    lock(index);
    while (index->unknown < index->count && index->entries[index->unknown]->known)
        index->unknown++;
    bool found = index->unknown < index->count;
    if (found)
        (void)snprintf(ret_name, WIRE_NAME_MAX + 1, "%s", index->entries[index->unknown]->name);
    unlock(index);
    return found;
}

/* --- uses ------------------------------------------------------------------------ */

/* Whether meta.json is to be written, so that it says more than now. */
static bool is_stale(const struct index_entry *e, uint64_t now)
{
    return e->known && !e->broken && e->live && e->written_ms < now + INDEX_AHEAD_MS / 2;
}

bool index_use(struct index *index, const char *name, uint32_t slot, bool live,
               uint64_t *ret_write_ms)
{
    uint64_t now = now_ms(CLOCK_REALTIME);
    *ret_write_ms = 0;
    lock(index);
    struct index_entry *e = find(index, name);
    if (e && e->known && !e->broken && e->slot == slot) {
        e->used_ms = boot_before(0);
        e->live = live;
        if (is_stale(e, now))
            *ret_write_ms = e->written_ms = now + INDEX_AHEAD_MS;
    }
    bool ends = e && (e->idle_ms || e->expires_ms);
    unlock(index);
    return ends;
}

void index_used_before(struct index *index, const char *name, uint64_t age_ms)
{
    lock(index);
    struct index_entry *e = find(index, name);
    int64_t used = boot_before(age_ms);
    if (e && e->known && used > e->used_ms)
        e->used_ms = used;
    unlock(index);
}

void index_spare(struct index *index, const char *name, uint64_t ms)
{
    lock(index);
    struct index_entry *e = find(index, name);
    if (e)
        e->retry_ms = now_ms(CLOCK_BOOTTIME) + ms;
    unlock(index);
}

struct wire_time index_used_at(const struct index_entry *e)
{
    uint64_t age = e->live ? 0 : (uint64_t)(boot_before(0) - e->used_ms);
    uint64_t at = before(now_ms(CLOCK_REALTIME), age);
    return (struct wire_time){.sec = (int64_t)(at / 1000),
                              .nsec = (uint32_t)(at % 1000 * NSEC_PER_MSEC)};
}

/* --- ends ------------------------------------------------------------------------ */

/* For how long it is not over yet; UINT64_MAX: for ever, or for as long as it is used. */
static uint64_t left(const struct index_entry *e, uint64_t now, uint64_t boot)
{
    uint64_t least = UINT64_MAX;
    if (!e->known || e->broken || e->live)
        return UINT64_MAX;
    if (e->expires_ms)
        least = before(e->expires_ms, now);
    if (e->idle_ms && before(e->idle_ms, boot - (uint64_t)e->used_ms) < least)
        least = before(e->idle_ms, boot - (uint64_t)e->used_ms);
    return least;
}

static uint64_t left_or_spared(const struct index_entry *e, uint64_t now, uint64_t boot)
{
    uint64_t least = left(e, now, boot), spared = before(e->retry_ms, boot);
    return spared > least ? spared : least;
}

static void copy_over(const struct index_entry *e, struct index_over *ret)
{
    (void)snprintf(ret->name, sizeof ret->name, "%s", e->name);
    ret->slot = e->slot;
    ret->thread_id_len = e->thread_id_len;
    memcpy(ret->thread_id, e->thread_id, e->thread_id_len);
}

bool index_over(struct index *index, struct index_over *ret, uint64_t *ret_wait_ms)
{
    uint64_t now = now_ms(CLOCK_REALTIME), boot = now_ms(CLOCK_BOOTTIME);
    bool found = false;
    *ret_wait_ms = UINT64_MAX;
    lock(index);
    for (size_t i = 0; i < index->count && !found; i++) {
        uint64_t wait = left_or_spared(index->entries[i], now, boot);
        found = wait == 0;
        if (found)
            copy_over(index->entries[i], ret);
        if (wait < *ret_wait_ms)
            *ret_wait_ms = wait;
    }
    unlock(index);
    return found;
}

bool index_is_over(struct index *index, const char *name, uint32_t slot)
{
    lock(index);
    const struct index_entry *e = find(index, name);
    bool over =
        e && e->slot == slot && left(e, now_ms(CLOCK_REALTIME), now_ms(CLOCK_BOOTTIME)) == 0;
    unlock(index);
    return over;
}

bool index_stale(struct index *index, char ret_name[WIRE_NAME_MAX + 1], uint64_t *ret_write_ms,
                 uint64_t *ret_wait_ms)
{
    uint64_t now = now_ms(CLOCK_REALTIME);
    bool found = false;
    *ret_wait_ms = UINT64_MAX;
    lock(index);
    for (size_t i = 0; i < index->count && !found; i++) {
        struct index_entry *e = index->entries[i];
        if (!e->live)
            continue;
        *ret_wait_ms = INDEX_AHEAD_MS / 4;
        found = is_stale(e, now);
        if (!found)
            continue;
        *ret_write_ms = e->written_ms = now + INDEX_AHEAD_MS;
        (void)snprintf(ret_name, WIRE_NAME_MAX + 1, "%s", e->name);
    }
    unlock(index);
    return found;
}
