#include "store/lock.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

#include "base/lock_ranges.h"
#include "store/grip.h"
#include "store/writers.h"

/* One owner's locks of one kind on one file. */
struct locker {
    struct locker *chain; /* same key in session->lockers */
    struct node *node;    /* referenced */
    uint64_t key;
    uint64_t owner;
    bool flock;
    bool gone;     /* not in session->lockers any more */
    uint32_t refs; /* of running requests */
    /* Held during a request. Taken before store.lock. */
    pthread_mutex_t mutex;
    int fd;
    bool writable;
    struct lock_ranges ranges; /* as the description holds them */
};

/* --- lockers -------------------------------------------------------------------- */

static uint64_t locker_key(uint64_t node, const struct lock_request *q)
{
    return table_hash_pair(2 * node + q->flock, q->owner);
}

static struct locker *find_locked(const struct file_session *session, uint64_t node,
                                  const struct lock_request *q)
{
    struct locker *l = table_get(&session->lockers, locker_key(node, q));
    while (l && (l->node->number != node || l->owner != q->owner || l->flock != q->flock))
        l = l->chain;
    return l;
}

static int new_locked(struct file_session *session, struct node *node, const struct lock_request *q,
                      struct locker **ret)
{
    struct locker *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    l->key = locker_key(node->number, q);
    l->owner = q->owner;
    l->flock = q->flock;
    l->fd = -1;
    int r = -pthread_mutex_init(&l->mutex, NULL);
    if (r < 0) {
        free(l);
        return r;
    }
    void *chain;
    r = table_put(&session->lockers, l->key, l, &chain);
    if (r < 0) {
        (void)pthread_mutex_destroy(&l->mutex);
        free(l);
        return r;
    }
    l->chain = chain;
    l->node = node;
    node->refs++;
    session->store->locker_count++;
    *ret = l;
    return 0;
}

static void unchain_locked(struct file_session *session, struct locker *l)
{
    l->gone = true;
    struct locker *first = table_get(&session->lockers, l->key);
    if (first != l) {
        while (first->chain != l)
            first = first->chain;
        first->chain = l->chain;
    } else if (l->chain) {
        (void)table_put(&session->lockers, l->key, l->chain, NULL);
    } else {
        (void)table_take(&session->lockers, l->key);
    }
}

/* Of a locker that is in no table any more, and that no request uses. */
static void locker_free(struct file_session *session, struct locker *l)
{
    struct store *store = session->store;
    bool reserved = l->fd >= 0;
    close_fd(&l->fd); /* which gives up whatever is locked, before others are told */
    store_lock(store);
    session->lock_ranges -= l->ranges.count;
    node_unref_locked(l->node);
    store->locker_count--;
    store_unlock(store);
    if (reserved)
        handle_unreserve(session);
    lock_ranges_release(&l->ranges);
    (void)pthread_mutex_destroy(&l->mutex);
    free(l);
}

static void locker_put(struct file_session *session, struct locker *l)
{
    struct store *store = session->store;
    (void)pthread_mutex_unlock(&l->mutex);
    store_lock(store);
    bool last = --l->refs == 0 && (l->gone || l->ranges.count == 0);
    if (last && !l->gone)
        unchain_locked(session, l);
    store_unlock(store);
    if (last)
        locker_free(session, l);
}

/* The owner's locker, held until locker_put. node NULL: only one that is there, else -ENOENT. */
static int locker_take(struct file_session *session, uint64_t number, struct node *node,
                       const struct lock_request *q, struct locker **ret)
{
    struct store *store = session->store;
    int r = 0;
    store_lock(store);
    struct locker *l = find_locked(session, number, q);
    if (session->lock_superseded)
        r = -EIO;
    else if (!l)
        r = node ? new_locked(session, node, q, &l) : -ENOENT;
    if (r == 0)
        l->refs++;
    store_unlock(store);
    if (r < 0)
        return r;
    (void)pthread_mutex_lock(&l->mutex);
    *ret = l;
    return 0;
}

void lock_release_all(struct file_session *session)
{
    struct locker *l;
    for (size_t i = 0; (l = table_next(&session->lockers, &i)); i = 0) {
        unchain_locked(session, l);
        locker_free(session, l);
    }
    table_release(&session->lockers);
}

/* --- descriptors ---------------------------------------------------------------- */

static int set_range(int fd, uint64_t start, uint64_t end, uint32_t type)
{
    struct flock lock = {
        .l_type = type == WIRE_LOCK_NONE   ? F_UNLCK
                  : type == WIRE_LOCK_READ ? F_RDLCK
                                           : F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = (off_t)start,
        .l_len = end == WIRE_LOCK_END ? 0 : (off_t)(end - start + 1),
    };
    int r;
    do
        r = fcntl(fd, F_OFD_SETLK, &lock);
    while (r < 0 && errno == EINTR);
    return r == 0 ? 0 : errno == EACCES ? -EAGAIN : -errno;
}

static int set_whole(int fd, uint32_t type)
{
    static const int operations[] = {LOCK_UN, LOCK_SH, LOCK_EX};
    int r;
    do
        r = flock(fd, operations[type] | LOCK_NB);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : 0;
}

static int open_again(const struct handle *handle, int access)
{
    char path[GRIP_PATH_SIZE];
    int fd = writers_openat(AT_FDCWD, grip_path(handle->fd, path),
                            access | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    return fd < 0 ? -errno : fd;
}

/* Opens the file for the locks of a handle with this access. Not for more than is needed: a
 * descriptor that could write keeps a program from being executed. But an owner who may write may
 * want both kinds of locks, on one description. */
static int open_for(const struct locker *l, const struct handle *handle, bool writable, int *ret_fd,
                    bool *ret_writable)
{
    int first = !l->flock && writable ? O_RDWR : O_RDONLY;
    int fd = open_again(handle, first);
    if (fd < 0 && (l->flock || writable))
        fd = open_again(handle, O_WRONLY);
    if (fd == -EACCES || fd == -EPERM || fd == -EROFS || fd == -ETXTBSY)
        return -ENOLCK;
    if (fd < 0)
        return fd;
    *ret_writable = (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
    *ret_fd = fd;
    return 0;
}

/* The first lock that needs to write, of an owner who had only read locks so far: they are shared
 * by both descriptions for a moment, so that nobody gets between. */
static int move_to(struct locker *l, int fd)
{
    for (size_t i = 0; i < l->ranges.count; i++) {
        const struct lock_range *held = &l->ranges.items[i];
        int r = set_range(fd, held->start, held->end, held->type);
        if (r < 0)
            return r;
    }
    (void)close(l->fd);
    l->fd = fd;
    return 0;
}

/* Sees to it that the locker has a descriptor that can hold this kind of lock. */
static int prepare(struct file_session *session, struct locker *l, const struct handle *handle,
                   uint32_t type)
{
    int access = fcntl(handle->fd, F_GETFL) & O_ACCMODE;
    if (!l->flock && access == (type == WIRE_LOCK_WRITE ? O_RDONLY : O_WRONLY))
        return -EBADF;
    bool needs_write = !l->flock && type == WIRE_LOCK_WRITE;
    if (l->fd >= 0 && (l->writable || !needs_write))
        return 0;
    _cleanup_close_ int fd = -1;
    bool writable;
    int r = l->fd < 0 ? handle_reserve(session) : 0;
    if (r < 0)
        return -ENOLCK;
    r = open_for(l, handle, access != O_RDONLY, &fd, &writable);
    if (r == 0 && l->fd >= 0) {
        r = move_to(l, fd);
        if (r == 0)
            (void)take_fd(&fd);
    } else if (r == 0) {
        l->fd = take_fd(&fd);
    } else if (l->fd < 0) {
        handle_unreserve(session);
    }
    if (r == 0)
        l->writable = writable;
    return r;
}

/* --- requests ------------------------------------------------------------------- */

static int room_for_range(struct file_session *session, const struct lock_request *q)
{
    if (q->type == WIRE_LOCK_NONE && q->start == 0 && q->end == WIRE_LOCK_END)
        return 0;
    store_lock(session->store);
    bool room = session->lock_ranges + LOCK_RANGES_GROWTH <= SESSION_LOCK_RANGES_MAX;
    store_unlock(session->store);
    return room ? 0 : -ENOLCK;
}

/* What the description holds now. */
static void note(struct file_session *session, struct locker *l, const struct lock_request *q,
                 uint32_t type)
{
    size_t before = l->ranges.count;
    lock_ranges_set(&l->ranges, q->start, q->end, type);
    store_lock(session->store);
    session->lock_ranges += l->ranges.count - before;
    store_unlock(session->store);
}

static int set_held(struct file_session *session, struct locker *l, const struct handle *handle,
                    const struct lock_request *q, bool *ret_freed)
{
    int r = room_for_range(session, q);
    if (r == 0)
        r = lock_ranges_reserve(&l->ranges);
    if (r == 0 && q->type != WIRE_LOCK_NONE)
        r = prepare(session, l, handle, q->type);
    if (r < 0)
        return r;
    bool held = lock_ranges_find(&l->ranges, q->start, q->end, 0);
    if (l->fd >= 0)
        r = l->flock ? set_whole(l->fd, q->type) : set_range(l->fd, q->start, q->end, q->type);
    if (r == 0)
        note(session, l, q, q->type);
    else if (l->flock)
        note(session, l, q, WIRE_LOCK_NONE);
    *ret_freed = held && (r < 0 ? l->flock : q->type != WIRE_LOCK_WRITE);
    return r == -EINVAL || r == -EBADF ? -ENOLCK : r; /* the description lacks what it needs */
}

int lock_set(struct file_session *session, uint64_t node_number, struct handle *handle,
             const struct lock_request *request, bool *ret_freed)
{
    struct locker *l;
    struct node *node = handle ? handle->node : NULL;
    int r = locker_take(session, node_number, node, request, &l);
    if (r < 0)
        return r == -ENOENT ? 0 : r; /* nothing is locked */
    r = set_held(session, l, handle, request, ret_freed);
    locker_put(session, l);
    return r;
}

int lock_get(struct file_session *session, struct handle *handle,
             const struct lock_request *request, struct wire_lock_found *ret)
{
    struct locker *l = NULL;
    int r = locker_take(session, handle->node->number, NULL, request, &l);
    if (r < 0 && r != -ENOENT)
        return r;
    struct flock lock = {
        .l_type = request->type == WIRE_LOCK_READ ? F_RDLCK : F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = (off_t)request->start,
        .l_len = request->end == WIRE_LOCK_END ? 0 : (off_t)(request->end - request->start + 1),
    };
    /* A handle's own description never holds locks: it asks as a stranger. */
    r = fcntl(l && l->fd >= 0 ? l->fd : handle->fd, F_OFD_GETLK, &lock) < 0 ? -errno : 0;
    if (l)
        locker_put(session, l);
    if (r < 0)
        return r;
    *ret = (struct wire_lock_found){.type = WIRE_LOCK_NONE};
    if (lock.l_type != F_UNLCK) {
        ret->type = lock.l_type == F_RDLCK ? WIRE_LOCK_READ : WIRE_LOCK_WRITE;
        ret->start = (uint64_t)lock.l_start;
        ret->end = lock.l_len == 0 ? WIRE_LOCK_END : (uint64_t)(lock.l_start + lock.l_len - 1);
        ret->pid = lock.l_pid > 0 ? (uint32_t)lock.l_pid : 0;
    }
    return 0;
}

/* --- one client after another connection ---------------------------------------- */

/* Gives up the locks of another session, whose requests may be running. */
static void supersede(struct file_session *session)
{
    struct store *store = session->store;
    store_lock(store);
    session->lock_superseded = true;
    store_unlock(store);
    for (;;) {
        size_t i = 0;
        store_lock(store);
        struct locker *l = table_next(&session->lockers, &i);
        if (l) {
            l->refs++;
            unchain_locked(session, l);
        }
        store_unlock(store);
        if (!l)
            return;
        (void)pthread_mutex_lock(&l->mutex);
        locker_put(session, l);
    }
}

bool lock_claim(struct file_session *session, const uint8_t secret[LOCK_SECRET_SIZE])
{
    struct store *store = session->store;
    bool found = false;
    (void)pthread_mutex_lock(&store->sessions_lock);
    memcpy(session->lock_secret, secret, LOCK_SECRET_SIZE);
    session->lock_claimed = true;
    for (struct file_session *s = store->sessions; s; s = s->next)
        if (s != session && s->lock_claimed &&
            memcmp(s->lock_secret, secret, LOCK_SECRET_SIZE) == 0) {
            supersede(s);
            found = true;
        }
    (void)pthread_mutex_unlock(&store->sessions_lock);
    return found;
}
