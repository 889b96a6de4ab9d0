#include "store/writers.h"

#include <fcntl.h>
#include <signal.h>

#include "store/changes.h"
#include "store/detect.h"
#include "store/grip.h"
#include "store/handle.h"

/* While a file is opened again and again, its writers cannot be told. */
#define ASK_TRIES 4

/* Together 20 ms: stops another program's lease, which it may keep for 45 s, from holding a
 * worker. */
#define LEASE_TRIES 20
#define LEASE_WAIT_US 1000

void writers_setup(void)
{
    (void)signal(SIGIO, SIG_IGN);
}

/* --- asking the kernel ------------------------------------------------------------- */

/* 0: it was granted, and is given back. -EAGAIN: somebody is there. Others: the kernel cannot say,
 * by the filesystem (-EINVAL), or to us, of another owner's file (-EACCES: no CAP_LEASE). */
static int try_lease(int fd, int type)
{
    if (fcntl(fd, F_SETLEASE, type) < 0)
        return -errno;
    (void)fcntl(fd, F_SETLEASE, F_UNLCK);
    return 0;
}

static void drop_kept_locked(struct node *node)
{
    if (node->lease_fd < 0)
        return;
    close_fd(&node->lease_fd);
    node->workspace->store->lease_count--;
}

/* inotify tells of our own openings as well, and of two at a time as one. So that asking is not a
 * reason to ask again for ever, the descriptor is kept, and used when that event comes. -ENFILE:
 * too many are kept. */
static int keep(struct node *node, int *fd)
{
    struct store *store = node->workspace->store;
    int r = 0;
    store_lock(store);
    if (store->lease_count >= store->limits.cached_descriptors) {
        r = -ENFILE;
    } else if (node->lease_fd < 0) {
        node->lease_fd = take_fd(fd);
        store->lease_count++;
    }
    store_unlock(store);
    return r;
}

static bool take_kept(struct node *node, int *ret_fd)
{
    struct store *store = node->workspace->store;
    store_lock(store);
    bool kept = node->lease_fd >= 0;
    if (kept) {
        *ret_fd = take_fd(&node->lease_fd);
        store->lease_count--;
    }
    store_unlock(store);
    return kept;
}

/* By a descriptor of our own for the purpose. */
static int ask_by_opening(struct node *node)
{
    struct store *store = node->workspace->store;
    _cleanup_grip_ struct grip grip = {.fd = -1};
    struct statx stx;
    int r = grip_take(node, &grip, &stx);
    if (r < 0)
        return r;
    char path[GRIP_PATH_SIZE];
    const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    _cleanup_close_ int fd = open(grip_path(grip.fd, path), flags | O_NOATIME);
    if (fd < 0 && errno == EPERM)
        fd = open(grip_path(grip.fd, path), flags);
    if (fd < 0)
        return -errno;
    r = try_lease(fd, F_RDLCK);
    if (r == 0 && store->by_file)
        r = keep(node, &fd);
    return r;
}

/* Handles of clients that can write, and (referenced) one that is the right one to ask with. */
static size_t handles_of(struct node *node, struct handle **ret)
{
    struct store *store = node->workspace->store;
    size_t writable = 0;
    struct handle *reader = NULL, *writer = NULL;
    store_lock(store);
    for (struct handle *h = node->handles; h; h = h->after) {
        writable += h->writable;
        *(h->writable ? &writer : &reader) = h;
    }
    *ret = writable ? writer : reader;
    if (*ret)
        (*ret)->refs++;
    store_unlock(store);
    return writable;
}

static int ask(struct node *node)
{
    _cleanup_close_ int kept = -1;
    bool has_kept = take_kept(node, &kept);
    _cleanup_handle_ struct handle *handle = NULL;
    size_t writable = handles_of(node, &handle);
    if (writable > 1)
        return -EAGAIN;
    if (handle)
        return try_lease(handle->fd, writable ? F_WRLCK : F_RDLCK);
    return has_kept ? try_lease(kept, F_RDLCK) : ask_by_opening(node);
}

int writers_openat(int dir_fd, const char *path, int flags, mode_t mode)
{
    for (int tries = 1;; tries++) {
        int fd = openat(dir_fd, path, flags, mode);
        if (fd >= 0 || errno != EWOULDBLOCK || tries == LEASE_TRIES)
            return fd;
        (void)usleep(LEASE_WAIT_US);
    }
}

/* --- what is known ------------------------------------------------------------------ */

static bool is_checked(const struct node *node)
{
    return node->writers == WRITERS_CHECKING || node->writers == WRITERS_OPENED;
}

/* False: it is known that there are none. */
static bool begin(struct node *node)
{
    struct store *store = node->workspace->store;
    store_lock(store);
    while (is_checked(node))
        (void)pthread_cond_wait(&store->writers_found, &store->lock);
    bool begins = node->writers == WRITERS_UNKNOWN || node->writers == WRITERS_SOME;
    if (begins)
        node->writers = WRITERS_CHECKING;
    store_unlock(store);
    return begins;
}

static void set_locked(struct node *node, uint8_t writers)
{
    struct table *written = &node->workspace->store->written;
    /* Without memory for it, no barrier tells of the file; what is asked is answered rightly. */
    if (writers == WRITERS_SOME)
        (void)table_put(written, node->number, node, NULL);
    else
        (void)table_take(written, node->number);
    node->writers = writers;
}

/* answer: of ask. False: the file was opened meanwhile, perhaps too late for the answer. */
static bool end(struct node *node, int answer)
{
    struct store *store = node->workspace->store;
    store_lock(store);
    bool valid = answer < 0 || node->writers == WRITERS_CHECKING;
    set_locked(node, answer == 0 && valid               ? WRITERS_NONE
                     : answer == 0 || answer == -EAGAIN ? WRITERS_SOME
                                                        : WRITERS_UNKNOWN);
    (void)pthread_cond_broadcast(&store->writers_found);
    store_unlock(store);
    return valid;
}

/* -ENFILE: descriptors are kept until the events of their openings have come. */
static int ask_with_room(struct node *node)
{
    int r = ask(node);
    if (r != -ENFILE)
        return r;
    (void)store_detect(node->workspace->store);
    return ask(node);
}

bool writers_absent(struct node *node)
{
    if (node->type != S_IFREG)
        return true;
    for (int tries = 0; tries < ASK_TRIES && begin(node); tries++)
        if (end(node, ask_with_room(node)))
            break;
    store_lock(node->workspace->store);
    bool none = node->writers == WRITERS_NONE;
    store_unlock(node->workspace->store);
    return none;
}

void writers_check_made(struct node *node, int fd)
{
    if (changes_cover(node) && begin(node))
        (void)end(node, try_lease(fd, F_WRLCK));
}

void writers_opened(struct node *node)
{
    struct store *store = node->workspace->store;
    store_lock(store);
    if (node->writers == WRITERS_CHECKING)
        node->writers = WRITERS_OPENED;
    bool kept = node->writers == WRITERS_NONE;
    store_unlock(store);
    int r = kept ? ask(node) : 0;
    if (r == 0)
        return;
    /* First for those who ask from now on, then for those who have been told. */
    store_lock(store);
    set_locked(node, r == -EAGAIN ? WRITERS_SOME : WRITERS_UNKNOWN);
    store_unlock(store);
    changes_note(store, NULL, node, WIRE_CHANGE_CONTENT, (struct bytes){0});
}

void writers_lost(struct store *store)
{
    size_t cursor = 0;
    store_lock(store);
    for (struct node *n; (n = table_next(&store->nodes, &cursor));)
        for (; n; n = n->chain) {
            if (n->writers == WRITERS_NONE)
                n->writers = WRITERS_UNKNOWN;
            else if (n->writers == WRITERS_CHECKING)
                n->writers = WRITERS_OPENED;
            drop_kept_locked(n);
        }
    store_unlock(store);
}

void writers_forget_locked(struct node *node)
{
    (void)table_take(&node->workspace->store->written, node->number);
    drop_kept_locked(node);
}

/* --- barriers ------------------------------------------------------------------------ */

void store_note_written(struct store *store)
{
    struct node *some[WRITERS_CHECKED_MAX];
    size_t count = 0, cursor = 0;
    store_lock(store);
    for (struct node *n; (n = table_next(&store->written, &cursor));) {
        changes_note_locked(store, NULL, n, WIRE_CHANGE_CONTENT, (struct bytes){0});
        if (count < WRITERS_CHECKED_MAX) {
            n->refs++;
            some[count++] = n;
        }
    }
    store_unlock(store);
    /* What their last stores were has been noted, so who has none any more may be kept. */
    for (size_t i = 0; i < count; i++) {
        if (detect_covers(some[i]))
            (void)writers_absent(some[i]);
        node_unref(some[i]);
    }
}
