#include "keeper/link.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/hash.h"

#define LINK_READ_MAX (256u << 10)

/* Open calls: as many as all clients of a service may have commands and readers. Stops a service
 * that has gone wrong from using up the keeper's memory. */
#define LINK_CALLS_MAX 16384

struct link {
    struct link_events events;
    int fd;
    struct session *session;
    struct event *readable;
    struct event *writable;
    struct event *flush;
    struct event *ended;
    char reason[160];
    bool ready;
    bool foreign;
    bool starved; /* somebody waits for room */
    bool dead;
    uint8_t *read_buffer;
};

static uint64_t hash_string(uint64_t hash, const char *text)
{
    return hash_bytes(hash, text, strlen(text) + 1);
}

static uint64_t protocol(void)
{
    uint64_t hash = HASH_START + LINK_PROTOCOL;
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        const uint32_t numbers[] = {row->type, row->class, row->field_count};
        hash = hash_bytes(hash, numbers, sizeof numbers);
        for (size_t n = 0; n < row->field_count; n++) {
            const uint32_t type = row->fields[n].type;
            hash = hash_bytes(hash_string(hash, row->fields[n].name), &type, sizeof type);
        }
    }
    return hash_end(hash);
}

static void protocol_text(char ret[32])
{
    (void)snprintf(ret, 32, " protocol %016" PRIx64, protocol());
}

static bool ends_with(const char *text, const char *end)
{
    size_t len = strlen(text);
    return len >= strlen(end) && strcmp(text + len - strlen(end), end) == 0;
}

static void link_fail(struct link *l, const char *reason)
{
    if (l->dead)
        return;
    l->dead = true;
    (void)snprintf(l->reason, sizeof l->reason, "%s", reason);
    (void)event_del(l->readable);
    (void)event_del(l->writable);
    /* Not now: callers up the stack still use it. */
    event_active(l->ended, EV_TIMEOUT, 0);
}

static void on_ended(evutil_socket_t fd, short what, void *context)
{
    struct link *l = context;
    l->events.lost(l->events.context, l->reason);
}

static size_t queued(struct link *l)
{
    return session_output(l->session).len;
}

static void link_write(struct link *l)
{
    while (!l->dead) {
        struct bytes out = session_output(l->session);
        if (out.len == 0)
            return;
        ssize_t n = send(l->fd, out.data, out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            (void)event_add(l->writable, NULL);
            return;
        }
        if (n < 0)
            link_fail(l, strerror(errno));
        else
            session_output_done(l->session, (size_t)n);
    }
}

static void on_flush(evutil_socket_t fd, short what, void *context)
{
    struct link *l = context;
    link_write(l);
    if (!l->dead && l->starved && queued(l) < LINK_QUEUE_MAX / 2) {
        l->starved = false;
        l->events.writable(l->events.context);
    }
}

void link_flush(struct link *l)
{
    if (!l->dead)
        event_active(l->flush, EV_TIMEOUT, 0);
}

bool link_is_busy(struct link *l)
{
    return !l->dead && queued(l) > 0;
}

bool link_has_room(struct link *l)
{
    bool room = queued(l) < LINK_QUEUE_MAX;
    l->starved = l->starved || !room;
    return room;
}

/* The other end is told as well: it has our agent by now. */
static bool refuse_foreign(struct link *l)
{
    char ours[32];
    char reason[sizeof l->reason];
    const char *agent = session_peer(l->session)->agent;
    protocol_text(ours);
    if (ends_with(agent, ours))
        return false;
    l->foreign = true;
    (void)snprintf(reason, sizeof reason, "%.110s is of another build than this one", agent);
    link_write(l);
    link_fail(l, reason);
    return true;
}

bool link_is_foreign(const struct link *l)
{
    return l->foreign;
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    struct link *l = context;
    ssize_t n = recv(l->fd, l->read_buffer, LINK_READ_MAX, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        link_fail(l, n == 0 ? "the other end has gone" : strerror(errno));
        return;
    }
    int r = session_feed(l->session, l->read_buffer, (size_t)n);
    if (!l->ready && session_ready(l->session)) {
        if (refuse_foreign(l))
            return;
        l->ready = true;
        l->events.ready(l->events.context);
    }
    struct wire_frame *frame;
    while (session_next(l->session, &frame))
        l->events.frame(l->events.context, frame);
    if (session_credit_changed(l->session))
        l->events.writable(l->events.context);
    if (r < 0 || session_failure(l->session))
        link_fail(l, session_failure(l->session) ? session_failure(l->session) : strerror(-r));
    else
        link_flush(l);
}

int link_new(struct event_base *base, int *fd, enum session_role role, uint32_t window,
             const struct link_events *events, struct link **ret)
{
    struct link *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    char agent[96];
    char version[32];
    protocol_text(version);
    (void)snprintf(agent, sizeof agent, "%s" BERTH_VERSION "%s",
                   role == SESSION_SERVER ? "berth-keeper " : "berthd ", version);
    const struct session_config config = {
        .role = role,
        .max_payload = WIRE_PAYLOAD_MAX,
        .max_calls = LINK_CALLS_MAX,
        .window = window,
        .agent = agent,
    };
    l->events = *events;
    l->fd = -1;
    l->read_buffer = malloc(LINK_READ_MAX);
    l->readable = event_new(base, *fd, EV_READ | EV_PERSIST, on_readable, l);
    l->writable = event_new(base, *fd, EV_WRITE, on_flush, l);
    l->flush = event_new(base, -1, 0, on_flush, l);
    l->ended = event_new(base, -1, 0, on_ended, l);
    if (!l->read_buffer || !l->readable || !l->writable || !l->flush || !l->ended ||
        session_new(&config, &l->session) < 0 || event_add(l->readable, NULL) < 0) {
        link_free(l);
        return -ENOMEM;
    }
    l->fd = take_fd(fd);
    link_flush(l);
    *ret = l;
    return 0;
}

void link_free(struct link *l)
{
    if (!l)
        return;
    struct event *events[] = {l->readable, l->writable, l->flush, l->ended};
    for (size_t i = 0; i < ARRAY_SIZE(events); i++)
        if (events[i])
            event_free(events[i]);
    session_free(l->session);
    close_fd(&l->fd);
    free(l->read_buffer);
    free(l);
}

struct session *link_session(struct link *l)
{
    return l->session;
}
