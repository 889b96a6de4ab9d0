#include "connection.h"

#include <inttypes.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/log.h"
#include "coherence.h"
#include "lock.h"
#include "prune.h"
#include "request.h"
#include "supervisor.h"

#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 5000

/* Shared with the connecting thread, guarded by `lock`. Freed by whoever comes last. */
struct attempt {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* CLOCK_MONOTONIC */
    const struct client_settings *settings;
    struct visibility_rules *rules; /* the mount's, which do not change without a connection */
    int event_fd;
    bool stop;
    bool finished;
    bool resumes; /* a session, at this point */
    struct session_resume point;
    struct client *client;
    uint64_t abandoned; /* what client's HELLO said of it */
};

struct connection {
    struct attempt *attempt; /* NULL unless a thread is connecting */
    pthread_t thread;
    struct event *connected;
    struct event *expire; /* calls in flight, while the session is suspended */
    int event_fd;
    uint8_t service_id[16];
};

static void attempt_free(struct attempt *a)
{
    (void)pthread_cond_destroy(&a->wake);
    (void)pthread_mutex_destroy(&a->lock);
    visibility_rules_unref(a->rules);
    free(a);
}

/* Waits, with the lock held, until the time is over or the attempt is to stop. */
static void wait_locked(struct attempt *a, uint32_t ms)
{
    uint64_t until = clock_monotonic_ns() + ms * NSEC_PER_MSEC;
    struct timespec t = {.tv_sec = (time_t)(until / NSEC_PER_SEC),
                         .tv_nsec = (long)(until % NSEC_PER_SEC)};
    while (!a->stop && pthread_cond_timedwait(&a->wake, &a->lock, &t) == 0)
        ;
}

static void *connect_thread(void *argument)
{
    struct attempt *a = argument;
    uint32_t backoff_ms = BACKOFF_MIN_MS;
    char last[FAILURE_TEXT_MAX] = "";
    (void)pthread_mutex_lock(&a->lock);
    while (!a->stop) {
        struct stream_options options = client_settings_stream(a->settings);
        struct client *client;
        struct failure f;
        const struct session_resume point = a->point;
        bool resumes = a->resumes;
        (void)pthread_mutex_unlock(&a->lock);
        int r = client_connect_again(&options, DRIVER_AGENT, resumes ? &point : NULL, &client, &f);
        if (r == 0 && !client_peer(client)->resumed) {
            /* Before anything is asked that they are about. */
            r = prune_tell(client, a->rules, &f);
            if (r < 0)
                client_free(client);
        }
        if (r < 0 && strcmp(last, f.text) != 0) {
            log_warning("%s; trying again", f.text);
            memcpy(last, f.text, sizeof last);
        }
        (void)pthread_mutex_lock(&a->lock);
        if (r == 0) {
            a->client = client;
            a->abandoned = point.abandoned;
            break;
        }
        wait_locked(a, backoff_ms);
        backoff_ms = backoff_ms * 2 < BACKOFF_MAX_MS ? backoff_ms * 2 : BACKOFF_MAX_MS;
    }
    a->finished = true;
    bool stop = a->stop;
    if (!stop)
        (void)eventfd_write(a->event_fd, 1);
    (void)pthread_mutex_unlock(&a->lock);
    if (stop) {
        /* Detached by connection_stop: nobody else knows of it any more. */
        if (a->client)
            client_free(a->client);
        attempt_free(a);
    }
    return NULL;
}

static void reconnect(struct driver *d)
{
    struct connection *c = d->connection;
    struct attempt *a = calloc(1, sizeof *a);
    if (!a) {
        log_error("out of memory; not connecting again");
        driver_end(d, -ENOMEM);
        return;
    }
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&a->wake, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    (void)pthread_mutex_init(&a->lock, NULL);
    a->settings = d->settings;
    a->rules = d->rules ? visibility_rules_ref(d->rules) : NULL;
    a->event_fd = c->event_fd;
    a->resumes = d->suspended;
    if (a->resumes)
        a->point = client_resume_point(d->suspended);
    int r = pthread_create(&c->thread, NULL, connect_thread, a);
    if (r != 0) {
        log_error("cannot start a thread to connect again: %s", strerror(r));
        attempt_free(a);
        driver_end(d, -r);
        return;
    }
    c->attempt = a;
}

/* The session has gone, and with it nodes and handles. */
static void session_lost(struct driver *d, struct client *client)
{
    struct session_stats stats = client_stats(client);
    d->stats.round_trips += stats.round_trips;
    d->stats.blocking += stats.blocking;
    client_free(client);
    coherence_disconnected(d);
    d->inodes.connection++;
    d->inodes.forgets.len = 0;
    d->handles.releases.len = 0;
}

static void log_loss(const struct driver *d, const char *reason)
{
    char text[256];
    log_warning("connection to %s lost: %s", d->settings->url,
                log_escape(reason, strlen(reason), text, sizeof text));
}

static void lost(void *context, int error, const char *reason)
{
    struct driver *d = context;
    log_loss(d, reason ? reason : strerror(-error));
    session_lost(d, take_ptr(d->client));
    reconnect(d);
}

static void suspended(void *context, const char *reason)
{
    struct driver *d = context;
    uint32_t ms = d->options->timeout_ms;
    const struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    log_loss(d, reason);
    d->suspended = take_ptr(d->client);
    (void)event_add(d->connection->expire, &tv);
    reconnect(d);
}

static void give_up_session(struct driver *d)
{
    struct client *client = take_ptr(d->suspended);
    (void)event_del(d->connection->expire);
    client_lose(client);
    session_lost(d, client);
}

/* Those who wait have waited for as long as they were to. */
static void on_expire(evutil_socket_t fd, short what, void *context)
{
    struct driver *d = context;
    struct attempt *a = d->connection->attempt;
    if (!d->suspended)
        return;
    d->abandoning = true;
    d->locks_abandoned = false;
    client_abandon(d->suspended);
    d->abandoning = false;
    /* Locks that may or may not be had: the claim of the next session ends this one's. */
    if (d->locks_abandoned)
        give_up_session(d);
    if (!a)
        return;
    (void)pthread_mutex_lock(&a->lock);
    a->resumes = d->suspended;
    if (a->resumes)
        a->point = client_resume_point(d->suspended);
    (void)pthread_mutex_unlock(&a->lock);
}

static void give_back_dirents(struct driver *d, const struct wire_list *entries)
{
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    while (wire_list_next(entries, &offset, &element))
        if (wire_decode(WIRE_DIRENT, element, &m) == 0 && m.dirent.node)
            inode_give_back(&d->inodes, m.dirent.node, 1);
}

/* Nobody waits for this answer any more: what it refers to is given back. */
static void late(void *context, const struct wire_message *m)
{
    struct driver *d = context;
    switch ((uint32_t)m->type) {
    case WIRE_ENTRY:
        inode_give_back(&d->inodes, m->entry.node, 1);
        break;
    case WIRE_WORKSPACE_ROOT:
        inode_give_back(&d->inodes, m->workspace_root.node, 1);
        break;
    case WIRE_CREATED:
        inode_give_back(&d->inodes, m->created.node, 1);
        (void)buffer_append_u64(&d->handles.releases, m->created.handle);
        break;
    case WIRE_OPENED:
        (void)buffer_append_u64(&d->handles.releases, m->opened.handle);
        break;
    case WIRE_DIRENTS:
        give_back_dirents(d, &m->dirents.entries);
        break;
    case WIRE_TREE:
        tree_take(&d->inodes, &m->tree, 0, 0, false);
        break;
    default: /* the others refer to nothing */
        break;
    }
    driver_notices_pending(d);
}

static int attach(struct driver *d, struct client *client)
{
    struct client_events events = {
        .lost = lost, .suspended = suspended, .late = late, .context = d};
    int r = client_attach(client, d->base, &events);
    if (r < 0) {
        client_free(client);
        return r;
    }
    if (d->options->timeout_ms)
        client_set_deadline_ms(client, d->options->timeout_ms);
    d->client = client;
    if (client_peer(client)->features & WIRE_FEATURE_RESUME)
        supervisor_session(d->supervisor, client_peer(client)->key);
    return 0;
}

/* The service goes on with the session, as it was when this connection was asked for. */
static void resume(struct driver *d, struct client *client, uint64_t abandoned)
{
    if (!d->suspended || client_resume_point(d->suspended).abandoned != abandoned) {
        client_discard(client);
        reconnect(d);
        return;
    }
    if (client_take_stream(d->suspended, client) < 0) {
        give_up_session(d);
        reconnect(d);
        return;
    }
    (void)event_del(d->connection->expire);
    d->client = take_ptr(d->suspended);
    d->stats.reconnects++;
    d->stats.resumes++;
    log_info("connected to %s again; everything goes on", d->settings->url);
    coherence_resumed(d);
    driver_notices_pending(d);
    request_resume_all(d);
}

static void on_connected(evutil_socket_t fd, short what, void *context)
{
    struct driver *d = context;
    struct connection *c = d->connection;
    struct attempt *a = c->attempt;
    eventfd_t value;
    (void)eventfd_read(c->event_fd, &value);
    if (!a)
        return;
    (void)pthread_join(c->thread, NULL);
    struct client *client = take_ptr(a->client);
    uint64_t abandoned = a->abandoned;
    attempt_free(a);
    c->attempt = NULL;
    if (!client) {
        reconnect(d);
        return;
    }
    const struct session_peer *peer = client_peer(client);
    if (peer->resumed) {
        resume(d, client, abandoned);
        return;
    }
    if (d->suspended)
        give_up_session(d);
    if (memcmp(peer->service_id, c->service_id, sizeof c->service_id) != 0) {
        /* Its files are other files, whatever their names and numbers. */
        log_error("another service answers at %s now; unmount and mount again to use it",
                  d->settings->url);
        client_free(client);
        driver_end(d, -ESTALE);
        return;
    }
    if (attach(d, client) < 0) {
        reconnect(d);
        return;
    }
    d->stats.reconnects++;
    log_info("connected to %s again", d->settings->url);
    coherence_connected(d);
    lock_recover(d);
    request_resume_all(d);
}

int connection_start(struct driver *d, struct client *client, struct failure *ret_failure)
{
    struct connection *c = calloc(1, sizeof *c);
    if (!c) {
        client_free(client);
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    }
    d->connection = c;
    c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->event_fd >= 0)
        c->connected = event_new(d->base, c->event_fd, EV_READ | EV_PERSIST, on_connected, d);
    c->expire = evtimer_new(d->base, on_expire, d);
    if (!c->connected || !c->expire || event_add(c->connected, NULL) < 0) {
        client_free(client);
        return failure_set(ret_failure, -ENOMEM, "cannot watch the connection");
    }
    memcpy(c->service_id, client_peer(client)->service_id, sizeof c->service_id);
    d->inodes.connection = 1;
    int r = attach(d, client);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot watch the connection: %s", strerror(-r));
    return 0;
}

void connection_stop(struct driver *d, bool *ret_left_behind)
{
    struct connection *c = d->connection;
    *ret_left_behind = false;
    d->stopping = true;
    if (d->client)
        client_free(take_ptr(d->client));
    if (d->suspended)
        client_free(take_ptr(d->suspended));
    if (!c)
        return;
    struct attempt *a = c->attempt;
    if (a) {
        (void)pthread_mutex_lock(&a->lock);
        a->stop = true;
        bool finished = a->finished;
        (void)pthread_cond_signal(&a->wake);
        if (finished) {
            (void)pthread_mutex_unlock(&a->lock);
            (void)pthread_join(c->thread, NULL);
            if (a->client)
                client_free(a->client);
            attempt_free(a);
        } else {
            (void)pthread_detach(c->thread);
            (void)pthread_mutex_unlock(&a->lock);
            *ret_left_behind = true;
        }
    }
    if (c->connected)
        event_free(c->connected);
    if (c->expire)
        event_free(c->expire);
    /* A thread left behind may still write to it: it is closed with the process then. */
    if (!*ret_left_behind)
        close_fd(&c->event_fd);
    free(c);
    d->connection = NULL;
}
