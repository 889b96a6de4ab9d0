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

enum command_kind { COMMAND_INODE, COMMAND_ENTRY, COMMAND_THEN };

struct command {
    struct command *next;
    enum command_kind kind;
    bool content, drop;
    uint64_t number; /* inode, parent, or what done is given */
    uint64_t place;  /* COMMAND_INODE: the directory in which the kernel may just be told of it */
    notifier_done_fn *done;
    void *context;
    size_t name_len;
    char name[];
};

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
    struct command *first, **last;
    struct command *passed, **last_passed; /* COMMAND_THEN, to be called */
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

static int forget_inode(struct notifier *n, const struct command *c)
{
    return fuse_lowlevel_notify_inval_inode(n->session, c->number, c->content ? 0 : -1, 0);
}

/* Returns when the kernel has taken in what it was told of names in the directory: it does so under
 * the lock of the directory, which this call takes, for a name that no entry has. */
static void wait_for_names(struct notifier *n, uint64_t directory)
{
    (void)fuse_lowlevel_notify_inval_entry(n->session, directory, ".", 1);
}

static void carry_out(struct notifier *n, const struct command *c)
{
    /* An error means that there is nothing to forget, or nobody left to. */
    switch (c->kind) {
    case COMMAND_INODE:
        /* An inode that the kernel does not know is one that it has given back, or one of which it
         * has been told without having taken that in, since the program that asked waits for the
         * processor. */
        if (forget_inode(n, c) == -ENOENT && c->place) {
            wait_for_names(n, c->place);
            (void)forget_inode(n, c);
        }
        break;
    case COMMAND_ENTRY:
        if (c->drop ||
            fuse_lowlevel_notify_expire_entry(n->session, c->number, c->name, c->name_len,
                                              FUSE_LL_EXPIRE_ONLY) == -ENOSYS)
            (void)fuse_lowlevel_notify_inval_entry(n->session, c->number, c->name, c->name_len);
        break;
    case COMMAND_THEN:
        break;
    }
}

static void append(struct command ***last, struct command *c)
{
    c->next = NULL;
    **last = c;
    *last = &c->next;
}

static void *run(void *context)
{
    struct notifier *n = context;
    (void)pthread_mutex_lock(&n->lock);
    while (!n->stop) {
        struct command *c = n->first;
        if (!c) {
            n->impatient = false;
            (void)pthread_cond_wait(&n->wake, &n->lock);
            continue;
        }
        n->first = c->next;
        if (!n->first)
            n->last = &n->first;
        if (c->kind == COMMAND_THEN) {
            append(&n->last_passed, c);
            (void)eventfd_write(n->event_fd, 1);
            continue;
        }
        n->call_since_ns = clock_monotonic_ns();
        if (c->kind == COMMAND_INODE && c->content)
            wait_for_reads_locked(n, c->number);
        (void)pthread_mutex_unlock(&n->lock);
        carry_out(n, c);
        (void)pthread_mutex_lock(&n->lock);
        n->call_since_ns = 0;
        free(c);
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
    struct command *c = n->passed, *next;
    n->passed = NULL;
    n->last_passed = &n->passed;
    (void)pthread_mutex_unlock(&n->lock);
    for (; c; c = next) {
        next = c->next;
        c->done(c->context, c->number);
        free(c);
    }
}

int notifier_new(struct event_base *base, struct fuse_session *session, struct notifier **ret)
{
    struct notifier *n = calloc(1, sizeof *n);
    if (!n)
        return -ENOMEM;
    n->session = session;
    n->last = &n->first;
    n->last_passed = &n->passed;
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

static void free_commands(struct command *c)
{
    for (struct command *next; c; c = next) {
        next = c->next;
        if (c->kind == COMMAND_THEN)
            c->done(c->context, c->number);
        free(c);
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
    free_commands(n->first);
    free_commands(n->passed);
    if (n->event)
        event_free(n->event);
    close_fd(&n->event_fd);
    (void)pthread_cond_destroy(&n->wake);
    (void)pthread_cond_destroy(&n->read);
    (void)pthread_mutex_destroy(&n->lock);
    free(n);
}

static int add(struct notifier *n, const struct command *command, struct bytes name)
{
    struct command *c = malloc(sizeof *c + name.len + 1);
    if (!c)
        return -ENOMEM;
    *c = *command;
    c->name_len = name.len;
    if (name.len)
        memcpy(c->name, name.data, name.len);
    c->name[name.len] = '\0';
    (void)pthread_mutex_lock(&n->lock);
    append(&n->last, c);
    (void)pthread_cond_signal(&n->wake);
    (void)pthread_mutex_unlock(&n->lock);
    return 0;
}

int notifier_inode(struct notifier *n, uint64_t id, uint64_t place, bool content)
{
    const struct command c = {
        .kind = COMMAND_INODE, .number = id, .place = place, .content = content};
    return add(n, &c, (struct bytes){0});
}

int notifier_entry(struct notifier *n, uint64_t parent, struct bytes name, bool drop)
{
    const struct command c = {.kind = COMMAND_ENTRY, .number = parent, .drop = drop};
    return add(n, &c, name);
}

int notifier_then(struct notifier *n, notifier_done_fn *done, void *context, uint64_t number)
{
    const struct command c = {
        .kind = COMMAND_THEN, .number = number, .done = done, .context = context};
    return add(n, &c, (struct bytes){0});
}

uint64_t notifier_stuck_ns(struct notifier *n)
{
    (void)pthread_mutex_lock(&n->lock);
    uint64_t since = n->call_since_ns;
    (void)pthread_mutex_unlock(&n->lock);
    return since ? clock_monotonic_ns() - since : 0;
}
