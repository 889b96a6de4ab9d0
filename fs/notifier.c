#include "notifier.h"

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/buffer.h"
#include "base/cleanup.h"
#include "base/clock.h"

/* One thing to be forgotten. */
struct order {
    bool entry;
    bool content, drop;
    uint8_t name_len;
    uint64_t number; /* inode, or parent */
    uint64_t place;  /* inode: the directory in which the kernel may just be told of it */
    const char *name;
};

/* An order, or many. */
struct command {
    struct command *next;
    uint64_t stands; /* which one it is: they are counted up */
    struct order order;
    struct buffer batch; /* of struct order, each with its name behind it */
    size_t done;         /* of it */
    char name[];
};

/* To be called when all orders up to a number have been carried out. */
struct then {
    struct then *next;
    uint64_t behind;
    notifier_done_fn *done;
    void *context;
    uint64_t number;
};

struct command_queue {
    struct command *first, **last;
};

struct then_queue {
    struct then *first, **last;
};

/* Orders of a batch that are carried out before what was asked for later, and of the latter
 * before some of the batch: neither waits for the other's end. */
#define PORTION 64

/* READs in flight are counted in so many places. */
#define READING_SLOTS 64

/* So long it is waited for READs, of all that is to be forgotten at a time: the service may not
 * answer, or somebody may read without end. */
#define READING_MS 250

struct notifier {
    struct fuse_session *session;
    struct event *event;
    int event_fd;
    bool running;
    pthread_t thread;

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t wake;
    struct command_queue single, batches;
    struct then_queue thens, passed; /* waiting, and to be called */
    uint64_t count;                  /* of commands, ever */
    size_t left;                     /* orders of batches */
    bool stop;
    uint64_t call_since_ns;
    uint32_t reading[READING_SLOTS]; /* by inode */
    pthread_cond_t read;             /* one of these has become 0 */
    bool impatient;                  /* they have been waited for long enough */
};

static uint32_t *reading_slot(struct notifier *n, uint64_t id)
{
    return &n->reading[id % READING_SLOTS];
}

void notifier_read_begins(struct notifier *n, uint64_t id)
{
    (void)pthread_mutex_lock(&n->lock);
    ++*reading_slot(n, id);
    (void)pthread_mutex_unlock(&n->lock);
}

void notifier_read_ends(struct notifier *n, uint64_t id)
{
    (void)pthread_mutex_lock(&n->lock);
    if (--*reading_slot(n, id) == 0)
        (void)pthread_cond_signal(&n->read);
    (void)pthread_mutex_unlock(&n->lock);
}

/* The kernel takes the end of an answer for the end of the file only if it was told nothing of the
 * file since it asked; else it shows zeros behind it. So it is told when it has its answers. */
static void wait_for_reads_locked(struct notifier *n, uint64_t id)
{
    struct timespec end;
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    uint64_t ns = (uint64_t)end.tv_nsec + READING_MS * NSEC_PER_MSEC;
    end.tv_sec += (time_t)(ns / NSEC_PER_SEC);
    end.tv_nsec = (long)(ns % NSEC_PER_SEC);
    while (*reading_slot(n, id) && !n->stop && !n->impatient)
        n->impatient = pthread_cond_timedwait(&n->read, &n->lock, &end) != 0;
}

static int forget_inode(struct notifier *n, const struct order *o)
{
    return fuse_lowlevel_notify_inval_inode(n->session, o->number, o->content ? 0 : -1, 0);
}

/* Returns when the kernel has taken in what it was told of names in the directory: it does so under
 * the lock of the directory, which this call takes, for a name that no entry has. */
static void wait_for_names(struct notifier *n, uint64_t directory)
{
    (void)fuse_lowlevel_notify_inval_entry(n->session, directory, ".", 1);
}

/* An error means that there is nothing to forget, or nobody left to. */
static void carry_out(struct notifier *n, const struct order *o)
{
    if (!o->entry) {
        /* An inode that the kernel does not know is one that it has given back, or one of which it
         * has been told without having taken that in, since the program that asked waits for the
         * processor. */
        if (forget_inode(n, o) == -ENOENT && o->place) {
            wait_for_names(n, o->place);
            (void)forget_inode(n, o);
        }
    } else if (o->drop ||
               fuse_lowlevel_notify_expire_entry(n->session, o->number, o->name, o->name_len,
                                                 FUSE_LL_EXPIRE_ONLY) == -ENOSYS) {
        (void)fuse_lowlevel_notify_inval_entry(n->session, o->number, o->name, o->name_len);
    }
}

static void carry_out_locked(struct notifier *n, const struct order *o)
{
    n->call_since_ns = clock_monotonic_ns();
    if (!o->entry && o->content)
        wait_for_reads_locked(n, o->number);
    (void)pthread_mutex_unlock(&n->lock);
    carry_out(n, o);
    (void)pthread_mutex_lock(&n->lock);
    n->call_since_ns = 0;
}

static void command_free(struct command *c)
{
    buffer_release(&c->batch);
    free(c);
}

static void command_add(struct command_queue *q, struct command *c)
{
    c->next = NULL;
    *q->last = c;
    q->last = &c->next;
}

/* Its first is done. */
static void command_done(struct command_queue *q)
{
    struct command *c = q->first;
    q->first = c->next;
    if (!q->first)
        q->last = &q->first;
    command_free(c);
}

static void then_add(struct then_queue *q, struct then *t)
{
    t->next = NULL;
    *q->last = t;
    q->last = &t->next;
}

static struct then *then_take(struct then_queue *q)
{
    struct then *t = q->first;
    q->first = t->next;
    if (!q->first)
        q->last = &q->first;
    return t;
}

static void single_locked(struct notifier *n)
{
    for (int i = 0; i < PORTION && n->single.first && !n->stop; i++) {
        carry_out_locked(n, &n->single.first->order);
        command_done(&n->single);
    }
}

static void batch_locked(struct notifier *n)
{
    struct command *c = n->batches.first;
    for (int i = 0; i < PORTION && c && c->done < c->batch.len && !n->stop; i++) {
        struct order o;
        memcpy(&o, c->batch.data + c->done, sizeof o);
        o.name = (const char *)c->batch.data + c->done + sizeof o;
        c->done += sizeof o + o.name_len + 1;
        n->left--;
        carry_out_locked(n, &o);
    }
    if (c && c->done >= c->batch.len)
        command_done(&n->batches);
}

static bool is_passed(const struct notifier *n, const struct then *t)
{
    const struct command *single = n->single.first, *batch = n->batches.first;
    return (!single || single->stands > t->behind) && (!batch || batch->stands > t->behind);
}

static void pass_locked(struct notifier *n)
{
    bool any = false;
    while (n->thens.first && is_passed(n, n->thens.first)) {
        then_add(&n->passed, then_take(&n->thens));
        any = true;
    }
    if (any)
        (void)eventfd_write(n->event_fd, 1);
}

static void *run(void *context)
{
    struct notifier *n = context;
    (void)pthread_mutex_lock(&n->lock);
    while (!n->stop) {
        if (!n->single.first && !n->batches.first && !n->thens.first) {
            n->impatient = false;
            (void)pthread_cond_wait(&n->wake, &n->lock);
        }
        single_locked(n);
        batch_locked(n);
        pass_locked(n);
    }
    (void)pthread_mutex_unlock(&n->lock);
    return NULL;
}

static void on_passed(evutil_socket_t fd, short what, void *context)
{
    struct notifier *n = context;
    eventfd_t value;
    (void)eventfd_read(fd, &value);
    (void)pthread_mutex_lock(&n->lock);
    struct then *t = n->passed.first, *next;
    n->passed = (struct then_queue){.last = &n->passed.first};
    (void)pthread_mutex_unlock(&n->lock);
    for (; t; t = next) {
        next = t->next;
        t->done(t->context, t->number);
        free(t);
    }
}

int notifier_new(struct event_base *base, struct fuse_session *session, struct notifier **ret)
{
    struct notifier *n = calloc(1, sizeof *n);
    if (!n)
        return -ENOMEM;
    n->session = session;
    n->single.last = &n->single.first;
    n->batches.last = &n->batches.first;
    n->thens.last = &n->thens.first;
    n->passed.last = &n->passed.first;
    (void)pthread_mutex_init(&n->lock, NULL);
    (void)pthread_cond_init(&n->wake, NULL);
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&n->read, &attr);
    (void)pthread_condattr_destroy(&attr);
    n->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = n->event_fd < 0 ? -errno : 0;
    if (r == 0) {
        n->event = event_new(base, n->event_fd, EV_READ | EV_PERSIST, on_passed, n);
        if (!n->event || event_add(n->event, NULL) < 0)
            r = -ENOMEM;
    }
    if (r == 0)
        r = -pthread_create(&n->thread, NULL, run, n);
    n->running = r == 0;
    if (r < 0) {
        notifier_free(n);
        return r;
    }
    *ret = n;
    return 0;
}

static void end_queues(struct notifier *n)
{
    while (n->single.first)
        command_done(&n->single);
    while (n->batches.first)
        command_done(&n->batches);
    while (n->thens.first)
        then_add(&n->passed, then_take(&n->thens));
    while (n->passed.first) {
        struct then *t = then_take(&n->passed);
        t->done(t->context, t->number);
        free(t);
    }
}

void notifier_free(struct notifier *n)
{
    if (!n)
        return;
    (void)pthread_mutex_lock(&n->lock);
    n->stop = true;
    (void)pthread_cond_signal(&n->wake);
    (void)pthread_cond_signal(&n->read);
    (void)pthread_mutex_unlock(&n->lock);
    if (n->running)
        (void)pthread_join(n->thread, NULL);
    end_queues(n);
    if (n->event)
        event_free(n->event);
    close_fd(&n->event_fd);
    (void)pthread_cond_destroy(&n->wake);
    (void)pthread_cond_destroy(&n->read);
    (void)pthread_mutex_destroy(&n->lock);
    free(n);
}

static int add(struct notifier *n, const struct order *order, struct bytes name)
{
    struct command *c = malloc(sizeof *c + name.len + 1);
    if (!c)
        return -ENOMEM;
    *c = (struct command){.order = *order};
    if (name.len)
        memcpy(c->name, name.data, name.len);
    c->name[name.len] = '\0';
    c->order.name = c->name;
    c->order.name_len = (uint8_t)name.len;
    (void)pthread_mutex_lock(&n->lock);
    c->stands = ++n->count;
    command_add(&n->single, c);
    (void)pthread_cond_signal(&n->wake);
    (void)pthread_mutex_unlock(&n->lock);
    return 0;
}

int notifier_inode(struct notifier *n, uint64_t id, uint64_t place, bool content)
{
    const struct order o = {.number = id, .place = place, .content = content};
    return add(n, &o, (struct bytes){0});
}

int notifier_entry(struct notifier *n, uint64_t parent, struct bytes name, bool drop)
{
    const struct order o = {.entry = true, .number = parent, .drop = drop};
    return add(n, &o, name);
}

static int batch_add(struct buffer *batch, const struct order *order, struct bytes name)
{
    int r = buffer_reserve(batch, sizeof *order + name.len + 1);
    if (r < 0)
        return r;
    uint8_t *at = batch->data + batch->len;
    memcpy(at, order, sizeof *order);
    if (name.len)
        memcpy(at + sizeof *order, name.data, name.len);
    at[sizeof *order + name.len] = '\0';
    batch->len += sizeof *order + name.len + 1;
    return 0;
}

int notifier_batch_inode(struct buffer *batch, uint64_t id, uint64_t place)
{
    const struct order o = {.number = id, .place = place, .content = true};
    return batch_add(batch, &o, (struct bytes){0});
}

int notifier_batch_entry(struct buffer *batch, uint64_t parent, struct bytes name, bool drop)
{
    const struct order o = {
        .entry = true, .number = parent, .drop = drop, .name_len = (uint8_t)name.len};
    return batch_add(batch, &o, name);
}

int notifier_batch(struct notifier *n, struct buffer *batch, size_t orders)
{
    struct command *c = calloc(1, sizeof *c + 1);
    if (!c)
        return -ENOMEM;
    c->batch = *batch;
    *batch = (struct buffer){0};
    (void)pthread_mutex_lock(&n->lock);
    c->stands = ++n->count;
    n->left += orders;
    command_add(&n->batches, c);
    (void)pthread_cond_signal(&n->wake);
    (void)pthread_mutex_unlock(&n->lock);
    return 0;
}

int notifier_then(struct notifier *n, notifier_done_fn *done, void *context, uint64_t number)
{
    struct then *t = malloc(sizeof *t);
    if (!t)
        return -ENOMEM;
    *t = (struct then){.done = done, .context = context, .number = number};
    (void)pthread_mutex_lock(&n->lock);
    t->behind = n->count;
    then_add(&n->thens, t);
    (void)pthread_cond_signal(&n->wake);
    (void)pthread_mutex_unlock(&n->lock);
    return 0;
}

size_t notifier_left(struct notifier *n)
{
    (void)pthread_mutex_lock(&n->lock);
    size_t left = n->left;
    (void)pthread_mutex_unlock(&n->lock);
    return left;
}

uint64_t notifier_stuck_ns(struct notifier *n)
{
    (void)pthread_mutex_lock(&n->lock);
    uint64_t since = n->call_since_ns;
    (void)pthread_mutex_unlock(&n->lock);
    return since ? clock_monotonic_ns() - since : 0;
}
