#include "server/connection_private.h"

#include <assert.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include "base/table.h"
#include "server/account.h"
#include "server/backend.h"
#include "server/delegations.h"
#include "server/dispatch.h"
#include "stream/http.h"
#include "server/park.h"
#include "server/http_relay.h"
#include "server/standing.h"
#include "server/upgrade.h"

/* One header's worth is read before a client has authenticated. */
#define HTTP_READ_MAX 4096

#define STATE_COUNT (CONNECTION_ENDED + 1)

static const char *const state_names[STATE_COUNT] = {
    "TLS handshake", "HTTP request", "HELLO",  "ready", "parked",
    "relay",         "closing",      "linger", "ended",
};

/* --- states ---------------------------------------------------------------------- */

void connection_set_state(struct connection *c, enum connection_state to)
{
#define TO(state) (1u << (CONNECTION_##state))
    static const unsigned allowed[STATE_COUNT] = {
        [CONNECTION_TLS] = TO(HTTP) | TO(CLOSING) | TO(ENDED),
        [CONNECTION_HTTP] = TO(HELLO) | TO(RELAY) | TO(CLOSING) | TO(ENDED),
        [CONNECTION_HELLO] = TO(READY) | TO(CLOSING) | TO(ENDED),
        [CONNECTION_READY] = TO(PARKED) | TO(CLOSING) | TO(ENDED),
        [CONNECTION_PARKED] = TO(READY) | TO(ENDED),
        [CONNECTION_RELAY] = TO(CLOSING) | TO(ENDED),
        [CONNECTION_CLOSING] = TO(LINGER) | TO(ENDED),
        [CONNECTION_LINGER] = TO(ENDED),
    };
#undef TO
    assert(allowed[c->state] & (1u << to));
    log_debug("connection %llu: %s -> %s", (unsigned long long)c->id, state_names[c->state],
              state_names[to]);
    if (c->state == CONNECTION_READY)
        delegations_leave(c);
    c->state = to;
}

bool connection_speaks_frames(const struct connection *c)
{
    return c->state == CONNECTION_HELLO || c->state == CONNECTION_READY;
}

void connection_set_timer(struct connection *c, unsigned seconds)
{
    struct timeval t = {.tv_sec = seconds};
    (void)event_add(c->timer, &t);
}

void connection_move(struct connection *c, struct connection_list *to)
{
    struct connection_list *pending = listener_pending(c->listener);
    if (c->list) {
        TAILQ_REMOVE(c->list, c, link);
        if (c->list == pending)
            listener_pending_changed(c->listener, -1);
        else if (c->list == &c->server->connections)
            c->server->connection_count--;
        else if (c->list == &c->server->parked)
            c->server->parked_count--;
        else if (c->list == &c->server->relays)
            c->server->relay_count--;
    }
    c->list = to;
    TAILQ_INSERT_TAIL(to, c, link);
    if (to == pending)
        listener_pending_changed(c->listener, 1);
    else if (to == &c->server->connections)
        c->server->connection_count++;
    else if (to == &c->server->parked)
        c->server->parked_count++;
    else if (to == &c->server->relays)
        c->server->relay_count++;
}

void connection_end(struct connection *c, enum log_level level, const char *reason)
{
    if (c->state == CONNECTION_ENDED)
        return;
    /* Whoever has authenticated is worth a line each time; others may be a flood. */
    if (c->list == listener_pending(c->listener) && level != LOG_LEVEL_DEBUG)
        server_log_refusal(c->server, "connection %llu from %s, in %s: %s",
                           (unsigned long long)c->id, c->peer.name, state_names[c->state], reason);
    else
        log_write(level, "connection %llu from %s, in %s: %s", (unsigned long long)c->id,
                  c->peer.name, state_names[c->state], reason);
    connection_set_state(c, CONNECTION_ENDED);
    if (c->bev)
        (void)bufferevent_disable(c->bev, EV_READ | EV_WRITE);
    (void)event_del(c->timer);
    connection_move(c, &c->server->ended);
    /* Not now: our callers up the stack may still be using it. */
    event_active(c->server->tear_down, EV_TIMEOUT, 0);
}

static void drop_calls(struct connection *c)
{
    while (c->calls.count > 0) {
        size_t cursor = 0;
        struct call *call = table_next(&c->calls, &cursor);
        (void)table_take(&c->calls, call->tag);
        if (call->job) /* ends when its job does */
            continue;
        if (call->events.gone)
            call->events.gone(call->events.context);
        account_end_gone(call->account);
        free(call);
    }
}

/* There are credentials in it. */
static void release_head(struct connection *c)
{
    if (c->head.data)
        OPENSSL_cleanse(c->head.data, c->head.allocated);
    buffer_release(&c->head);
}

void connection_free(struct connection *c)
{
    if (c->list)
        TAILQ_REMOVE(c->list, c, link);
    drop_calls(c);
    http_relay_free(c->relay);
    if (c->dirty)
        TAILQ_REMOVE(&c->server->dirty, c, dirty_link);
    table_release(&c->calls);
    if (c->backend)
        backend_close(c->backend);
    if (c->ssl && SSL_is_init_finished(c->ssl)) {
        (void)SSL_shutdown(c->ssl);
        ERR_clear_error();
    }
    if (c->bev)
        bufferevent_free(c->bev);
    if (c->timer)
        event_free(c->timer);
    http_reader_free(c->http);
    release_head(c);
    session_free(c->session);
    grant_unref(c->grant);
    c->server->connections_alive--;
    free(c);
}

/* --- calls ----------------------------------------------------------------------- */

struct server *connection_server(const struct connection *c)
{
    return c->server;
}

struct session *connection_session(const struct connection *c)
{
    return c->session;
}

struct grant *connection_grant(const struct connection *c)
{
    return c->grant;
}

struct lane *connection_lane(const struct connection *c)
{
    return backend_lane(c->backend);
}

struct file_session *connection_files(const struct connection *c)
{
    return backend_files(c->backend);
}

bool connection_alive(const struct connection *c)
{
    return c->state == CONNECTION_READY;
}

bool connection_answers(const struct connection *c)
{
    return c->state == CONNECTION_READY || c->state == CONNECTION_PARKED;
}

bool connection_abandoned(const struct connection *c, uint64_t tag)
{
    return tag <= c->abandoned;
}

bool connection_returns(const struct connection *c)
{
    return c->returns;
}

bool connection_delegates(const struct connection *c)
{
    return session_peer(c->session)->features & WIRE_FEATURE_DELEGATION;
}

void connection_set_writer(struct connection *c, bool writer)
{
    c->writer = writer;
}

bool connection_is_writer(const struct connection *c)
{
    return c->writer;
}

unsigned connection_count_lock_waits(struct connection *c, int change)
{
    c->lock_waits += (unsigned)change;
    return c->lock_waits;
}

int connection_add_call(struct connection *c, struct call *call)
{
    return table_put(&c->calls, call->tag, call, NULL);
}

struct call *connection_find_call(const struct connection *c, uint64_t tag)
{
    return table_get(&c->calls, tag);
}

void connection_remove_call(struct connection *c, struct call *call)
{
    (void)table_take(&c->calls, call->tag);
}

/* --- frames ---------------------------------------------------------------------- */

static void begin_closing(struct connection *c)
{
    connection_set_state(c, CONNECTION_CLOSING);
    drop_calls(c);
    /* Discarded from now on, and not needed for writing. */
    (void)bufferevent_enable(c->bev, EV_READ);
    connection_set_timer(c, LINGER_TIMEOUT_S);
    connection_flush(c);
    if (c->state == CONNECTION_CLOSING)
        bufferevent_trigger(c->bev, EV_WRITE,
                            BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

void connection_close_when_written(struct connection *c)
{
    begin_closing(c);
}

void connection_goodbye(struct connection *c, int error, const char *text)
{
    if (c->state == CONNECTION_READY) {
        const struct wire_message goodbye = {
            .type = WIRE_GOODBYE,
            .goodbye = {.error = (uint32_t)-error, .text = bytes_of_string(text)}};
        (void)session_send(c->session, 0, &goodbye);
    }
    if (connection_speaks_frames(c))
        begin_closing(c);
    else if (c->state < CONNECTION_CLOSING)
        connection_end(c, LOG_LEVEL_DEBUG, text);
}

void connection_goodbye_all(struct server *s, int error, const char *text)
{
    struct connection *c, *next;
    for (c = TAILQ_FIRST(&s->connections); c; c = next) {
        next = TAILQ_NEXT(c, link);
        connection_goodbye(c, error, text);
    }
}

static void frames_refused(struct connection *c, int error)
{
    if (error == -ENOMEM) {
        connection_end(c, LOG_LEVEL_ERROR, session_failure(c->session));
        return;
    }
    c->server->counters.protocol_errors++;
    log_warning("connection %llu from %s: protocol error: %s", (unsigned long long)c->id,
                c->peer.name, session_failure(c->session));
    begin_closing(c); /* the session has queued a GOODBYE that says why */
}

static void hello_done(struct connection *c)
{
    if (session_peer(c->session)->resumed)
        return; /* see read_frames */
    int r = backend_new(c->server, c, c->grant, &c->backend);
    if (r < 0) {
        connection_end(c, LOG_LEVEL_ERROR, "no memory for its files");
        return;
    }
    connection_set_state(c, CONNECTION_READY);
    (void)event_del(c->timer);
    log_debug("connection %llu from %s: %s", (unsigned long long)c->id, c->peer.name,
              session_peer(c->session)->agent);
}

static void take_frames(struct connection *c)
{
    struct wire_frame *frame;
    while (c->state == CONNECTION_READY && !connection_over_limit(c, FLOW_LIMIT) &&
           session_next(c->session, &frame))
        dispatch_frame(c, frame);
}

/* The next bytes that have been received, at most max, without copying them. */
static struct bytes peek_input(struct connection *c, size_t max)
{
    struct evbuffer_iovec v;
    if (evbuffer_peek(bufferevent_get_input(c->bev), -1, NULL, &v, 1) < 1)
        return (struct bytes){0};
    return bytes_of(v.iov_base, v.iov_len < max ? v.iov_len : max);
}

static void drain_input(struct connection *c, size_t n)
{
    (void)evbuffer_drain(bufferevent_get_input(c->bev), n);
}

/* Feeds bytes frame by frame, so that each is counted before the next one takes memory, until
 * the limit or the end of the connection; how many were used. */
static size_t feed_frames(struct connection *c, struct bytes in)
{
    size_t used = 0;
    while (used < in.len && connection_speaks_frames(c) && !c->resumes &&
           !connection_over_limit(c, FLOW_LIMIT)) {
        size_t n = session_wanted(c->session);
        if (n > in.len - used)
            n = in.len - used;
        int r = session_feed(c->session, in.data + used, n);
        used += n;
        if (c->state == CONNECTION_HELLO && session_ready(c->session))
            hello_done(c);
        if (r < 0 && connection_speaks_frames(c))
            frames_refused(c, r);
        take_frames(c);
    }
    return used;
}

/* What has been received, or a negative number; an error or the end shows again in the bufferevent.
 * Of TLS whole records: what its library kept of one, nobody would be told of. */
static ssize_t receive(struct connection *c, uint8_t *data, size_t size)
{
    if (!c->ssl)
        return recv(c->fd, data, size, MSG_DONTWAIT);
    size_t len = 0, n;
    while (size - len >= SSL3_RT_MAX_PLAIN_LENGTH &&
           SSL_read_ex(c->ssl, data + len, size - len, &n) == 1)
        len += n;
    ERR_clear_error();
    return (ssize_t)len;
}

/* Past the bufferevent, which takes 4 KiB a turn from a socket, and a record from TLS: a large
 * WRITE would be many turns. Once a turn, so that nobody keeps the loop to himself. */
static void feed_directly(struct connection *c)
{
    uint8_t *data = c->server->read_buffer;
    ssize_t n = receive(c, data, SERVER_READ_MAX);
    if (n <= 0)
        return;
    size_t used = feed_frames(c, bytes_of(data, (size_t)n));
    if (used < (size_t)n && connection_speaks_frames(c) &&
        evbuffer_prepend(bufferevent_get_input(c->bev), data + used, (size_t)n - used) < 0)
        connection_end(c, LOG_LEVEL_ERROR, "no memory for input");
}

static void read_frames(struct connection *c)
{
    if (c->processing)
        return;
    c->processing = true;
    bool more = evbuffer_get_length(bufferevent_get_input(c->bev)) >= HTTP_READ_MAX;
    take_frames(c);
    while (connection_speaks_frames(c) && !c->resumes && !connection_over_limit(c, FLOW_LIMIT)) {
        struct bytes in = peek_input(c, SIZE_MAX);
        if (in.len > 0) {
            drain_input(c, feed_frames(c, in));
            continue;
        }
        if (more)
            feed_directly(c);
        break;
    }
    c->processing = false;
    if (c->resumes && connection_speaks_frames(c)) {
        park_resume(c);
        return;
    }
    if (connection_speaks_frames(c) && session_credit_changed(c->session))
        connection_offer_writable(c);
    connection_flush(c);
    connection_update_flow(c);
}

/* --- HTTP ------------------------------------------------------------------------ */

static void answer(struct connection *c, const struct buffer *text)
{
    if (bufferevent_write(c->bev, text->data, text->len) < 0) {
        connection_end(c, LOG_LEVEL_ERROR, "no memory for an answer");
        return;
    }
    begin_closing(c);
}

static int begin_frames(struct connection *c)
{
    struct server *s = c->server;
    struct session_config config = {
        .role = SESSION_SERVER,
        .max_payload = WIRE_PAYLOAD_MAX,
        .max_calls = CONNECTION_CALLS_MAX,
        .window = CONNECTION_WINDOW,
        .features = WIRE_FEATURE_ZSTD | WIRE_FEATURE_USAGE | WIRE_FEATURE_DELEGATION |
                    (store_detects(c->server->store)
                         ? (uint64_t)WIRE_FEATURE_CHANGES
                         : 0), /* the client knows whether there is a wire to save */
        .agent = "berthd " BERTH_VERSION,
        .epoch = s->epoch,
        .resume = park_find,
        .resume_context = c,
    };
    if (park_make_key(c))
        config.features |= WIRE_FEATURE_RESUME;
    memcpy(config.key, c->key, sizeof config.key);
    store_service_id(s->store, config.service_id);
    int r = session_new(&config, &c->session);
    if (r < 0)
        return r;
    if (bufferevent_write(c->bev, HTTP_SWITCHING, sizeof HTTP_SWITCHING - 1) < 0)
        return -ENOMEM;
    http_reader_free(take_ptr(c->http));
    release_head(c);
    s->counters.upgraded++;
    connection_set_state(c, CONNECTION_HELLO);
    connection_move(c, &s->connections);
    standing_watch(s);
    bufferevent_setwatermark(c->bev, EV_READ, 0, SERVER_READ_MAX);
    bufferevent_setwatermark(c->bev, EV_WRITE, STREAM_QUEUE_MAX / 2, 0);
    (void)bufferevent_set_max_single_read(c->bev, SERVER_READ_MAX);
    (void)bufferevent_set_max_single_write(c->bev, SERVER_READ_MAX);
    return 0;
}

static void relay(struct connection *c)
{
    _cleanup_buffer_ struct buffer text = {0};
    struct failure failure;
    int r = http_relay_begin(c, buffer_view(&c->head), &failure);
    if (r == 0) {
        http_reader_free(take_ptr(c->http));
        release_head(c);
        return;
    }
    server_log_refusal(c->server, "connection %llu from %s: %s", (unsigned long long)c->id,
                       c->peer.name, failure.text);
    if (http_answer_problem(&text, 503,
                            failure.error == -EBUSY ? failure.text
                                                    : "what answers HTTP is not there now",
                            "Retry-After: 1\r\n") < 0)
        connection_end(c, LOG_LEVEL_ERROR, "no memory for an answer");
    else
        answer(c, &text);
}

/* Whose request for frames this is: the client's, or that of the one who has the ticket. NULL: the
 * gateway's, for somebody who is not there any more. */
static struct connection *asks_for(struct connection *c)
{
    if (listener_kind(c->listener) != LISTENER_GATEWAY)
        return c;
    const char *ticket = http_reader_field(c->http, "berth-caller");
    return ticket ? http_relay_find(c->server, ticket) : NULL;
}

static void request_complete(struct connection *c)
{
    _cleanup_tls_names_ struct tls_names names = {0};
    const struct http_request *request = http_reader_request(c->http);
    struct connection *who = asks_for(c);
    if (who == c && !upgrade_is_for_service(request)) {
        relay(c);
        return;
    }
    if (!who) {
        connection_end(c, LOG_LEVEL_DEBUG, "its client is not there");
        return;
    }
    c->peer = who->peer;
    struct access_caller caller = {
        .local = who->peer.local,
        .uid = who->peer.uid,
        .address = who->peer.address,
        .certificate = who->ssl && tls_peer_names(who->ssl, &names),
        .authorization = request->authorization,
        .loopback = who->peer.loopback,
        .gateway = who != c,
    };
    caller.names = (const char *const *)names.list;
    _cleanup_buffer_ struct buffer text = {0};
    struct failure refusal = {0};
    upgrade_credential(&caller, who->ssl, c->credential);
    int r = upgrade_answer(c->server, &caller, request, &c->grant, &text, &refusal);
    const char *busy = r == UPGRADE_ACCEPTED && who != c ? http_relay_vouch(who, c) : NULL;
    if (busy)
        r = upgrade_refuse_busy(busy, &text, &refusal);
    if (r == UPGRADE_ACCEPTED)
        r = begin_frames(c);
    if (r < 0) {
        connection_end(c, LOG_LEVEL_ERROR, "no memory for an answer");
        return;
    }
    if (refusal.error < 0)
        server_log_refusal(c->server, "connection %llu from %s: %s", (unsigned long long)c->id,
                           c->peer.name, refusal.text);
    if (refusal.error < 0 || c->grant)
        account_connected(c, c->grant ? NULL : refusal.text);
    if (c->state == CONNECTION_HTTP)
        answer(c, &text);
    else
        read_frames(c); /* what came with the header */
}

static void bad_request(struct connection *c, int error)
{
    _cleanup_buffer_ struct buffer text = {0};
    bool too_large = error == -EMSGSIZE;
    char detail[160];
    if (too_large)
        (void)snprintf(detail, sizeof detail, "the request header is larger than %d bytes",
                       HTTP_HEADER_MAX);
    else
        (void)snprintf(detail, sizeof detail, "%s",
                       error == -EPROTO
                           ? "a Transfer-Encoding other than chunked, folded fields, lines "
                             "without CR and fields given twice are refused"
                           : "this is not an HTTP/1.1 request (a TLS client on a plain port?)");
    int r =
        error == -ENOMEM ? error : http_answer_problem(&text, too_large ? 431 : 400, detail, "");
    if (r < 0) {
        connection_end(c, LOG_LEVEL_ERROR, "no memory for a request");
        return;
    }
    server_log_refusal(c->server, "connection %llu from %s: %s", (unsigned long long)c->id,
                       c->peer.name, detail);
    answer(c, &text);
}

static void read_http(struct connection *c)
{
    while (c->state == CONNECTION_HTTP) {
        struct bytes in = peek_input(c, HTTP_READ_MAX);
        if (in.len == 0)
            return;
        size_t used = in.len;
        int r = http_reader_feed(c->http, in.data, in.len, &used);
        if (r >= 0 && buffer_append(&c->head, in.data, used) < 0)
            r = -ENOMEM;
        drain_input(c, used);
        if (r > 0)
            request_complete(c);
        else if (r < 0)
            bad_request(c, r);
    }
}

/* --- events ---------------------------------------------------------------------- */

static void discard_input(struct connection *c)
{
    struct evbuffer *input = bufferevent_get_input(c->bev);
    (void)evbuffer_drain(input, evbuffer_get_length(input));
}

static void on_read(struct bufferevent *bev, void *context)
{
    struct connection *c = context;
    switch (c->state) {
    case CONNECTION_HTTP:
        read_http(c);
        return;
    case CONNECTION_HELLO:
    case CONNECTION_READY:
        read_frames(c);
        return;
    case CONNECTION_RELAY:
        http_relay_read(c);
        return;
    case CONNECTION_CLOSING:
    case CONNECTION_LINGER:
        discard_input(c);
        return;
    case CONNECTION_TLS:
    case CONNECTION_PARKED:
    case CONNECTION_ENDED:
        return;
    }
}

static void on_write(struct bufferevent *bev, void *context)
{
    struct connection *c = context;
    if (c->state == CONNECTION_RELAY)
        http_relay_drained(c);
    else
        connection_drained(c);
}

/* The stream broke; the session may outlive it. */
static void connection_lost(struct connection *c, enum log_level level, const char *reason)
{
    if (!park_session(c, reason))
        connection_end(c, level, reason);
}

/* A plain HTTP client on a TLS port gets its answer in plain HTTP, and learns what is wrong. */
static void answer_plain_http(struct connection *c)
{
    _cleanup_buffer_ struct buffer text = {0};
    if (http_answer_problem(&text, 400, "this port speaks TLS: use https://", "") < 0)
        return;
    /* Unread input would turn the close into a reset that overtakes the answer. */
    uint8_t discarded[4096];
    while (recv(c->fd, discarded, sizeof discarded, MSG_DONTWAIT) > 0)
        ;
    ssize_t ignored = send(c->fd, text.data, text.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)ignored;
    (void)shutdown(c->fd, SHUT_WR);
}

/* A client that has said goodbye goes without waiting for our own; before that, it was lost. */
static enum log_level broken_level(const struct connection *c)
{
    return c->state >= CONNECTION_CLOSING ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO;
}

static void tls_failed(struct connection *c, unsigned long error)
{
    const char *reason = ERR_reason_error_string(error);
    char text[160];
    bool plain = ERR_GET_LIB(error) == ERR_LIB_SSL && ERR_GET_REASON(error) == SSL_R_HTTP_REQUEST;
    if (plain && c->state == CONNECTION_TLS)
        answer_plain_http(c);
    (void)snprintf(text, sizeof text, "TLS: %s", reason ? reason : "failed");
    connection_lost(c, broken_level(c), text);
}

static void peer_closed(struct connection *c)
{
    if (c->state == CONNECTION_RELAY) {
        http_relay_client_ended(c);
        return;
    }
    if (park_session(c, "closed by the client"))
        return;
    if (connection_speaks_frames(c) && connection_queued(c) > 0) {
        begin_closing(c); /* it may have closed its sending side alone */
        return;
    }
    if (c->state != CONNECTION_CLOSING)
        connection_end(c, LOG_LEVEL_DEBUG, "closed by the client");
}

static void on_event(struct bufferevent *bev, short what, void *context)
{
    struct connection *c = context;
    if (c->state == CONNECTION_ENDED)
        return;
    if (what & BEV_EVENT_CONNECTED) {
        connection_set_state(c, CONNECTION_HTTP);
    } else if (what & BEV_EVENT_TIMEOUT) {
        c->server->counters.timed_out++;
        connection_lost(c, LOG_LEVEL_WARNING, "the client does not read");
    } else if (what & BEV_EVENT_ERROR) {
        unsigned long error = c->ssl ? bufferevent_get_openssl_error(bev) : 0;
        if (error != 0)
            tls_failed(c, error);
        else
            connection_lost(c, broken_level(c),
                            evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR()));
    } else if (what & BEV_EVENT_EOF) {
        peer_closed(c);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct connection *c = context;
    switch (c->state) {
    case CONNECTION_TLS:
    case CONNECTION_HTTP:
    case CONNECTION_HELLO:
        c->server->counters.timed_out++;
        connection_end(c, LOG_LEVEL_INFO, "not done in time");
        return;
    case CONNECTION_RELAY:
        connection_end(c, LOG_LEVEL_DEBUG, "its client has not got in in time, or has gone");
        return;
    case CONNECTION_CLOSING:
    case CONNECTION_LINGER:
        connection_end(c, LOG_LEVEL_DEBUG, "the peer does not close");
        return;
    case CONNECTION_READY:
    case CONNECTION_PARKED:
    case CONNECTION_ENDED:
        return;
    }
}

/* --- another stream -------------------------------------------------------------- */

void connection_watch_stream(struct connection *c)
{
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
}

void connection_go_on(struct connection *c)
{
    c->paused = false;
    (void)bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    connection_offer_writable(c);
    connection_flush(c);
    connection_update_flow(c);
    /* What came behind the HELLO. */
    bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

/* --- birth ----------------------------------------------------------------------- */

int connection_new(struct server *s, struct listener *l, int fd, SSL *ssl, const struct peer *peer)
{
    struct connection *c = calloc(1, sizeof *c);
    if (!c) {
        SSL_free(ssl);
        (void)close(fd);
        return -ENOMEM;
    }
    c->server = s;
    c->listener = l;
    c->peer = *peer;
    c->id = ++s->last_id;
    c->fd = fd;
    c->state = ssl ? CONNECTION_TLS : CONNECTION_HTTP;
    s->connections_alive++;
    if (ssl)
        c->bev = bufferevent_openssl_socket_new(s->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                                BEV_OPT_CLOSE_ON_FREE);
    else
        c->bev = bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c->bev) {
        SSL_free(ssl);
        (void)close(fd);
    } else {
        c->ssl = ssl;
    }
    c->timer = event_new(s->base, -1, 0, on_timer, c);
    if (!c->bev || !c->timer || http_reader_new(&c->http) < 0) {
        connection_free(c);
        return -ENOMEM;
    }
    if (ssl)
        bufferevent_openssl_set_allow_dirty_shutdown(c->bev, 1);
    connection_watch_stream(c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, HTTP_READ_MAX);
    struct timeval write_timeout = {.tv_sec = WRITE_TIMEOUT_S};
    (void)bufferevent_set_timeouts(c->bev, NULL, &write_timeout);
    connection_set_timer(c, HANDSHAKE_TIMEOUT_S);
    connection_move(c, listener_pending(l));
    (void)bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    return 0;
}
