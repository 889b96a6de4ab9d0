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
    struct client *client;
};

struct connection {
    struct attempt *attempt; /* NULL unless a thread is connecting */
    pthread_t thread;
    struct event *connected;
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
        (void)pthread_mutex_unlock(&a->lock);
        int r = client_connect(&options, DRIVER_AGENT, &client, &f);
        if (r == 0) {
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
    int r = pthread_create(&c->thread, NULL, connect_thread, a);
    if (r != 0) {
        log_error("cannot start a thread to connect again: %s", strerror(r));
        attempt_free(a);
        driver_end(d, -r);
        return;
    }
    c->attempt = a;
}

static void lost(void *context, int error, const char *reason)
{
    struct driver *d = context;
    char text[256];
    if (!reason)
        reason = strerror(-error);
    log_warning("connection to %s lost: %s", d->settings->url,
                log_escape(reason, strlen(reason), text, sizeof text));
    struct session_stats stats = client_stats(d->client);
    d->stats.round_trips += stats.round_trips;
    d->stats.blocking += stats.blocking;
    client_free(take_ptr(d->client));
    coherence_disconnected(d);
    /* Nodes and handles of the old connection went with it. */
    d->inodes.connection++;
    d->inodes.forgets.len = 0;
    d->handles.releases.len = 0;
    reconnect(d);
}

static int attach(struct driver *d, struct client *client)
{
    struct client_events events = {.lost = lost, .context = d};
    int r = client_attach(client, d->base, &events);
    if (r < 0) {
        client_free(client);
        return r;
    }
    if (d->options->timeout_ms)
        client_set_deadline_ms(client, d->options->timeout_ms);
    d->client = client;
    return 0;
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
    attempt_free(a);
    c->attempt = NULL;
    if (!client) {
        reconnect(d);
        return;
    }
    const struct session_peer *peer = client_peer(client);
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
    if (!c->connected || event_add(c->connected, NULL) < 0) {
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
    /* A thread left behind may still write to it: it is closed with the process then. */
    if (!*ret_left_behind)
        close_fd(&c->event_fd);
    free(c);
    d->connection = NULL;
}
