#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "egress/dial.h"
#include "egress/decision.h"
#include "egress/private.h"
#include "egress/relay.h"
#include "egress/request.h"

/* How long the sender of a refused request may take to read the answer. */
#define LINGER_MS 2000

enum visit_state {
    VISIT_READING,    /* the header */
    VISIT_RESOLVING,  /* the host's name */
    VISIT_CONNECTING, /* to one of its addresses */
    VISIT_RELAYING,
    VISIT_ANSWERED, /* by us, and about to be closed */
};

/* A connection of a command's. */
struct visit {
    TAILQ_ENTRY(visit) entry;
    struct egress_workspace *workspace;
    enum visit_state state;
    struct bufferevent *client; /* until it is the relay's */
    struct event *deadline;
    struct buffer head;
    size_t looked_at; /* of head */
    struct egress_request request;
    bool parsed;
    char entry_text[ALLOW_TEXT_MAX + 1]; /* that admits it */
    struct address address;
    bool connected; /* address is where */
    struct resolution *resolution;
    struct dial *dial;
    struct relay *relay;
    const char *why; /* the relay ends; NULL: both sides have ended it */
    uint64_t began_ns;
};

static void set_deadline(struct visit *v, uint32_t ms)
{
    const struct timeval time = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    (void)event_add(v->deadline, &time);
}

struct visit *visit_next(struct visit *v)
{
    return TAILQ_NEXT(v, entry);
}

/* --- what is told ---------------------------------------------------------------------------- */

static void count(struct visit *v, const char *verdict)
{
    struct egress *e = v->workspace->egress;
    e->counts.allowed += strcmp(verdict, "allowed") == 0;
    e->counts.refused += strcmp(verdict, "refused") == 0;
    e->counts.failed += strcmp(verdict, "failed") == 0;
    if (v->relay && strcmp(verdict, "ended") == 0) {
        e->counts.bytes_up += relay_bytes_up(v->relay);
        e->counts.bytes_down += relay_bytes_down(v->relay);
    }
    egress_counted(e);
}

static void log_decision(struct visit *v, const char *verdict, const char *reason)
{
    count(v, verdict);
    char text[ADDRESS_TEXT_MAX];
    decision_log(&(struct decision){
        .workspace = v->workspace->name,
        .method = v->parsed ? v->request.method : NULL,
        .host = v->parsed ? v->request.host.name : NULL,
        .port = v->parsed ? v->request.port : 0,
        .entry = v->entry_text[0] ? v->entry_text : NULL,
        .address = v->connected ? address_text(&v->address, text) : NULL,
        .verdict = verdict,
        .reason = reason,
        .bytes_up = v->relay ? relay_bytes_up(v->relay) : 0,
        .bytes_down = v->relay ? relay_bytes_down(v->relay) : 0,
        .duration_ms = (clock_monotonic_ns() - v->began_ns) / NSEC_PER_MSEC,
    });
}

void visit_free(struct visit *v)
{
    struct egress_workspace *w = v->workspace;
    if (v->relay)
        log_decision(v, "ended", v->why);
    resolution_cancel(v->resolution);
    dial_cancel(v->dial);
    relay_free(v->relay);
    if (v->client)
        bufferevent_free(v->client);
    if (v->deadline)
        event_free(v->deadline);
    buffer_release(&v->head);
    egress_request_release(&v->request);
    TAILQ_REMOVE(&w->visits, v, entry);
    free(v);
    if (w->acceptable)
        egress_workspace_visit_ended(w);
}

static const struct {
    int status;
    const char *phrase;
    const char *error; /* RFC 9209 */
} answers[] = {
    {400, "Bad Request", "http_request_error"},
    {403, "Forbidden", "http_request_denied"},
    {408, "Request Timeout", "http_request_error"},
    {431, "Request Header Fields Too Large", "http_request_error"},
    {502, "Bad Gateway", "destination_unavailable"},
    {503, "Service Unavailable", "proxy_internal_error"},
    {504, "Gateway Timeout", "connection_timeout"},
};

static void on_answer_written(struct bufferevent *stream, void *context)
{
    (void)shutdown(bufferevent_getfd(stream), SHUT_WR);
}

static void on_answer_read(struct bufferevent *stream, void *context)
{
    struct evbuffer *in = bufferevent_get_input(stream);
    (void)evbuffer_drain(in, evbuffer_get_length(in));
}

static void on_answer_event(struct bufferevent *stream, short what, void *context)
{
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR))
        visit_free(context);
}

/* Answers instead of a server; nothing else happens on the connection. The detail is ASCII. */
static void answer(struct visit *v, int status, const char *detail)
{
    _cleanup_buffer_ struct buffer quoted = {0};
    size_t i = 0;
    while (answers[i].status != status)
        i++;
    log_decision(v, status >= 500 ? "failed" : "refused", detail);
    for (const char *c = detail; *c; c++)
        if (buffer_printf(&quoted, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c) < 0)
            break;
    v->state = VISIT_ANSWERED;
    /* The status and its text are all that many clients show of an answer to CONNECT. */
    (void)evbuffer_add_printf(
        bufferevent_get_output(v->client),
        "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n"
        "Proxy-Status: berth; error=%s; details=\"%.*s\"\r\nCache-Control: no-store\r\n"
        "Connection: close\r\n\r\n%s%s\n",
        status, answers[i].phrase, strlen("berth: ") + strlen(detail) + 1, answers[i].error,
        (int)quoted.len, quoted.data ? (const char *)quoted.data : "", "berth: ", detail);
    bufferevent_setcb(v->client, on_answer_read, on_answer_written, on_answer_event, v);
    (void)bufferevent_enable(v->client, EV_READ | EV_WRITE);
    set_deadline(v, LINGER_MS);
}

static void answer_about(struct visit *v, int status, const char *detail)
{
    char text[1024];
    (void)snprintf(text, sizeof text, "%s port %u: %s", v->request.host.name, v->request.port,
                   detail);
    answer(v, status, text);
}

/* --- the connection -------------------------------------------------------------------------- */

static void on_relay_ended(void *context, const char *why)
{
    struct visit *v = context;
    v->why = why;
    visit_free(v);
}

/* Takes *fd, and the client. */
static int begin_relay(struct visit *v, int *fd)
{
    struct event_base *base = v->workspace->egress->base;
    const struct bytes forward = buffer_view(&v->request.forward);
    const struct relay_options options = {.forward = v->request.connect ? NULL : &forward,
                                          .head = v->request.head,
                                          .idle_ms = v->workspace->egress->limits.idle_ms};
    static const char established[] = "HTTP/1.1 200 Connection established\r\n\r\n";
    const int one = 1;
    (void)setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(*fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    struct bufferevent *server = bufferevent_socket_new(base, *fd, BEV_OPT_CLOSE_ON_FREE);
    if (!server)
        return -ENOMEM;
    (void)take_fd(fd);
    int r = v->request.connect ? bufferevent_write(v->client, established, sizeof established - 1)
                               : bufferevent_write(server, forward.data, forward.len);
    if (r == 0)
        r = relay_new(base, v->client, server, &options, on_relay_ended, v, &v->relay);
    if (r < 0) {
        bufferevent_free(server);
        return -ENOMEM;
    }
    v->client = NULL;
    return 0;
}

static void on_connected(void *context, int fd, int error, const struct address *address)
{
    struct visit *v = context;
    v->dial = NULL;
    v->address = *address;
    v->connected = true;
    if (error < 0) {
        answer_about(v, error == -ETIMEDOUT ? 504 : 502, strerror(-error));
        return;
    }
    (void)event_del(v->deadline);
    v->state = VISIT_RELAYING;
    log_decision(v, "allowed", NULL);
    _cleanup_close_ int owned = fd;
    if (begin_relay(v, &owned) < 0)
        visit_free(v);
}

static void connect_to(struct visit *v, const struct address *addresses, size_t count)
{
    struct egress *e = v->workspace->egress;
    v->state = VISIT_CONNECTING;
    set_deadline(v, e->limits.connect_ms);
    if (dial_start(e->base, addresses, count, v->request.port, on_connected, v, &v->dial) < 0)
        answer_about(v, 503, strerror(ENOMEM));
}

/* --- the decision ---------------------------------------------------------------------------- */

/* Goes on with those addresses that may be connected to. Nothing is asked of the name again: what
 * is connected to is what was checked. */
static void choose_addresses(struct visit *v, const struct address *addresses, size_t count)
{
    const struct allow_list *list = v->workspace->list;
    uint16_t port = v->request.port;
    struct address chosen[RESOLVER_ADDRESSES_MAX];
    size_t n = 0;
    char refused[256] = "";
    for (size_t i = 0; i < count; i++) {
        char text[ADDRESS_TEXT_MAX];
        const char *why = allow_list_refuses_address(list, &addresses[i], port);
        if (!why && !allow_list_admits_address(list, &addresses[i], port) &&
            dial_is_own(&addresses[i]))
            why = "the service's own machine";
        if (!why)
            chosen[n++] = addresses[i];
        else if (!refused[0])
            (void)snprintf(refused, sizeof refused,
                           "its address %s is %s, which no entry of the workspace's allow list "
                           "names",
                           address_text(&addresses[i], text), why);
    }
    if (n > 0)
        connect_to(v, chosen, n);
    else
        answer_about(v, 403, refused);
}

static void on_resolved(void *context, int error, const struct address *addresses, size_t count)
{
    struct visit *v = context;
    v->resolution = NULL;
    if (error == EAI_NONAME || error == EAI_NODATA)
        answer_about(v, 502, "there is no such name");
    else if (error != 0)
        answer_about(v, error == EAI_AGAIN ? 504 : 502, gai_strerror(error));
    else
        choose_addresses(v, addresses, count);
}

static bool is_admitted(struct visit *v)
{
    size_t index;
    if (!allow_list_admits(v->workspace->list, &v->request.host, v->request.port, &index))
        return false;
    (void)snprintf(v->entry_text, sizeof v->entry_text, "%s",
                   allow_list_text(v->workspace->list, index));
    return true;
}

/* A name that is not on the list is asked of nobody: to ask is to tell. */
static void decide(struct visit *v)
{
    struct egress *e = v->workspace->egress;
    if (!is_admitted(v)) {
        answer_about(v, 403, "not on the allow list of this workspace");
        return;
    }
    if (v->request.host.is_address) {
        choose_addresses(v, &v->request.host.address, 1);
        return;
    }
    v->state = VISIT_RESOLVING;
    set_deadline(v, e->limits.resolve_ms);
    if (resolver_start(e->resolver, v->workspace->id, v->request.host.name, on_resolved, v,
                       &v->resolution) < 0)
        answer_about(v, 503, strerror(ENOMEM));
}

void visit_check(struct visit *v)
{
    if (!v->parsed || v->state == VISIT_ANSWERED)
        return;
    bool admitted = is_admitted(v);
    if (admitted && v->connected &&
        allow_list_refuses_address(v->workspace->list, &v->address, v->request.port))
        admitted = false;
    /* What is not connected yet is checked against this list when it is. */
    if (admitted && v->state != VISIT_CONNECTING)
        return;
    if (v->state == VISIT_RELAYING) {
        v->why = "not on the allow list of this workspace any more";
        visit_free(v);
        return;
    }
    resolution_cancel(take_ptr(v->resolution));
    dial_cancel(take_ptr(v->dial));
    decide(v);
}

/* --- the request ----------------------------------------------------------------------------- */

static void on_head(struct visit *v)
{
    char why[256];
    struct evbuffer *in = bufferevent_get_input(v->client);
    size_t len = v->looked_at;
    /* Nothing is read until there is somebody to pass it on to. */
    (void)bufferevent_disable(v->client, EV_READ);
    int r = egress_request_parse(bytes_of(v->head.data, len), &v->request, why, sizeof why);
    if (r == 0 && v->head.len > len)
        r = evbuffer_prepend(in, v->head.data + len, v->head.len - len) < 0 ? -ENOMEM : 0;
    if (r == -EINVAL) {
        answer(v, 400, why);
    } else if (r < 0) {
        answer(v, 503, strerror(-r));
    } else {
        v->parsed = true;
        buffer_release(&v->head);
        decide(v);
    }
}

static void on_read(struct bufferevent *stream, void *context)
{
    struct visit *v = context;
    struct evbuffer *in = bufferevent_get_input(stream);
    size_t len = evbuffer_get_length(in);
    if (buffer_reserve(&v->head, len) < 0) {
        answer(v, 503, strerror(ENOMEM));
        return;
    }
    int n = evbuffer_remove(in, v->head.data + v->head.len, len);
    v->head.len += n > 0 ? (size_t)n : 0;
    int r = egress_request_find_end(buffer_view(&v->head), &v->looked_at);
    if (r == 1)
        on_head(v);
    else if (r == -EMSGSIZE)
        answer(v, 431, "the header of the request is too long");
    else if (r < 0)
        answer(v, 400, "this is no HTTP request");
}

static void on_event(struct bufferevent *stream, short what, void *context)
{
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR))
        visit_free(context);
}

static void on_deadline(evutil_socket_t fd, short what, void *context)
{
    struct visit *v = context;
    switch (v->state) {
    case VISIT_READING:
        if (v->head.len > 0)
            answer(v, 408, "the request took too long");
        else
            visit_free(v);
        return;
    case VISIT_RESOLVING:
        resolution_cancel(take_ptr(v->resolution));
        answer_about(v, 504, "its name server does not answer");
        return;
    case VISIT_CONNECTING:
        dial_cancel(take_ptr(v->dial));
        answer_about(v, 504, "it does not answer");
        return;
    case VISIT_RELAYING:
        return;
    case VISIT_ANSWERED:
        visit_free(v);
        return;
    }
}

int visit_new(struct egress_workspace *w, int *fd)
{
    const int one = 1;
    struct event_base *base = w->egress->base;
    struct visit *v = calloc(1, sizeof *v);
    if (!v)
        return -ENOMEM;
    v->workspace = w;
    v->began_ns = clock_monotonic_ns();
    v->why = "the workspace has ended";
    TAILQ_INSERT_TAIL(&w->visits, v, entry);
    w->count++;
    (void)setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    v->deadline = evtimer_new(base, on_deadline, v);
    v->client = bufferevent_socket_new(base, *fd, BEV_OPT_CLOSE_ON_FREE);
    if (v->client)
        (void)take_fd(fd);
    if (!v->client || !v->deadline) {
        visit_free(v);
        return -ENOMEM;
    }
    bufferevent_setcb(v->client, on_read, NULL, on_event, v);
    bufferevent_setwatermark(v->client, EV_READ, 0, EGRESS_HEAD_MAX);
    (void)bufferevent_enable(v->client, EV_READ | EV_WRITE);
    set_deadline(v, w->egress->limits.request_ms);
    return 0;
}
