#include "egress/resolver.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>

#include "base/cleanup.h"
#include "egress/allow_list.h"

/* Enough for name service modules. */
#define STACK_SIZE ((size_t)512 << 10)

/* A look-up. It outlives its resolution's owner when that loses interest, since nothing stops
 * getaddrinfo. */
struct resolution {
    TAILQ_ENTRY(resolution) entry; /* in waiting, or in finished */
    struct resolver *resolver;
    uint64_t owner;
    bool running;
    resolver_done done; /* NULL: cancelled */
    void *context;
    char name[ALLOW_NAME_MAX + 1];
    int error;
    size_t count;
    struct address addresses[RESOLVER_ADDRESSES_MAX];
};

TAILQ_HEAD(resolution_list, resolution);

struct resolver {
    struct event *finish;
    int bell; /* rung by a thread that has finished */
    struct resolution_list waiting;
    size_t running;
    uint64_t owners[RESOLVER_RUNNING_MAX]; /* of those that run */
    pthread_mutex_t lock;
    /* Under the lock: */
    struct resolution_list finished;
    bool freed;     /* by its owner; the last thread frees it */
    size_t threads; /* that may still touch it */
};

static void resolver_release(struct resolver *r)
{
    struct resolution *one;
    while ((one = TAILQ_FIRST(&r->finished))) {
        TAILQ_REMOVE(&r->finished, one, entry);
        free(one);
    }
    close_fd(&r->bell);
    (void)pthread_mutex_destroy(&r->lock);
    free(r);
}

/* --- in a thread ----------------------------------------------------------------------------- */

static bool is_known(const struct resolution *one, const struct address *a)
{
    for (size_t i = 0; i < one->count; i++)
        if (address_equal(&one->addresses[i], a))
            return true;
    return false;
}

static void look_up(struct resolution *one)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    struct address a;
    one->error = getaddrinfo(one->name, NULL, &hints, &found);
    if (one->error != 0)
        return;
    for (const struct addrinfo *i = found; i && one->count < RESOLVER_ADDRESSES_MAX; i = i->ai_next)
        if (address_from_socket(i->ai_addr, &a) == 0 && !is_known(one, &a))
            one->addresses[one->count++] = a;
    freeaddrinfo(found);
    if (one->count == 0)
        one->error = EAI_NONAME;
}

static void *thread_run(void *context)
{
    struct resolution *one = context;
    struct resolver *r = one->resolver;
    look_up(one);
    (void)pthread_mutex_lock(&r->lock);
    TAILQ_INSERT_TAIL(&r->finished, one, entry);
    (void)eventfd_write(r->bell, 1);
    bool last = --r->threads == 0 && r->freed;
    (void)pthread_mutex_unlock(&r->lock);
    if (last)
        resolver_release(r);
    return NULL;
}

/* --- on the loop ----------------------------------------------------------------------------- */

static size_t count_owner(const struct resolver *r, uint64_t owner)
{
    size_t n = 0;
    for (size_t i = 0; i < r->running; i++)
        n += r->owners[i] == owner;
    return n;
}

static int start_thread(struct resolution *one)
{
    struct resolver *r = one->resolver;
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, old;
    int error = pthread_attr_init(&attributes);
    if (error != 0)
        return -error;
    (void)pthread_attr_setstacksize(&attributes, STACK_SIZE);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    (void)pthread_mutex_lock(&r->lock);
    r->threads++;
    (void)pthread_mutex_unlock(&r->lock);
    /* Signals are the loop's. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    error = pthread_create(&thread, &attributes, thread_run, one);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    (void)pthread_attr_destroy(&attributes);
    if (error != 0) {
        (void)pthread_mutex_lock(&r->lock);
        r->threads--;
        (void)pthread_mutex_unlock(&r->lock);
    }
    return -error;
}

/* Starts what may run. Without a thread nothing is lost: the next one that ends tries again, and if
 * there is none, it is said that the name cannot be looked up now. */
static void run_waiting(struct resolver *r)
{
    struct resolution *next;
    for (struct resolution *one = TAILQ_FIRST(&r->waiting);
         one && r->running < RESOLVER_RUNNING_MAX; one = next) {
        next = TAILQ_NEXT(one, entry);
        if (count_owner(r, one->owner) >= RESOLVER_OWNER_MAX)
            continue;
        TAILQ_REMOVE(&r->waiting, one, entry);
        one->running = true;
        r->owners[r->running++] = one->owner;
        if (start_thread(one) == 0)
            continue;
        one->error = EAI_AGAIN;
        (void)pthread_mutex_lock(&r->lock);
        TAILQ_INSERT_TAIL(&r->finished, one, entry);
        (void)eventfd_write(r->bell, 1);
        (void)pthread_mutex_unlock(&r->lock);
    }
}

static struct resolution *take_finished(struct resolver *r)
{
    (void)pthread_mutex_lock(&r->lock);
    struct resolution *one = TAILQ_FIRST(&r->finished);
    if (one)
        TAILQ_REMOVE(&r->finished, one, entry);
    (void)pthread_mutex_unlock(&r->lock);
    return one;
}

static void forget_owner(struct resolver *r, uint64_t owner)
{
    for (size_t i = 0; i < r->running; i++) {
        if (r->owners[i] != owner)
            continue;
        r->owners[i] = r->owners[--r->running];
        return;
    }
}

static void on_finish(evutil_socket_t fd, short what, void *context)
{
    struct resolver *r = context;
    struct resolution *one;
    eventfd_t ignored;
    (void)eventfd_read(r->bell, &ignored);
    while ((one = take_finished(r))) {
        forget_owner(r, one->owner);
        if (one->done)
            one->done(one->context, one->error, one->addresses, one->error ? 0 : one->count);
        free(one);
    }
    run_waiting(r);
}

int resolver_new(struct event_base *base, struct resolver **ret)
{
    struct resolver *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    TAILQ_INIT(&r->waiting);
    TAILQ_INIT(&r->finished);
    (void)pthread_mutex_init(&r->lock, NULL);
    r->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->bell >= 0)
        r->finish = event_new(base, r->bell, EV_READ | EV_PERSIST, on_finish, r);
    if (!r->finish || event_add(r->finish, NULL) < 0) {
        int error = r->bell < 0 ? -errno : -ENOMEM;
        resolver_free(r);
        return error;
    }
    *ret = r;
    return 0;
}

void resolver_free(struct resolver *r)
{
    struct resolution *one;
    if (!r)
        return;
    while ((one = TAILQ_FIRST(&r->waiting))) {
        TAILQ_REMOVE(&r->waiting, one, entry);
        free(one);
    }
    if (r->finish)
        event_free(r->finish);
    (void)pthread_mutex_lock(&r->lock);
    r->freed = true;
    bool last = r->threads == 0;
    (void)pthread_mutex_unlock(&r->lock);
    if (last)
        resolver_release(r);
}

int resolver_start(struct resolver *r, uint64_t owner, const char *name, resolver_done done,
                   void *context, struct resolution **ret)
{
    struct resolution *one = calloc(1, sizeof *one);
    if (!one)
        return -ENOMEM;
    *one = (struct resolution){.resolver = r, .owner = owner, .done = done, .context = context};
    (void)strncpy(one->name, name, sizeof one->name - 1);
    TAILQ_INSERT_TAIL(&r->waiting, one, entry);
    run_waiting(r);
    *ret = one;
    return 0;
}

void resolution_cancel(struct resolution *one)
{
    if (!one)
        return;
    one->done = NULL;
    if (one->running)
        return;
    TAILQ_REMOVE(&one->resolver->waiting, one, entry);
    free(one);
}
