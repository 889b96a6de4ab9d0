#include "join_private.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "client/client.h"
#include "climb.h"
#include "coherence.h"
#include "connection.h"
#include "control/identity.h"
#include "control_socket.h"
#include "device.h"
#include "disk.h"
#include "interrupt.h"
#include "ops.h"

#define REAP_MS 5000

const char *member_state_name(enum member_state state)
{
    switch (state) {
    case MEMBER_IDLE:
        return "idle";
    case MEMBER_WAITING:
    case MEMBER_CONNECTING:
        return "connecting";
    case MEMBER_CONNECTED:
        return "connected";
    case MEMBER_LOST:
        return "disconnected";
    case MEMBER_REFUSED:
        return "refused";
    case MEMBER_GONE:
        return "gone";
    }
    return NULL;
}

void member_set_state(struct member *m, enum member_state state, const char *why)
{
    if (m->state != state || !m->since)
        m->since = time(NULL);
    m->state = state;
    if (why || state == MEMBER_CONNECTED) {
        free(m->why);
        m->why = why ? strdup(why) : NULL;
    }
}

/* --- members ------------------------------------------------------------------------------ */

static void free_names(struct table *t)
{
    void *entry;
    size_t cursor = 0;
    while ((entry = table_next(t, &cursor)))
        free(entry);
    table_release(t);
}

static void member_free(struct member *m)
{
    struct driver *d = &m->driver;
    climb_stop(d);
    request_fail_all(d, -EIO);
    coherence_free(d);
    interrupt_release(d);
    driver_release(d);
    free_names(&m->names);
    client_settings_release(&m->settings);
    free(m->name);
    free(m->provider);
    free(m->same);
    free(m->why);
    free(m);
}

/* 0: all are taken. */
static uint32_t free_number(const struct join *j)
{
    uint32_t number = j->last_number;
    for (size_t i = 0; i < JOIN_NUMBER_MAX; i++) {
        number = number % JOIN_NUMBER_MAX + 1;
        if (!table_get(&j->by_number, number))
            return number;
    }
    return 0;
}

/* Takes the settings over. It is not in the list of members yet. */
static int member_new(struct join *j, const char *name, struct client_settings *settings,
                      bool is_place, struct member **ret)
{
    uint32_t number = free_number(j);
    struct member *m = number ? calloc(1, sizeof *m) : NULL;
    if (!m)
        return number ? -ENOMEM : -E2BIG;
    const struct driver *hub = j->hub;
    m->join = j;
    m->is_place = is_place;
    m->settings = *settings;
    *settings = (struct client_settings){0};
    m->name = strdup(name);
    m->driver = (struct driver){.base = hub->base,
                                .options = hub->options,
                                .settings = &m->settings,
                                .mountpoint = hub->mountpoint,
                                .uid = hub->uid,
                                .gid = hub->gid,
                                .rules = hub->rules ? visibility_rules_ref(hub->rules) : NULL,
                                .device = hub->device,
                                .member = m};
    struct failure f;
    int r = m->name ? driver_init(&m->driver, &f) : -ENOMEM;
    if (r == 0)
        r = table_put(&j->by_number, number, m, NULL);
    if (r < 0) {
        member_free(m);
        return r;
    }
    m->number = j->last_number = number;
    m->serial = ++j->last_serial;
    m->driver.inodes.last_id = (uint64_t)m->number << JOIN_NUMBER_SHIFT;
    if (m->driver.options->serve)
        known_start(&m->driver.inodes);
    member_set_state(m, MEMBER_IDLE, NULL);
    *ret = m;
    return 0;
}

int member_add(struct join *j, const char *name, struct client_settings *settings, bool is_place,
               struct member **ret)
{
    if (j->count == JOIN_MEMBERS_MAX)
        return -E2BIG;
    struct member **members = reallocarray(j->members, j->count + 1, sizeof(*members));
    if (!members)
        return -ENOMEM;
    j->members = members;
    int r = member_new(j, name, settings, is_place, ret);
    if (r == 0)
        j->members[j->count++] = *ret;
    return r;
}

static const struct member *used_for(const struct join *j, const struct client_settings *s)
{
    char own[IDENTITY_SIZE], other[IDENTITY_SIZE];
    struct failure f;
    /* One whose credentials cannot be read is no other's. */
    if (identity_of(s, own, &f) < 0)
        return NULL;
    for (size_t i = 0; i < j->count; i++)
        if (!j->members[i]->is_place && identity_of(&j->members[i]->settings, other, &f) == 0 &&
            strcmp(own, other) == 0)
            return j->members[i];
    return NULL;
}

int join_add(struct join *j, const char *name, struct client_settings *settings, const char *why,
             bool quiet)
{
    struct member *m;
    const struct member *same = why ? NULL : used_for(j, settings);
    char text[SERVICE_NAME_MAX + 64];
    int r = member_add(j, name, settings, false, &m);
    if (r < 0)
        return r;
    m->quiet = quiet;
    if (same) {
        m->same = strdup(same->name);
        (void)snprintf(text, sizeof text, "%s has the same URL and credentials", same->name);
        why = text;
    }
    if (why)
        member_set_state(m, MEMBER_REFUSED, why);
    return same && !m->same ? -ENOMEM : 0;
}

static size_t count_connecting(const struct join *j)
{
    size_t n = 0;
    for (size_t i = 0; i < j->count; i++)
        n += j->members[i]->state == MEMBER_CONNECTING && !j->members[i]->why;
    return n;
}

static void connect_member(struct member *m)
{
    struct failure f;
    m->driver.device = m->join->hub->device;
    m->driver.lost_ns = clock_monotonic_ns();
    member_set_state(m, MEMBER_CONNECTING, NULL);
    int r = coherence_new(&m->driver, device_session(m->join->hub));
    if (r == 0)
        r = connection_start_later(&m->driver, m->quiet, &f);
    else
        (void)failure_set(&f, r, "%s", strerror(-r));
    if (r < 0)
        member_set_state(m, MEMBER_REFUSED, f.text);
}

static void wait_until(struct join *j, uint64_t ns, uint64_t now)
{
    uint64_t ms = (ns - now) / NSEC_PER_MSEC + 1;
    const struct timeval tv = {.tv_sec = (time_t)(ms / 1000),
                               .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    (void)event_add(j->later, &tv);
}

static void connect_next(struct join *j)
{
    uint64_t now = clock_monotonic_ns(), first = UINT64_MAX;
    for (size_t i = 0; i < j->count && count_connecting(j) < JOIN_CONNECTING_MAX; i++) {
        struct member *m = j->members[i];
        if (m->state != MEMBER_WAITING)
            continue;
        if (m->wait_ns <= now)
            connect_member(m);
        else if (m->wait_ns < first)
            first = m->wait_ns;
    }
    if (first != UINT64_MAX)
        wait_until(j, first, now);
}

static void on_later(evutil_socket_t fd, short what, void *context)
{
    connect_next(context);
}

void member_use(struct member *m)
{
    if (m->state != MEMBER_IDLE)
        return;
    member_set_state(m, MEMBER_WAITING, NULL);
    m->driver.lost_ns = clock_monotonic_ns();
    connect_next(m->join);
}

int join_timer(struct join *j, event_callback_fn fn, void *context, struct event **ret)
{
    const struct timeval late = {.tv_sec = JOIN_ANSWER_MS / 1000,
                                 .tv_usec = JOIN_ANSWER_MS % 1000 * 1000};
    struct event *timer = evtimer_new(j->hub->base, fn, context);
    if (!timer || event_add(timer, &late) < 0) {
        if (timer)
            event_free(timer);
        return -ENOMEM;
    }
    *ret = timer;
    return 0;
}

/* --- the life of the mount ------------------------------------------------------------------- */

static void become_ready(struct join *j)
{
    if (j->ready)
        return;
    j->ready = true;
    bool untold = j->hub->unheard;
    if (j->hub->ready)
        j->hub->ready(j->hub->ready_context);
    for (size_t i = 0; untold && i < j->count; i++)
        if (j->members[i]->driver.client)
            log_info("connected to %s", j->members[i]->settings.url);
}

bool join_tells(const struct driver *d)
{
    return !d->member || !d->member->join->hub->unheard;
}

static void look_whether_ready(struct join *j)
{
    if (j->ready || !j->started)
        return;
    for (size_t i = 0; i < j->count; i++) {
        const struct member *m = j->members[i];
        if (m->state == MEMBER_WAITING || (m->state == MEMBER_CONNECTING && !m->why))
            return;
    }
    become_ready(j);
}

static void on_settle(evutil_socket_t fd, short what, void *context)
{
    become_ready(context);
}

/* A member that has gone can be freed when neither the kernel nor a thread knows of it. */
static void reap(evutil_socket_t fd, short what, void *context)
{
    struct join *j = context;
    size_t cursor = 0;
    struct member *m;
    while ((m = table_next(&j->by_number, &cursor))) {
        struct driver *d = &m->driver;
        if (m->state != MEMBER_GONE || d->inodes.count > 1 || d->handles.by_id.count ||
            d->inodes.root->pins > 1 || coherence_forgetting(d))
            continue;
        (void)table_take(&j->by_number, m->number);
        member_free(m);
        cursor = 0;
    }
}

int join_new(struct driver *hub, const struct join_options *options, struct failure *ret_failure)
{
    struct join *j = calloc(1, sizeof *j);
    if (!j)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    hub->join = j;
    j->hub = hub;
    j->options = *options;
    j->settle = evtimer_new(hub->base, on_settle, j);
    j->reap = event_new(hub->base, -1, EV_PERSIST, reap, j);
    j->later = evtimer_new(hub->base, on_later, j);
    int r = j->settle && j->reap && j->later ? slots_open(options->slots_file, &j->slots) : -ENOMEM;
    return r < 0 ? failure_set(ret_failure, r, "%s", strerror(-r)) : 0;
}

int join_start(struct join *j)
{
    const struct timeval settle = {.tv_sec = JOIN_SETTLE_MS / 1000,
                                   .tv_usec = JOIN_SETTLE_MS % 1000 * 1000};
    const struct timeval reaped = {.tv_sec = REAP_MS / 1000};
    if (event_add(j->settle, &settle) < 0 || event_add(j->reap, &reaped) < 0)
        return -ENOMEM;
    if (j->options.places) {
        int r = places_watch_new(j, &j->places);
        if (r < 0)
            log_warning("workspaces of providers are not shown: %s", strerror(-r));
    }
    j->started = true;
    for (size_t i = 0; i < j->count; i++)
        j->members[i]->driver.device = j->hub->device;
    for (size_t i = 0; i < j->count; i++)
        if (!j->members[i]->is_place)
            member_use(j->members[i]);
    look_whether_ready(j);
    return 0;
}

/* True: threads were left behind. They use nothing of the member. */
static bool end_connection(struct member *m)
{
    struct driver *d = &m->driver;
    bool left_behind = false;
    connection_stop(d, &left_behind);
    control_socket_free(d);
    return left_behind;
}

void join_stop(struct join *j, bool *ret_left_behind)
{
    size_t cursor = 0;
    struct member *m;
    *ret_left_behind = false;
    j->stopping = true;
    while ((m = table_next(&j->by_number, &cursor))) {
        *ret_left_behind |= end_connection(m);
        *ret_left_behind |= disk_free(take_ptr(m->driver.disk));
    }
}

void join_free(struct join *j)
{
    if (!j)
        return;
    places_watch_free(j->places);
    size_t cursor = 0;
    struct member *m;
    while ((m = table_next(&j->by_number, &cursor)))
        member_free(m);
    table_release(&j->by_number);
    join_owners_release(j);
    slots_free(j->slots);
    if (j->settle)
        event_free(j->settle);
    if (j->reap)
        event_free(j->reap);
    if (j->later)
        event_free(j->later);
    free(j->members);
    free(j);
}

void member_retire(struct join *j, struct member *m)
{
    for (size_t i = 0; i < j->count; i++)
        if (j->members[i] == m) {
            memmove(&j->members[i], &j->members[i + 1], (j->count - i - 1) * sizeof(*j->members));
            j->count--;
            break;
        }
    struct driver *d = &m->driver;
    member_set_state(m, MEMBER_GONE, NULL);
    (void)end_connection(m);
    disk_leave(take_ptr(d->disk));
    d->lost_ns = 0;
    coherence_replaced(d);
    request_fail_all(d, -EIO);
}

/* --- which member ---------------------------------------------------------------------------- */

struct driver *join_driver(struct join *j, uint64_t node)
{
    uint64_t number = node >> JOIN_NUMBER_SHIFT;
    struct member *m = number ? table_get(&j->by_number, number) : NULL;
    return number == 0 ? j->hub : m ? &m->driver : NULL;
}

/* The other directory, or file, that a request names; 0: there is none. */
static uint64_t second_node(const struct fuse_in_header *in, size_t size)
{
    const void *arguments = in + 1;
    uint64_t node = 0;
    switch (in->opcode) {
    case FUSE_RENAME:
    case FUSE_RENAME2:
    case FUSE_LINK:
        /* The first field of each. */
        if (size >= sizeof node)
            memcpy(&node, arguments, sizeof node);
        return node;
    case FUSE_COPY_FILE_RANGE:
        return size >= sizeof(struct fuse_copy_file_range_in)
                   ? ((const struct fuse_copy_file_range_in *)arguments)->nodeid_out
                   : 0;
    default:
        return 0;
    }
}

struct driver *join_route(struct join *j, const struct fuse_in_header *in, size_t size,
                          int *ret_error)
{
    struct driver *d = join_driver(j, in->nodeid);
    if (!d) {
        bool ends = in->opcode == FUSE_RELEASE || in->opcode == FUSE_RELEASEDIR;
        *ret_error = in->opcode == FUSE_FORGET ? 1 : ends ? 0 : -ESTALE;
        return NULL;
    }
    uint64_t second = second_node(in, size);
    const struct driver *other = second ? join_driver(j, second) : d;
    /* What is asked of the root is refused by the hub. */
    if (other == d || d == j->hub || other == j->hub)
        return other == j->hub ? j->hub : d;
    *ret_error = -EXDEV;
    return NULL;
}

struct driver *join_hub(const struct driver *d)
{
    return d->member->join->hub;
}

uint64_t join_ino(const struct driver *d, uint64_t ino)
{
    struct member *m = d->member;
    const unsigned bits = 40;
    if (!m->greeted)
        return ino;
    return join_slot(m, ino >> bits) << bits | (ino & ((UINT64_C(1) << bits) - 1));
}

/* --- connections ------------------------------------------------------------------------------ */

int join_first(struct driver *d, struct client *client)
{
    struct member *m = d->member;
    const struct session_peer *peer = client_peer(client);
    if (d->options->cache && !(peer->features & WIRE_FEATURE_CHANGES)) {
        member_set_state(m, MEMBER_REFUSED,
                         "the service does not notice changes (berthd --watch none), which only a "
                         "mount of its own can do without");
        return -EOPNOTSUPP;
    }
    int r = slots_service_of(m->settings.url, peer->service_id, &m->numbers);
    if (r < 0) {
        member_set_state(m, MEMBER_REFUSED, strerror(-r));
        return r;
    }
    memcpy(m->service_id, peer->service_id, sizeof m->service_id);
    m->greeted = true;
    if (!d->control)
        control_socket_open(d);
    return 0;
}

void join_changed(struct driver *d, const char *why)
{
    struct member *m = d->member;
    if (!m || m->join->stopping)
        return;
    if (member_is_there(m)) {
        enum member_state state = d->client    ? MEMBER_CONNECTED
                                  : m->greeted ? MEMBER_LOST
                                               : MEMBER_CONNECTING;
        bool came = state == MEMBER_CONNECTED && m->state != state;
        member_set_state(m, state, why ? why : state == MEMBER_CONNECTING ? "no answer yet" : NULL);
        if (came && !m->is_place)
            (void)member_list(m, NULL, NULL);
        if (came)
            root_refresh_space(d);
    }
    connect_next(m->join);
    look_whether_ready(m->join);
}

/* The settings it had, with its token as the file has it now. */
static int same_settings(const struct client_settings *old, struct client_settings *ret)
{
    const struct service_entry e = {.name = old->service,
                                    .url = old->url,
                                    .token_file = old->token_file,
                                    .ca_file = old->ca_file,
                                    .cert_file = old->cert_file,
                                    .key_file = old->key_file};
    struct failure f;
    int r = client_settings_of_service(old, &e, ret, &f);
    if (r == 0 && old->token && !ret->token) {
        ret->token = strdup(old->token);
        r = ret->token ? 0 : -ENOMEM;
    }
    return r;
}

void join_replaced(struct driver *d)
{
    struct member *m = d->member;
    struct join *j = m->join;
    size_t at = 0;
    while (at < j->count && j->members[at] != m)
        at++;
    if (at == j->count || j->stopping)
        return;
    log_warning("another service is %s now: it is taken for a new one", m->name);
    struct client_settings s = {0};
    struct member *fresh;
    int r = same_settings(&m->settings, &s);
    if (r == 0)
        r = member_new(j, m->name, &s, m->is_place, &fresh);
    client_settings_release(&s);
    if (r < 0) {
        log_error("%s cannot be used any more: %s", m->name, strerror(-r));
        member_retire(j, m);
        return;
    }
    uint64_t now = clock_monotonic_ns();
    fresh->quiet = m->quiet;
    fresh->provider = take_ptr(m->provider);
    if (m->replaced_ns && now - m->replaced_ns < JOIN_REPLACED_MS * NSEC_PER_MSEC)
        fresh->wait_ns = now + JOIN_REPLACED_MS * NSEC_PER_MSEC;
    fresh->replaced_ns = fresh->wait_ns ? fresh->wait_ns : now;
    /* In the place of the old one. */
    j->members[at] = fresh;
    member_retire(j, m);
    member_use(fresh);
    if (fresh->wait_ns)
        member_set_state(fresh, fresh->state,
                         "another service answers at each connection; the next attempt waits");
}
