#include "store/trash.h"

#include "base/dir.h"
#include "base/log.h"
#include "store/fault.h"
#include "store/removal.h"
#include "store/thread.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

struct trash {
    struct store *store;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool begun;
    uint64_t asked, done; /* how often it was woken, and what it has seen to */
    atomic_bool stopping;
};

int trash_new(struct store *store, struct trash **ret)
{
    struct trash *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->store = store;
    t->asked = 1; /* what an earlier service has left */
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_cond_init(&t->changed, NULL);
    *ret = t;
    return 0;
}

/* --- deleting -------------------------------------------------------------------- */

/* False: it takes longer than one call may. */
static bool delete_one(struct trash *t, const char *name)
{
    struct store *store = t->store;
    _cleanup_close_ int fd =
        openat(store->trash_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = fd >= 0 ? removal_empty(fd, &t->stopping) : 0;
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        r = unlinkat(store->trash_fd, name, 0) < 0 ? -errno : 0;
    else if (fd < 0)
        r = -errno;
    if (r == 0 && fd >= 0) {
        fault_point(FAULT_TRASH_EMPTIED);
        r = unlinkat(store->trash_fd, name, AT_REMOVEDIR) < 0 ? -errno : 0;
    }
    if (r < 0 && r != -ENOENT && r != -ECANCELED && r != -ETIMEDOUT)
        log_warning("cannot delete all of %s/trash/%s: %s", store->root, name, strerror(-r));
    return r != -ETIMEDOUT;
}

/* One after the other: a tree that cannot be deleted keeps no other from going. */
static bool delete_all(struct trash *t)
{
    bool all = true;
    _cleanup_dir_ DIR *stream = NULL;
    const struct dirent *entry;
    if (dir_open(t->store->trash_fd, ".", &stream) < 0)
        return true;
    while (!atomic_load(&t->stopping) && dir_next(stream, &entry) == 1)
        if (entry->d_name[0] != '.')
            all = delete_one(t, entry->d_name) && all;
    return all;
}

/* --- the thread ------------------------------------------------------------------ */

static void *trash_main(void *context)
{
    struct trash *t = context;
    (void)pthread_mutex_lock(&t->lock);
    while (!atomic_load(&t->stopping)) {
        uint64_t asked = t->asked;
        if (asked == t->done) {
            (void)pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&t->lock);
        bool all = delete_all(t);
        (void)pthread_mutex_lock(&t->lock);
        t->asked += !all;
        t->done = asked;
        (void)pthread_cond_broadcast(&t->changed);
    }
    (void)pthread_mutex_unlock(&t->lock);
    return NULL;
}

int trash_begin(struct trash *t)
{
    int r = thread_start(&t->thread, trash_main, t);
    t->begun = r == 0;
    return r;
}

void trash_free(struct trash *t)
{
    if (!t)
        return;
    (void)pthread_mutex_lock(&t->lock);
    atomic_store(&t->stopping, true);
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->lock);
    if (t->begun)
        (void)pthread_join(t->thread, NULL);
    (void)pthread_cond_destroy(&t->changed);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
}

void trash_wake(struct trash *t)
{
    (void)pthread_mutex_lock(&t->lock);
    t->asked++;
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->lock);
}

void trash_settle(struct trash *t)
{
    (void)pthread_mutex_lock(&t->lock);
    for (uint64_t asked = t->asked; t->done < asked;)
        (void)pthread_cond_wait(&t->changed, &t->lock);
    (void)pthread_mutex_unlock(&t->lock);
}

int trash_take(struct store *store, int from_fd, const char *from, const char *name)
{
    char other[WIRE_NAME_MAX + 1];
    (void)snprintf(other, sizeof other, "%s", name);
    for (unsigned i = 0;; i++) {
        if (renameat2(from_fd, from, store->trash_fd, other, RENAME_NOREPLACE) == 0)
            return 0;
        /* A filesystem without the flag: a directory never replaces one that is not empty. */
        if (errno == EINVAL && renameat(from_fd, from, store->trash_fd, other) == 0)
            return 0;
        if (errno != EEXIST && errno != ENOTEMPTY)
            return -errno;
        (void)snprintf(other, sizeof other, "%.200s.%u", name, i);
    }
}
