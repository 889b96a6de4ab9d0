#include "connection.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/log.h"
#include "client/connector.h"
#include "control/control.h"
#include "coherence.h"
#include "disk.h"
#include "join.h"
#include "lock.h"
#include "outside.h"
#include "prune.h"
#include "request.h"
#include "supervisor.h"

/* The pause between attempts while a program waits. One to a socket of this machine costs nothing;
 * others start processes or cross networks. */
#define HURRY_LOCAL_MS 20
#define HURRY_MS 1000

/* Connections of a member of a joined mount that are lost within this time, more of them than that
 * in a row, are made again with pauses that grow: stops one that greets and goes away from taking
 * the time of the loop, which is the others' too. */
#define SHORT_LIVED_NS NSEC_PER_SEC
#define SHORT_LIVED_MAX 4
#define SHORT_LIVED_PAUSE_MS 5000

struct connection {
    struct connector *connector; /* NULL unless a thread is connecting */
    struct event *connected;
    struct event *expire; /* calls in flight, while the session is suspended */
    int event_fd;
    uint8_t service_id[16];
    struct session_resume last; /* what is said of a session that is over: it is to end */
    bool had_session;
    bool known;           /* service_id is */
    uint64_t came_ns;     /* when the connection came; 0: it has been accounted for */
    unsigned short_lived; /* of the last, in a row */
    bool quiet;
};

/* What a thread that connects needs, so that it can be left behind: all of it is its own, but for
 * the mountpoint, which lives as long as the process. And what a new session is told, or asked. */
struct greeting {
    struct client_settings settings;
    int event_fd; /* the same as the connection's */
    struct visibility_rules *rules;
    const char *mountpoint;
    bool joined;
    bool keeps;        /* contents on disk, which are not open yet */
    uint64_t size_max; /* of them */
    struct disk *disk; /* theirs, from a greeting on */
};

/* Read while nobody waits for it but the new member, and for it not longer than the driver for
 * anything that it keeps. */
static void open_disk(struct greeting *g, const struct client *client)
{
    struct disk_options o = {
        .url = g->settings.url, .mountpoint = g->mountpoint, .size_max = g->size_max};
    struct failure f = {0};
    memcpy(o.service_id, client_peer(client)->service_id, sizeof o.service_id);
    int r = disk_begin(&o, &g->disk);
    if (r < 0)
        (void)failure_set(&f, r, "%s", strerror(-r));
    else if (!disk_wait(g->disk, DISK_TIMEOUT_MS, &f))
        log_warning("what is kept on disk of %s is used later: the disk does not answer",
                    g->settings.url);
    if (f.error < 0)
        log_warning("no contents of files are kept on disk: %s", f.text);
}

static int greet(void *context, struct client *client, struct failure *ret_failure)
{
    struct greeting *g = context;
    /* One that is mounted by itself was looked at before. */
    int r = g->joined ? outside_root(client, g->settings.url, g->mountpoint, ret_failure) : 0;
    /* Before anything is asked that they are about. */
    if (r == 0)
        r = prune_tell(client, g->rules, ret_failure);
    if (r == 0 && g->keeps)
        open_disk(g, client);
    return r;
}

static void release_greeting(void *context)
{
    struct greeting *g = context;
    visibility_rules_unref(g->rules);
    client_settings_release(&g->settings);
    close_fd(&g->event_fd);
    disk_leave(g->disk);
    free(g);
}

static struct greeting *new_greeting(const struct driver *d)
{
    struct greeting *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    const struct options *o = d->options;
    *g = (struct greeting){.event_fd = fcntl(d->connection->event_fd, F_DUPFD_CLOEXEC, 0),
                           .rules = d->rules ? visibility_rules_ref(d->rules) : NULL,
                           .mountpoint = d->mountpoint,
                           .joined = d->member != NULL,
                           .keeps = d->member && !d->disk && o->cache && o->cache_size,
                           .size_max = o->cache_size};
    if (g->event_fd < 0 || client_settings_copy(d->settings, &g->settings) < 0) {
        release_greeting(g);
        return NULL;
    }
    return g;
}

/* The session to go on with, or to be named as one that was and is over; NULL: there was none. */
static const struct session_resume *resume_point(const struct driver *d,
                                                 struct session_resume *point)
{
    const struct connection *c = d->connection;
    *point = d->suspended ? client_resume_point(d->suspended) : c->last;
    return d->suspended || c->had_session ? point : NULL;
}

static uint32_t pause_ms(const struct driver *d)
{
    struct connection *c = d->connection;
    if (!d->member || !c->came_ns)
        return 0;
    bool is_short = clock_monotonic_ns() - c->came_ns < SHORT_LIVED_NS;
    c->short_lived = is_short ? c->short_lived + 1 : 0;
    c->came_ns = 0;
    if (c->short_lived <= SHORT_LIVED_MAX)
        return 0;
    unsigned doublings = c->short_lived - SHORT_LIVED_MAX;
    uint32_t ms = doublings < 7 ? 50U << doublings : SHORT_LIVED_PAUSE_MS;
    return ms < SHORT_LIVED_PAUSE_MS ? ms : SHORT_LIVED_PAUSE_MS;
}

static void reconnect(struct driver *d)
{
    struct connection *c = d->connection;
    struct session_resume point;
    const struct session_resume *resumes = resume_point(d, &point);
    struct greeting *g = new_greeting(d);
    if (!g) {
        driver_end(d, -ENOMEM);
        return;
    }
    const struct connector_options options = {
        .stream = client_settings_stream(&g->settings),
        .agent = DRIVER_AGENT,
        .greet = greet,
        .release = release_greeting,
        .context = g,
        .quiet = c->quiet,
        .event_fd = g->event_fd,
        .tells_failures = true,
        .pause_ms = pause_ms(d),
        .hurry_ms = strncmp(d->settings->url, "unix:", 5) == 0 ? HURRY_LOCAL_MS : HURRY_MS,
    };
    int r = connector_start(&options, resumes, &c->connector);
    if (r < 0) {
        log_error("cannot start a thread to connect again: %s", strerror(-r));
        release_greeting(g);
        driver_end(d, r);
    }
}

uint64_t connection_hurry(struct driver *d)
{
    struct connection *c = d->connection;
    return c && c->connector ? connector_hurry(c->connector) : 0;
}

/* The session has gone, and with it nodes and handles. */
static void session_lost(struct driver *d, struct client *client)
{
    struct session_stats stats = client_stats(client);
    control_set_client(d->control, NULL, NULL);
    d->stats.round_trips += stats.round_trips;
    d->stats.blocking += stats.blocking;
    client_free(client);
    coherence_disconnected(d);
}

/* Another one begins. Until then the numbers of the last one say of what something is known. */
static void session_begins(struct driver *d)
{
    coherence_replaced(d);
    (void)tree_drop_some(&d->inodes, SIZE_MAX);
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
    d->lost_ns = clock_monotonic_ns();
    session_lost(d, take_ptr(d->client));
    reconnect(d);
    join_changed(d, reason);
}

static void suspended(void *context, const char *reason)
{
    struct driver *d = context;
    uint32_t ms = d->options->timeout_ms;
    const struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    log_loss(d, reason);
    d->lost_ns = clock_monotonic_ns();
    d->suspended = take_ptr(d->client);
    control_set_suspended(d->control, true);
    (void)event_add(d->connection->expire, &tv);
    reconnect(d);
    join_changed(d, reason);
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
    struct connector *connector = d->connection->connector;
    if (!d->suspended)
        return;
    d->abandoning = true;
    d->locks_abandoned = false;
    client_abandon(d->suspended);
    d->abandoning = false;
    /* Locks that may or may not be had: the claim of the next session ends this one's. */
    if (d->locks_abandoned)
        give_up_session(d);
    if (!connector)
        return;
    struct session_resume point;
    connector_set_resume(connector, resume_point(d, &point));
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
    case WIRE_MADE:
        inode_give_back(&d->inodes, m->made.node, 1);
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
    control_set_client(d->control, client, NULL);
    if (client_peer(client)->features & WIRE_FEATURE_RESUME) {
        struct connection *c = d->connection;
        supervisor_session(d->supervisor, client_peer(client)->key);
        /* Nobody has received so much, which ends it if it is there still. */
        c->last = (struct session_resume){.received = UINT64_MAX};
        memcpy(c->last.key, client_peer(client)->key, sizeof c->last.key);
        c->had_session = true;
    }
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
    control_set_suspended(d->control, false);
    d->stats.reconnects++;
    d->stats.resumes++;
    log_info("connected to %s again; everything goes on", d->settings->url);
    coherence_resumed(d);
    driver_notices_pending(d);
    request_resume_all(d);
    join_changed(d, NULL);
}

/* The connection is made anew for ever; this is what came of one attempt. */
static void attempt_failed(struct driver *d, uint64_t begun_ns)
{
    char why[FAILURE_TEXT_MAX];
    request_attempt_failed(d, begun_ns);
    /* Nobody waits for what has never been there. */
    if (!d->connection->known)
        request_fail_all(d, -EIO);
    connector_last_failure(d->connection->connector, why);
    join_changed(d, why);
}

/* False: the connection is not to be used, ever. */
static bool take_first(struct driver *d, struct client *client)
{
    struct connection *c = d->connection;
    if (join_first(d, client) < 0) {
        client_free(client);
        request_fail_all(d, -EIO);
        join_changed(d, NULL);
        return false;
    }
    memcpy(c->service_id, client_peer(client)->service_id, sizeof c->service_id);
    c->known = true;
    return true;
}

static void take_disk(struct driver *d, struct disk *disk)
{
    if (disk_attach(disk, d->base) < 0)
        disk_leave(disk);
    else
        d->disk = disk;
}

static void on_connected(evutil_socket_t fd, short what, void *context)
{
    struct driver *d = context;
    struct connection *c = d->connection;
    eventfd_t value;
    (void)eventfd_read(c->event_fd, &value);
    if (!c->connector)
        return;
    struct client *client;
    struct greeting *g;
    uint64_t abandoned, failed_begun_ns;
    if (!connector_has_succeeded(c->connector, &failed_begun_ns)) {
        attempt_failed(d, failed_begun_ns);
        return;
    }
    g = connector_context(c->connector);
    if (g->disk && !d->disk)
        take_disk(d, take_ptr(g->disk));
    connector_take(take_ptr(c->connector), &client, &abandoned);
    if (!client) {
        reconnect(d);
        return;
    }
    c->came_ns = clock_monotonic_ns();
    bool first = !c->known;
    if (first && !take_first(d, client))
        return;
    const struct session_peer *peer = client_peer(client);
    if (memcmp(peer->service_id, c->service_id, sizeof c->service_id) != 0) {
        /* Its files are other files, whatever their names and numbers, or the key it claims. */
        log_error("another service answers at %s now; unmount and mount again to use it",
                  d->settings->url);
        if (peer->resumed)
            client_discard(client);
        else
            client_free(client);
        driver_end(d, -ESTALE);
        return;
    }
    if (peer->resumed) {
        resume(d, client, abandoned);
        return;
    }
    if (d->suspended)
        give_up_session(d);
    session_begins(d);
    if (attach(d, client) < 0) {
        reconnect(d);
        return;
    }
    d->stats.reconnects += !first;
    if (join_tells(d))
        log_info("connected to %s%s", d->settings->url, first ? "" : " again");
    coherence_connected(d);
    if (!first)
        lock_recover(d);
    request_resume_all(d);
    join_changed(d, NULL);
}

static int connection_new(struct driver *d, struct failure *f)
{
    struct connection *c = calloc(1, sizeof *c);
    if (!c)
        return failure_set(f, -ENOMEM, "out of memory");
    d->connection = c;
    c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->event_fd >= 0)
        c->connected = event_new(d->base, c->event_fd, EV_READ | EV_PERSIST, on_connected, d);
    c->expire = evtimer_new(d->base, on_expire, d);
    if (!c->connected || !c->expire || event_add(c->connected, NULL) < 0)
        return failure_set(f, -ENOMEM, "cannot watch the connection");
    return 0;
}

int connection_start_later(struct driver *d, bool quiet, struct failure *ret_failure)
{
    int r = connection_new(d, ret_failure);
    if (r < 0)
        return r;
    d->connection->quiet = quiet;
    reconnect(d);
    return 0;
}

int connection_start(struct driver *d, struct client *client, struct failure *ret_failure)
{
    int r = connection_new(d, ret_failure);
    if (r < 0) {
        client_free(client);
        return r;
    }
    struct connection *c = d->connection;
    memcpy(c->service_id, client_peer(client)->service_id, sizeof c->service_id);
    c->known = true;
    d->inodes.connection = 1;
    r = attach(d, client);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot watch the connection: %s", strerror(-r));
    return 0;
}

void connection_stop(struct driver *d, bool *ret_left_behind)
{
    struct connection *c = d->connection;
    *ret_left_behind = false;
    d->stopping = true;
    control_set_client(d->control, NULL, "the mount is going");
    if (d->client)
        client_free(take_ptr(d->client));
    if (d->suspended)
        client_free(take_ptr(d->suspended));
    if (!c)
        return;
    if (c->connector)
        *ret_left_behind = !connector_stop(take_ptr(c->connector));
    if (c->connected)
        event_free(c->connected);
    if (c->expire)
        event_free(c->expire);
    close_fd(&c->event_fd);
    free(c);
    d->connection = NULL;
}
