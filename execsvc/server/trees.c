#include "server/trees.h"

#include "server/connection.h"
#include "server/subscribers.h"
#include "store/transfer.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>

/* A TREE_IN or TREE_OUT on its way. */
struct part {
    STAILQ_ENTRY(part) entry;
    uint64_t total;
    uint32_t count;
    bool end;
    size_t len;
    uint8_t data[];
};
STAILQ_HEAD(part_list, part);

struct tree_call {
    TAILQ_ENTRY(tree_call) entry;
    struct trees *trees;
    struct call *call; /* NULL: nobody wants the answer */
    struct wire_frame *frame;
    struct grant *grant;
    struct barrier *barrier; /* that is waited for */
    struct exec_hold *hold;  /* its commands stand still */
    bool running;
    pthread_t thread;
    int result;
    struct reply reply;

    /* Shared with the thread, under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct part_list in, out;
    size_t out_size;
    size_t taken; /* of `in`, and not granted again yet */
    bool ended;   /* no more comes */
    bool cancelled;
    bool done;
};

TAILQ_HEAD(tree_call_list, tree_call);

struct trees {
    struct server *server;
    struct tree_call_list calls;
    size_t count;
    int wake_fd;
    struct event *wake;
};

static void wake(const struct trees *t)
{
    const uint64_t one = 1;
    (void)!write(t->wake_fd, &one, sizeof one);
}

/* --- on its thread --------------------------------------------------------------------- */

static bool is_cancelled(void *context)
{
    struct tree_call *x = context;
    (void)pthread_mutex_lock(&x->lock);
    bool cancelled = x->cancelled;
    (void)pthread_mutex_unlock(&x->lock);
    return cancelled;
}

static int receive(void *context, struct buffer *list, uint32_t *ret_count, bool *ret_end)
{
    struct tree_call *x = context;
    (void)pthread_mutex_lock(&x->lock);
    while (STAILQ_EMPTY(&x->in) && !x->cancelled)
        (void)pthread_cond_wait(&x->changed, &x->lock);
    struct part *part = x->cancelled ? NULL : STAILQ_FIRST(&x->in);
    if (part) {
        STAILQ_REMOVE_HEAD(&x->in, entry);
        x->taken += session_item_cost(WIRE_TREE_IN, part->len);
    }
    (void)pthread_mutex_unlock(&x->lock);
    if (!part)
        return -ECANCELED;
    wake(x->trees);
    list->len = 0;
    int r = buffer_append(list, part->data, part->len);
    *ret_count = part->count;
    *ret_end = part->end;
    free(part);
    return r;
}

static int send_part(void *context, const struct wire_message *m)
{
    struct tree_call *x = context;
    const struct wire_list *items = &m->tree_out.items;
    struct part *part = malloc(sizeof *part + items->len);
    if (!part)
        return -ENOMEM;
    *part = (struct part){.total = m->tree_out.total, .count = items->count, .len = items->len};
    memcpy(part->data, items->data, items->len);
    (void)pthread_mutex_lock(&x->lock);
    while (x->out_size > TREES_WINDOW && !x->cancelled)
        (void)pthread_cond_wait(&x->changed, &x->lock);
    bool cancelled = x->cancelled;
    if (!cancelled) {
        STAILQ_INSERT_TAIL(&x->out, part, entry);
        x->out_size += part->len;
    }
    (void)pthread_mutex_unlock(&x->lock);
    if (cancelled) {
        free(part);
        return -ECANCELED;
    }
    wake(x->trees);
    return 0;
}

static bool shows(const void *context, struct bytes thread_id)
{
    return grant_covers(context, thread_id);
}

static void *thread_main(void *context)
{
    struct tree_call *x = context;
    const struct transfer transfer = {.shows = x->grant->everything ? NULL : shows,
                                      .shows_context = x->grant,
                                      .receive = receive,
                                      .send = send_part,
                                      .cancelled = is_cancelled,
                                      .context = x};
    x->result = store_transfer(x->trees->server->store, &transfer, &x->frame->message, &x->reply);
    (void)pthread_mutex_lock(&x->lock);
    x->done = true;
    (void)pthread_mutex_unlock(&x->lock);
    wake(x->trees);
    return NULL;
}

/* --- its end ----------------------------------------------------------------------------- */

static void drop_parts(struct part_list *list)
{
    struct part *part;
    while ((part = STAILQ_FIRST(list))) {
        STAILQ_REMOVE_HEAD(list, entry);
        free(part);
    }
}

static void tree_call_free(struct tree_call *x)
{
    struct trees *t = x->trees;
    TAILQ_REMOVE(&t->calls, x, entry);
    t->count--;
    if (x->barrier)
        barrier_cancel(x->barrier);
    exec_hold_end(x->hold);
    drop_parts(&x->in);
    drop_parts(&x->out);
    buffer_release(&x->reply.storage);
    wire_frame_free(x->frame);
    grant_unref(x->grant);
    (void)pthread_cond_destroy(&x->changed);
    (void)pthread_mutex_destroy(&x->lock);
    free(x);
}

static void answer(struct tree_call *x)
{
    static const struct call_events none = {0};
    struct call *call = take_ptr(x->call);
    if (call) {
        call_set_events(call, &none);
        if (x->result < 0)
            call_reply_error(call, x->result, x->reply.text[0] ? x->reply.text : NULL);
        else
            call_reply(call, &x->reply.message);
    }
    tree_call_free(x);
}

static void refuse(struct tree_call *x, int error, const char *text)
{
    x->result = error;
    (void)snprintf(x->reply.text, sizeof x->reply.text, "%s", text ? text : "");
    answer(x);
}

static void on_seen(void *context, bool all_seen)
{
    struct tree_call *x = context;
    x->barrier = NULL;
    answer(x);
}

/* Whoever is told that other files are there finds them on every mount. */
static void finish(struct tree_call *x)
{
    struct server *s = x->trees->server;
    struct barrier *barrier = NULL;
    (void)pthread_join(x->thread, NULL);
    x->running = false;
    exec_hold_end(take_ptr(x->hold));
    if (!x->call || x->result < 0 || x->frame->message.type != WIRE_WORKSPACE_RESTORE) {
        answer(x);
        return;
    }
    subscribers_wait(s->subscribers, NULL, on_seen, x, &barrier);
    if (barrier)
        x->barrier = barrier;
}

/* --- items on the loop --------------------------------------------------------------------- */

/* What is ready, as far as the client takes it. */
static void send_ready(struct tree_call *x)
{
    for (;;) {
        (void)pthread_mutex_lock(&x->lock);
        struct part *part = STAILQ_FIRST(&x->out);
        bool fits =
            part && x->call && call_credit(x->call) >= session_item_cost(WIRE_TREE_OUT, part->len);
        if (fits) {
            STAILQ_REMOVE_HEAD(&x->out, entry);
            x->out_size -= part->len;
            (void)pthread_cond_signal(&x->changed);
        }
        (void)pthread_mutex_unlock(&x->lock);
        if (!fits)
            return;
        const struct wire_message m = {
            .type = WIRE_TREE_OUT,
            .tree_out = {
                .total = part->total,
                .items = {.data = part->data, .len = (uint32_t)part->len, .count = part->count}}};
        (void)call_send(x->call, &m);
        free(part);
    }
}

static void grant_taken(struct tree_call *x)
{
    (void)pthread_mutex_lock(&x->lock);
    size_t taken = x->taken;
    if (taken >= TREES_WINDOW / 8 || !x->call)
        x->taken = 0;
    else
        taken = 0;
    (void)pthread_mutex_unlock(&x->lock);
    if (taken > 0 && x->call)
        (void)call_grant(x->call, taken);
}

static bool is_done(struct tree_call *x)
{
    (void)pthread_mutex_lock(&x->lock);
    bool done = x->done && (STAILQ_EMPTY(&x->out) || !x->call || x->result < 0);
    (void)pthread_mutex_unlock(&x->lock);
    return done;
}

static void on_wake(evutil_socket_t fd, short what, void *context)
{
    struct trees *t = context;
    uint64_t count;
    struct tree_call *next;
    (void)!read(fd, &count, sizeof count);
    for (struct tree_call *x = TAILQ_FIRST(&t->calls); x; x = next) {
        next = TAILQ_NEXT(x, entry);
        if (!x->running)
            continue;
        grant_taken(x);
        send_ready(x);
        if (is_done(x))
            finish(x);
    }
}

static void cancel(struct tree_call *x)
{
    (void)pthread_mutex_lock(&x->lock);
    x->cancelled = true;
    (void)pthread_cond_signal(&x->changed);
    (void)pthread_mutex_unlock(&x->lock);
}

static void on_gone(void *context)
{
    struct tree_call *x = context;
    x->call = NULL;
    if (x->running)
        cancel(x);
    else
        tree_call_free(x);
}

static void on_writable(void *context)
{
    const struct tree_call *x = context;
    wake(x->trees); /* not from within, since it may end the call */
}

static void take_in(struct tree_call *x, const struct wire_tree_in *in)
{
    struct part *part = x->ended ? NULL : malloc(sizeof *part + in->items.len);
    if (!part) {
        if (!x->ended)
            cancel(x);
        return;
    }
    *part = (struct part){.count = in->items.count, .end = in->end, .len = in->items.len};
    if (part->len)
        memcpy(part->data, in->items.data, part->len);
    x->ended = part->end;
    (void)pthread_mutex_lock(&x->lock);
    STAILQ_INSERT_TAIL(&x->in, part, entry);
    (void)pthread_cond_signal(&x->changed);
    (void)pthread_mutex_unlock(&x->lock);
}

static void on_message(void *context, const struct wire_message *m)
{
    struct tree_call *x = context;
    if (m->type == WIRE_TREE_IN)
        take_in(x, &m->tree_in);
    else if (m->type == WIRE_CANCEL)
        cancel(x);
}

/* --- its beginning --------------------------------------------------------------------------- */

static void start(struct tree_call *x)
{
    sigset_t all, before;
    if (is_cancelled(x)) {
        refuse(x, -ECANCELED, NULL);
        return;
    }
    /* Signals are for the loop's thread. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = -pthread_create(&x->thread, NULL, thread_main, x);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r < 0) {
        refuse(x, r, NULL);
        return;
    }
    x->running = true;
    if (x->frame->message.type == WIRE_WORKSPACE_CREATE)
        (void)call_grant(x->call, TREES_WINDOW);
}

static void on_held(void *context, int error, const char *text)
{
    struct tree_call *x = context;
    if (error < 0)
        refuse(x, error, text);
    else
        start(x);
}

/* Which workspace's commands must not run meanwhile, and what becomes of them. */
static bool needs_hold(const struct wire_message *m, struct exec_hold_options *ret)
{
    *ret = (struct exec_hold_options){0};
    if (m->type == WIRE_SNAPSHOT_CREATE && !(m->snapshot_create.flags & WIRE_SNAPSHOT_LIVE)) {
        ret->workspace = m->snapshot_create.workspace;
        ret->workspace_flags = m->snapshot_create.workspace_flags;
        ret->freeze = true;
        return true;
    }
    if (m->type == WIRE_WORKSPACE_RESTORE) {
        ret->workspace = m->workspace_restore.workspace;
        ret->workspace_flags = m->workspace_restore.workspace_flags;
        return true;
    }
    if (m->type == WIRE_WORKSPACE_CREATE &&
        (m->workspace_create.flags & WIRE_WORKSPACE_FROM_WORKSPACE) &&
        !(m->workspace_create.flags & WIRE_WORKSPACE_LIVE)) {
        ret->workspace = m->workspace_create.source;
        ret->freeze = true;
        return ret->workspace.len > 0;
    }
    return false;
}

static void on_synced(void *context, bool all)
{
    struct tree_call *x = context;
    struct exec_hold_options options;
    x->barrier = NULL;
    if (!needs_hold(&x->frame->message, &options)) {
        start(x);
        return;
    }
    options.held = on_held;
    options.context = x;
    exec_service_hold(x->trees->server->exec, &options, &x->hold);
}

static bool reads_tree(const struct wire_message *m)
{
    return m->type == WIRE_SNAPSHOT_CREATE || m->type == WIRE_WORKSPACE_RESTORE ||
           (m->type == WIRE_TREE_EXPORT && m->tree_export.workspace.len > 0) ||
           (m->type == WIRE_WORKSPACE_CREATE &&
            (m->workspace_create.flags & WIRE_WORKSPACE_FROM_WORKSPACE));
}

static bool is_too_much(const struct trees *t, const struct connection *c)
{
    const struct tree_call *x;
    size_t of_identity = 0;
    TAILQ_FOREACH(x, &t->calls, entry)
    {
        of_identity += strcmp(x->grant->id, connection_grant(c)->id) == 0;
    }
    return t->count >= TREES_MAX || of_identity >= TREES_OF_IDENTITY_MAX;
}

void trees_begin(struct trees *t, struct call *call, struct wire_frame *frame)
{
    struct barrier *barrier = NULL;
    struct tree_call *x = is_too_much(t, call->connection) ? NULL : calloc(1, sizeof *x);
    if (!x) {
        bool much = is_too_much(t, call->connection);
        call_reply_error(call, much ? -EAGAIN : -ENOMEM,
                         much ? "as many trees are on their way as can be; try again" : NULL);
        wire_frame_free(frame);
        return;
    }
    x->trees = t;
    x->call = call;
    x->frame = frame;
    x->grant = grant_ref(connection_grant(call->connection));
    (void)pthread_mutex_init(&x->lock, NULL);
    (void)pthread_cond_init(&x->changed, NULL);
    STAILQ_INIT(&x->in);
    STAILQ_INIT(&x->out);
    TAILQ_INSERT_TAIL(&t->calls, x, entry);
    t->count++;
    const struct call_events events = {
        .message = on_message, .writable = on_writable, .gone = on_gone, .context = x};
    call_set_events(call, &events);
    if (!reads_tree(&frame->message)) {
        on_synced(x, true);
        return;
    }
    subscribers_sync(t->server->subscribers, 0, on_synced, x, &barrier);
    if (barrier)
        x->barrier = barrier;
}

/* --- all ------------------------------------------------------------------------------------- */

size_t trees_count(const struct trees *t)
{
    return t->count;
}

int trees_new(struct server *s, struct trees **ret)
{
    struct trees *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->server = s;
    TAILQ_INIT(&t->calls);
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = t->wake_fd < 0 ? -errno : 0;
    if (r == 0) {
        t->wake = event_new(s->base, t->wake_fd, EV_READ | EV_PERSIST, on_wake, t);
        r = !t->wake || event_add(t->wake, NULL) < 0 ? -ENOMEM : 0;
    }
    if (r < 0) {
        trees_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

void trees_free(struct trees *t)
{
    struct tree_call *x;
    if (!t)
        return;
    TAILQ_FOREACH(x, &t->calls, entry)
    cancel(x);
    while ((x = TAILQ_FIRST(&t->calls))) {
        x->call = NULL;
        if (x->running)
            (void)pthread_join(x->thread, NULL);
        tree_call_free(x);
    }
    if (t->wake)
        event_free(t->wake);
    close_fd(&t->wake_fd);
    free(t);
}
