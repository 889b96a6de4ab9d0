#include "egress/egress.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "egress/private.h"

/* Connections that are taken in one turn of the loop, so that others have theirs. */
#define ACCEPT_MAX 16

/* Descriptors of a connection, both ends, and of the attempts at one. */
#define VISIT_DESCRIPTORS 2

/* Of this process, for all else. */
#define OTHER_DESCRIPTORS 64

/* How long taking connections is put off when there are too many. */
#define PAUSE_MS 100

/* --- taking connections ---------------------------------------------------------------------- */

static void fill_tokens(struct egress_workspace *w)
{
    const struct egress_limits *limits = &w->egress->limits;
    uint64_t now = clock_monotonic_ns();
    w->tokens += (double)(now - w->filled_ns) / (double)NSEC_PER_SEC * limits->per_second;
    if (w->tokens > limits->burst)
        w->tokens = limits->burst;
    w->filled_ns = now;
}

/* A workspace's part of what this process can have open is the same for all. */
static bool has_room(const struct egress_workspace *w)
{
    const struct egress *e = w->egress;
    size_t part = e->descriptors / VISIT_DESCRIPTORS / e->workspaces.count;
    return w->count < e->limits.connections && w->count < (part > 0 ? part : 1);
}

static void on_refill(evutil_socket_t fd, short what, void *context)
{
    struct egress_workspace *w = context;
    (void)event_add(w->acceptable, NULL);
}

/* Those that wait do so in the kernel, in the workspace's own socket. */
static void pause_accepting(struct egress_workspace *w)
{
    const struct timeval time = {.tv_usec = PAUSE_MS * 1000};
    (void)event_del(w->acceptable);
    (void)event_add(w->refill, &time);
}

static void on_acceptable(evutil_socket_t listener, short what, void *context)
{
    struct egress_workspace *w = context;
    /* Who connects now is served by the next process, and notices nothing. */
    if (settings_lost(&w->egress->settings)) {
        log_info("egress: what names are resolved with was replaced: beginning anew");
        (void)event_base_loopbreak(w->egress->base);
        return;
    }
    fill_tokens(w);
    for (size_t i = 0; i < ACCEPT_MAX; i++) {
        if (w->tokens < 1 || !has_room(w)) {
            pause_accepting(w);
            return;
        }
        _cleanup_close_ int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                pause_accepting(w);
            return;
        }
        w->tokens -= 1;
        if (visit_new(w, &fd) < 0) {
            log_error("egress: no memory for a connection");
            continue;
        }
        w->egress->counts.connections++;
        egress_counted(w->egress);
    }
}

void egress_workspace_visit_ended(struct egress_workspace *w)
{
    w->count--;
    w->egress->counts.connections--;
    egress_counted(w->egress);
    if (!event_pending(w->acceptable, EV_READ, NULL) && w->tokens >= 1)
        (void)event_add(w->acceptable, NULL);
}

/* --- workspaces ------------------------------------------------------------------------------ */

static void workspace_free(struct egress_workspace *w)
{
    struct visit *v;
    if (w->acceptable)
        event_free(take_ptr(w->acceptable));
    if (w->refill)
        event_free(take_ptr(w->refill));
    while ((v = TAILQ_FIRST(&w->visits)))
        visit_free(v);
    close_fd(&w->listener);
    allow_list_free(w->list);
    free(w->name);
    free(w);
}

int egress_open(struct egress *e, uint64_t id, const char *name, int *listener,
                struct allow_list **list)
{
    if (table_get(&e->workspaces, id))
        return -EEXIST;
    if (e->workspaces.count >= EGRESS_WORKSPACES_MAX)
        return -ENFILE;
    struct egress_workspace *w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    *w = (struct egress_workspace){.egress = e,
                                   .id = id,
                                   .name = strdup(name),
                                   .listener = -1,
                                   .tokens = e->limits.burst,
                                   .filled_ns = clock_monotonic_ns()};
    TAILQ_INIT(&w->visits);
    (void)evutil_make_socket_nonblocking(*listener);
    w->acceptable = event_new(e->base, *listener, EV_READ | EV_PERSIST, on_acceptable, w);
    w->refill = evtimer_new(e->base, on_refill, w);
    if (!w->name || !w->acceptable || !w->refill || event_add(w->acceptable, NULL) < 0 ||
        table_put(&e->workspaces, id, w, NULL) < 0) {
        workspace_free(w);
        return -ENOMEM;
    }
    w->listener = take_fd(listener);
    w->list = take_ptr(*list);
    return 0;
}

int egress_change(struct egress *e, uint64_t id, struct allow_list **list)
{
    struct egress_workspace *w = table_get(&e->workspaces, id);
    struct visit *next;
    if (!w)
        return -ENOENT;
    allow_list_free(w->list);
    w->list = take_ptr(*list);
    for (struct visit *v = TAILQ_FIRST(&w->visits); v; v = next) {
        next = visit_next(v);
        visit_check(v);
    }
    return 0;
}

void egress_close(struct egress *e, uint64_t id)
{
    struct egress_workspace *w = table_take(&e->workspaces, id);
    if (w)
        workspace_free(w);
}

/* --- the proxy ------------------------------------------------------------------------------- */

static size_t descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur <= 2 * OTHER_DESCRIPTORS)
        return OTHER_DESCRIPTORS;
    return limit.rlim_cur == RLIM_INFINITY ? SIZE_MAX / 2 : limit.rlim_cur - OTHER_DESCRIPTORS;
}

int egress_new(struct event_base *base, const struct egress_limits *limits, struct egress **ret)
{
    struct egress *e = calloc(1, sizeof *e);
    if (!e)
        return -ENOMEM;
    e->base = base;
    e->limits = *limits;
    e->descriptors = descriptors();
    e->counts_fd = -1;
    settings_look(&e->settings);
    int r = resolver_new(base, &e->resolver);
    if (r < 0) {
        free(e);
        return r;
    }
    *ret = e;
    return 0;
}

void egress_count(struct egress *e, int fd)
{
    e->counts_fd = fd;
    counts_begin(fd, &e->counts);
}

void egress_counted(struct egress *e)
{
    if (e->counts_fd >= 0)
        counts_write(e->counts_fd, &e->counts);
}

void egress_free(struct egress *e)
{
    struct egress_workspace *w;
    if (!e)
        return;
    for (size_t i = 0; (w = table_next(&e->workspaces, &i));)
        workspace_free(w);
    table_release(&e->workspaces);
    resolver_free(e->resolver);
    free(e);
}
