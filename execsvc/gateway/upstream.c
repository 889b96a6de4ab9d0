#include "gateway/upstream.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/queue.h>

#include "base/clock.h"
#include "base/log.h"

/* Credit is given back in portions: far below the window, so that the service never waits for it,
 * and not for each small item. */
#define GRANT_PORTION (CLIENT_WINDOW / 8)

struct upstream_call {
    LIST_ENTRY(upstream_call) link;
    struct upstream *upstream;
    uint64_t tag; /* 0: queued */
    enum wire_type type;
    struct wire_frame *first, **last; /* items not taken yet */
    size_t owed;                      /* credit to give back */
    bool answered;
    bool dropped;             /* nobody wants it; freed when its reply comes */
    int error;                /* of the reply */
    struct wire_frame *reply; /* NULL: the connection was lost */
};
LIST_HEAD(call_list, upstream_call);

struct upstream {
    struct event_base *base;
    struct client *client;
    struct event *timer;
    struct event *caller; /* readable: the caller has hung up */
    int caller_fd;        /* an epoll descriptor */
    char *url;
    struct call_list calls;
    uint64_t arrivals; /* things that came, ever */
    int lost;          /* 0 or the error */
    char reason[256];
    bool expired; /* the timer has fired */
    bool gone;    /* the caller is */
};

static void free_event(struct event **e)
{
    if (*e)
        event_free(*e);
    *e = NULL;
}

/* --- calls ----------------------------------------------------------------------------------- */

static struct wire_frame *take_item(struct upstream_call *call)
{
    struct wire_frame *frame = call->first;
    if (!frame)
        return NULL;
    call->first = frame->next;
    if (!call->first)
        call->last = &call->first;
    frame->next = NULL;
    return frame;
}

static void free_call(struct upstream_call *call)
{
    struct wire_frame *frame;
    LIST_REMOVE(call, link);
    while ((frame = take_item(call)))
        wire_frame_free(frame);
    wire_frame_free(call->reply);
    free(call);
}

static void cancel(struct upstream_call *call, uint32_t flags)
{
    const struct wire_message m = {.type = WIRE_CANCEL, .cancel.flags = flags};
    if (call->tag && !call->answered)
        (void)client_send(call->upstream->client, call->tag, &m);
}

static void forget_node(struct upstream *u, uint64_t node)
{
    struct buffer pair = {0};
    if (node && buffer_append_u64(&pair, node) == 0 && buffer_append_u64(&pair, 1) == 0) {
        const struct wire_message m = {.type = WIRE_FORGET, .forget.pairs = buffer_view(&pair)};
        (void)upstream_notify(u, &m);
    }
    buffer_release(&pair);
}

static void release_handle(struct upstream *u, uint64_t handle)
{
    const struct wire_message m = {.type = WIRE_RELEASE, .release.handle = handle};
    if (handle)
        (void)upstream_notify(u, &m);
}

/* A reply that nobody waits for. Only those that a single request gives one node or handle by: who
 * asks for many (READDIR, READTREE) waits for the answer. */
static void give_back(struct upstream *u, const struct wire_message *reply)
{
    switch ((int)reply->type) {
    case WIRE_ENTRY:
        forget_node(u, reply->entry.node);
        break;
    case WIRE_WORKSPACE_ROOT:
        forget_node(u, reply->workspace_root.node);
        break;
    case WIRE_MADE:
        forget_node(u, reply->made.node);
        break;
    case WIRE_CREATED:
        release_handle(u, reply->created.handle);
        forget_node(u, reply->created.node);
        break;
    case WIRE_OPENED:
        release_handle(u, reply->opened.handle);
        break;
    default:
        break;
    }
}

static void on_reply(void *context, int error, const struct wire_message *reply)
{
    struct upstream_call *call = context;
    struct upstream *u = call->upstream;
    u->arrivals++;
    if (call->dropped) {
        if (reply)
            give_back(u, reply);
        free_call(call);
        return;
    }
    call->answered = true;
    call->error = error;
    if (reply)
        call->reply = client_take_frame(u->client);
}

static void grant(struct upstream_call *call, size_t bytes)
{
    call->owed += bytes;
    if (call->answered || call->owed < GRANT_PORTION)
        return;
    (void)client_grant(call->upstream->client, call->tag, call->owed);
    call->owed = 0;
}

static size_t cost_of(const struct wire_frame *item)
{
    return wire_row(item->message.type)->class == WIRE_CLASS_ITEM ? item->payload.len : 0;
}

static void on_item(void *context, uint64_t tag, const struct wire_message *item)
{
    struct upstream_call *call = context;
    struct wire_frame *frame = client_take_frame(call->upstream->client);
    call->upstream->arrivals++;
    call->tag = tag;
    if (call->dropped) {
        grant(call, cost_of(frame));
        wire_frame_free(frame);
        return;
    }
    *call->last = frame;
    call->last = &frame->next;
}

static void on_writable(void *context, uint64_t tag)
{
    struct upstream_call *call = context;
    bool queued = call->tag == 0;
    call->upstream->arrivals++;
    call->tag = tag;
    if (call->dropped && queued)
        cancel(call, 0);
}

int upstream_start(struct upstream *u, const struct wire_message *request,
                   struct upstream_call **ret)
{
    if (u->lost)
        return -ENOTCONN;
    struct upstream_call *call = calloc(1, sizeof *call);
    if (!call)
        return -ENOMEM;
    call->upstream = u;
    call->type = request->type;
    call->last = &call->first;
    const struct client_call options = {.reply = on_reply,
                                        .item = on_item,
                                        .writable = on_writable,
                                        .context = call,
                                        .blocking = true};
    int r = client_call(u->client, request, &options, &call->tag);
    if (r < 0) {
        free(call);
        return r;
    }
    LIST_INSERT_HEAD(&u->calls, call, link);
    *ret = call;
    return 0;
}

void upstream_drop(struct upstream_call *call, uint32_t cancel_flags)
{
    if (!call)
        return;
    if (call->answered) {
        if (call->reply)
            give_back(call->upstream, &call->reply->message);
        free_call(call);
        return;
    }
    struct wire_frame *frame;
    while ((frame = take_item(call))) {
        grant(call, cost_of(frame));
        wire_frame_free(frame);
    }
    call->dropped = true;
    cancel(call, cancel_flags);
}

bool upstream_is_answered(const struct upstream_call *call)
{
    return call->answered;
}

int upstream_send(struct upstream_call *call, const struct wire_message *m)
{
    if (call->answered)
        return -ENOENT;
    return call->tag ? client_send(call->upstream->client, call->tag, m) : -EAGAIN;
}

size_t upstream_credit(const struct upstream_call *call)
{
    return call->answered || !call->tag ? 0 : client_credit(call->upstream->client, call->tag);
}

int upstream_notify(struct upstream *u, const struct wire_message *notice)
{
    return u->lost ? -ENOTCONN : client_send(u->client, 0, notice);
}

/* --- waiting --------------------------------------------------------------------------------- */

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct upstream *u = context;
    u->expired = true;
}

static void on_caller(evutil_socket_t fd, short what, void *context)
{
    struct upstream *u = context;
    u->gone = true;
}

/* Runs the loop until something has come since `arrivals` was read. */
static int wait_beyond(struct upstream *u, uint64_t arrivals, uint64_t deadline_ns)
{
    u->expired = false;
    if (deadline_ns != UINT64_MAX) {
        uint64_t now = clock_monotonic_ns();
        uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
        const struct timeval t = {.tv_sec = (time_t)(left / NSEC_PER_SEC),
                                  .tv_usec = (suseconds_t)(left % NSEC_PER_SEC / 1000)};
        if (evtimer_add(u->timer, &t) < 0)
            return -ENOMEM;
    }
    int r = 0;
    while (r == 0 && u->arrivals == arrivals && !u->gone && !u->lost && !u->expired)
        if (event_base_loop(u->base, EVLOOP_ONCE) < 0)
            r = -EIO;
    (void)evtimer_del(u->timer);
    if (r < 0 || u->arrivals != arrivals)
        return r;
    return u->gone ? -ECONNABORTED : u->lost ? u->lost : -EAGAIN;
}

static uint64_t deadline_of(int timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX
                          : clock_monotonic_ns() + (uint64_t)timeout_ms * NSEC_PER_MSEC;
}

int upstream_wait(struct upstream *u, int timeout_ms)
{
    if (u->lost)
        return -ENOTCONN;
    return wait_beyond(u, u->arrivals, deadline_of(timeout_ms));
}

int upstream_next(struct upstream_call *call, int timeout_ms, struct wire_frame **ret)
{
    struct upstream *u = call->upstream;
    uint64_t deadline = deadline_of(timeout_ms);
    for (;;) {
        struct wire_frame *frame = take_item(call);
        if (frame) {
            grant(call, cost_of(frame));
            *ret = frame;
            return 1;
        }
        if (call->answered)
            return 0;
        if (timeout_ms == 0)
            return -EAGAIN;
        int r = wait_beyond(u, u->arrivals, deadline);
        if (r < 0 && !call->answered)
            return r;
    }
}

static int answer_failure(const struct upstream_call *call, struct failure *f)
{
    const struct upstream *u = call->upstream;
    if (!call->reply && !u->lost)
        return failure_set(f, call->error, "the request cannot be sent: %s",
                           strerror(-call->error));
    if (!call->reply)
        return failure_set(f, call->error, "the connection to the service is lost: %s",
                           u->reason[0] ? u->reason : strerror(-call->error));
    const struct wire_error *e = &call->reply->message.error;
    char text[FAILURE_TEXT_MAX];
    (void)log_escape(e->text.data, e->text.len, text, sizeof text);
    return failure_set(f, call->error, "%s", *text ? text : strerror(-call->error));
}

int upstream_finish(struct upstream_call *call, struct wire_frame **ret,
                    struct failure *ret_failure)
{
    struct upstream *u = call->upstream;
    int r = 0;
    while (r == 0 && !call->answered) {
        /* What nobody takes must not stop the service from answering. */
        struct wire_frame *frame;
        while ((frame = take_item(call))) {
            grant(call, cost_of(frame));
            wire_frame_free(frame);
        }
        r = wait_beyond(u, u->arrivals, UINT64_MAX);
    }
    if (!call->answered) {
        upstream_drop(call, 0);
        return failure_set(ret_failure, r,
                           r == -ECONNABORTED ? "the caller has hung up" : "%s: waiting failed",
                           u->url);
    }
    if (call->error < 0) {
        r = answer_failure(call, ret_failure);
    } else {
        *ret = take_ptr(call->reply);
        r = 0;
    }
    free_call(call);
    return r;
}

int upstream_call(struct upstream *u, const struct wire_message *request, struct wire_frame **ret,
                  struct failure *ret_failure)
{
    struct upstream_call *call;
    int r = upstream_start(u, request, &call);
    if (r < 0)
        return failure_set(ret_failure, r, "the request cannot be sent: %s", strerror(-r));
    return upstream_finish(call, ret, ret_failure);
}

void upstream_flush(struct upstream *u)
{
    if (!u->lost)
        (void)event_base_loop(u->base, EVLOOP_NONBLOCK);
}

/* --- life ------------------------------------------------------------------------------------ */

static void on_lost(void *context, int error, const char *reason)
{
    struct upstream *u = context;
    u->lost = error;
    (void)snprintf(u->reason, sizeof u->reason, "%s", reason ? reason : "");
}

/* An epoll descriptor that asks for nothing is readable when the socket has hung up in both
 * directions, or has failed, and not when it has something to read. */
int upstream_set_caller(struct upstream *u, int fd)
{
    struct epoll_event none = {.events = 0};
    free_event(&u->caller);
    close_fd(&u->caller_fd);
    u->gone = false;
    if (fd < 0)
        return 0;
    _cleanup_close_ int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &none) < 0)
        return -errno;
    u->caller = event_new(u->base, epoll, EV_READ, on_caller, u);
    if (!u->caller || event_add(u->caller, NULL) < 0) {
        free_event(&u->caller);
        return -ENOMEM;
    }
    u->caller_fd = take_fd(&epoll);
    return 0;
}

static struct event_base *new_base(void)
{
    struct event_config *config = event_config_new();
    struct event_base *base = NULL;
    if (config && event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK) == 0)
        base = event_base_new_with_config(config);
    if (config)
        event_config_free(config);
    return base;
}

int upstream_open(const struct stream_options *options, const char *agent, struct upstream **ret,
                  struct failure *ret_failure)
{
    _cleanup_upstream_ struct upstream *u = calloc(1, sizeof *u);
    if (!u)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    LIST_INIT(&u->calls);
    u->caller_fd = -1;
    u->url = strdup(options->url);
    u->base = new_base();
    u->timer = u->base ? evtimer_new(u->base, on_timer, u) : NULL;
    if (!u->url || !u->timer)
        return failure_set(ret_failure, -ENOMEM, "%s: out of memory", options->url);
    int r = client_connect(options, agent, &u->client, ret_failure);
    if (r < 0)
        return r;
    const struct client_events events = {.lost = on_lost, .context = u};
    r = client_attach(u->client, u->base, &events);
    if (r < 0)
        return failure_set(ret_failure, r, "%s: %s", options->url, strerror(-r));
    *ret = take_ptr(u);
    return 0;
}

void upstream_free(struct upstream *u)
{
    if (!u)
        return;
    struct upstream_call *call;
    LIST_FOREACH(call, &u->calls, link)
    call->dropped = true;
    client_free(u->client); /* answers, and so frees, those that are open */
    while ((call = LIST_FIRST(&u->calls)))
        free_call(call);
    free_event(&u->timer);
    free_event(&u->caller);
    close_fd(&u->caller_fd);
    if (u->base)
        event_base_free(u->base);
    free(u->url);
    free(u);
}

bool upstream_is_lost(const struct upstream *u)
{
    return u->lost != 0;
}

const struct session_peer *upstream_peer(const struct upstream *u)
{
    return client_peer(u->client);
}

struct session_stats upstream_stats(const struct upstream *u)
{
    return client_stats(u->client);
}
