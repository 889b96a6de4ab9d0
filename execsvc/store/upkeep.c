#include "store/upkeep.h"

#include "base/clock.h"
#include "base/dir.h"
#include "base/log.h"
#include "store/index.h"
#include "store/thread.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* How often it looks at all of them at most, and at least. */
#define UPKEEP_PAUSE_MS 100
#define UPKEEP_WAIT_MS (INDEX_AHEAD_MS / 4)

/* A workspace that turned out to be in use, or could not be removed, is left alone for so long. */
#define UPKEEP_SPARE_MS 5000

struct upkeep {
    struct store *store;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* of CLOCK_MONOTONIC */
    pthread_t thread;
    bool begun;
    bool woken;
    atomic_bool stopping;
    void (*expired)(void *context, const struct index_over *over);
    void *context;
};

int upkeep_new(struct store *store, struct upkeep **ret)
{
    struct upkeep *u = calloc(1, sizeof *u);
    pthread_condattr_t attributes;
    if (!u)
        return -ENOMEM;
    u->store = store;
    (void)pthread_mutex_init(&u->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&u->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    *ret = u;
    return 0;
}

void upkeep_set_expired(struct upkeep *u,
                        void (*expired)(void *context, const struct index_over *over),
                        void *context)
{
    u->expired = expired;
    u->context = context;
}

/* --- commands -------------------------------------------------------------------- */

static void note_time(const struct stat *st, int64_t *newest_ms)
{
    int64_t ms = (int64_t)st->st_mtim.tv_sec * 1000 + st->st_mtim.tv_nsec / (long)NSEC_PER_MSEC;
    if (ms > *newest_ms)
        *newest_ms = ms;
}

/* When the keeper of commands has written anything for one of this workspace. A command that has
 * ended has used it until then, though nobody here was told. */
static int64_t newest_record(const struct store *store, const char *name)
{
    char path[2 * WIRE_NAME_MAX];
    int64_t newest = 0;
    struct stat st;
    (void)snprintf(path, sizeof path, "exec/%s", name);
    _cleanup_dir_ DIR *stream = NULL;
    if (dir_open(store->root_fd, path, &stream) < 0)
        return 0;
    const struct dirent *entry;
    while (dir_next(stream, &entry) == 1) {
        static const char *const files[] = {"", "/record", "/output"};
        for (size_t i = 0; entry->d_name[0] != '.' && i < ARRAY_SIZE(files); i++) {
            (void)snprintf(path, sizeof path, "%s%s", entry->d_name, files[i]);
            if (fstatat(dirfd(stream), path, &st, AT_SYMLINK_NOFOLLOW) == 0)
                note_time(&st, &newest);
        }
    }
    return newest;
}

static void note_commands(struct store *store, const char *name)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    int64_t now = (int64_t)t.tv_sec * 1000 + t.tv_nsec / (long)NSEC_PER_MSEC;
    int64_t newest = newest_record(store, name);
    if (newest > 0)
        index_used_before(store->index, name, newest < now ? (uint64_t)(now - newest) : 0);
}

/* --- a round --------------------------------------------------------------------- */

static void read_unknown(struct upkeep *u)
{
    char name[WIRE_NAME_MAX + 1];
    while (!atomic_load(&u->stopping) && index_unknown(u->store->index, name))
        if (workspace_read(u->store, name) < 0)
            return; /* for want of memory or descriptors: the next time */
}

static void write_uses(struct upkeep *u)
{
    char name[WIRE_NAME_MAX + 1];
    uint64_t at, wait;
    while (!atomic_load(&u->stopping) && index_stale(u->store->index, name, &at, &wait)) {
        _cleanup_close_ int fd =
            openat(u->store->workspaces_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            (void)meta_set_used(fd, at);
    }
}

/* Milliseconds until there may be another. */
static uint64_t find_expired(struct upkeep *u)
{
    struct store *store = u->store;
    struct index_over over;
    uint64_t wait = 0;
    while (!atomic_load(&u->stopping) && index_over(store->index, &over, &wait)) {
        note_commands(store, over.name);
        if (!index_is_over(store->index, over.name, over.slot))
            continue;
        if (u->expired) {
            index_spare(store->index, over.name, UPKEEP_SPARE_MS);
            u->expired(u->context, &over);
        } else if (store_expire(store, &over) < 0) {
            index_spare(store->index, over.name, UPKEEP_SPARE_MS);
        }
    }
    return wait;
}

/* --- the thread ------------------------------------------------------------------ */

static void wait_for(struct upkeep *u, uint64_t ms, bool even_woken)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000 * NSEC_PER_MSEC);
    if (until.tv_nsec >= (long)NSEC_PER_SEC) {
        until.tv_sec++;
        until.tv_nsec -= (long)NSEC_PER_SEC;
    }
    (void)pthread_mutex_lock(&u->lock);
    while (!atomic_load(&u->stopping) && (even_woken || !u->woken) &&
           pthread_cond_timedwait(&u->changed, &u->lock, &until) == 0)
        ;
    if (!even_woken)
        u->woken = false;
    (void)pthread_mutex_unlock(&u->lock);
}

static void *upkeep_main(void *context)
{
    struct upkeep *u = context;
    while (!atomic_load(&u->stopping)) {
        read_unknown(u);
        write_uses(u);
        uint64_t wait = find_expired(u);
        wait_for(u, UPKEEP_PAUSE_MS, true);
        wait_for(u, wait < UPKEEP_WAIT_MS ? wait : UPKEEP_WAIT_MS, false);
    }
    return NULL;
}

int upkeep_begin(struct upkeep *u)
{
    int r = thread_start(&u->thread, upkeep_main, u);
    u->begun = r == 0;
    return r;
}

void upkeep_free(struct upkeep *u)
{
    if (!u)
        return;
    (void)pthread_mutex_lock(&u->lock);
    atomic_store(&u->stopping, true);
    (void)pthread_cond_broadcast(&u->changed);
    (void)pthread_mutex_unlock(&u->lock);
    if (u->begun)
        (void)pthread_join(u->thread, NULL);
    (void)pthread_cond_destroy(&u->changed);
    (void)pthread_mutex_destroy(&u->lock);
    free(u);
}

void upkeep_wake(struct upkeep *u)
{
    (void)pthread_mutex_lock(&u->lock);
    u->woken = true;
    (void)pthread_cond_signal(&u->changed);
    (void)pthread_mutex_unlock(&u->lock);
}
