#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "control/private.h"

#define READ_SIZE 65536

/* Calls of one program under way: `berth exec` has one. Stops one from taking all that the
 * service allows the connection. */
#define PEER_CALLS_MAX 64

static void free_event(struct event **e)
{
    if (*e)
        event_free(*e);
    *e = NULL;
}

static void close_later(struct peer *p)
{
    static const struct timeval at_once = {0};
    if (p->dead)
        return;
    p->dead = true;
    (void)event_del(p->readable);
    (void)event_del(p->writable);
    (void)event_add(p->flush, &at_once);
}

static void count_program(struct control *c, int change)
{
    c->program_count += (size_t)change;
    if (c->events.peers)
        c->events.peers(c->events.context, c->program_count);
}

void peer_free(struct peer *p)
{
    struct control *c = p->control;
    forward_leave(p);
    TAILQ_REMOVE(&c->peers, p, link);
    c->peer_count--;
    bool program = p->session;
    free_event(&p->readable);
    free_event(&p->writable);
    free_event(&p->flush);
    http_reader_free(p->reader);
    session_free(p->session);
    buffer_release(&p->answer);
    close_fd(&p->fd);
    free(p);
    if (program)
        count_program(c, -1);
}

/* --- output ------------------------------------------------------------------------ */

static ssize_t write_some(struct peer *p)
{
    bool answer = p->answer.len > 0;
    struct bytes out = answer       ? buffer_view(&p->answer)
                       : p->session ? session_output(p->session)
                                    : (struct bytes){0};
    if (out.len == 0)
        return 0;
    ssize_t n = send(p->fd, out.data, out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0)
        return -errno;
    if (answer)
        buffer_consume(&p->answer, (size_t)n);
    else
        session_output_done(p->session, (size_t)n);
    return n;
}

static void write_all(struct peer *p)
{
    ssize_t n;
    while ((n = write_some(p)) > 0)
        ;
    if (n == -EAGAIN) {
        if (event_add(p->writable, NULL) < 0)
            close_later(p);
    } else if (n < 0 || p->ending) {
        close_later(p);
    }
}

static void on_flush(evutil_socket_t fd, short what, void *context)
{
    struct peer *p = context;
    if (p->dead)
        peer_free(p);
    else
        write_all(p);
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    write_all(context);
}

void peer_last_words(struct peer *p)
{
    while (write_some(p) > 0)
        ;
}

void peer_flush(struct peer *p)
{
    if (!p->dead && !event_pending(p->writable, EV_WRITE, NULL))
        event_active(p->flush, EV_WRITE, 0);
}

void peer_end(struct peer *p, int error, const char *reason)
{
    if (p->ending || p->dead)
        return;
    p->ending = true;
    if (p->session) {
        const struct wire_message goodbye = {
            .type = WIRE_GOODBYE,
            .goodbye = {.error = (uint32_t)-error, .text = bytes_of_string(reason)}};
        (void)session_send(p->session, 0, &goodbye);
    }
    peer_flush(p);
}

/* --- frames ------------------------------------------------------------------------- */

static int request_received(struct peer *p, const struct wire_frame *frame)
{
    if (frame->message.type != WIRE_PING)
        return forward_open(p, frame);
    const struct wire_message pong = {.type = WIRE_PONG, .pong.nonce = frame->message.ping.nonce};
    return session_send(p->session, frame->tag, &pong);
}

static int notice_received(struct peer *p, const struct wire_message *m)
{
    if (m->type == WIRE_EXEC_FORGET && p->control->client)
        return client_send(p->control->client, 0, m);
    /* Others are about what only a session has. */
    peer_end(p, m->type == WIRE_GOODBYE ? 0 : -EPROTO, "goodbye");
    return 0;
}

static int frame_received(struct peer *p, struct wire_frame **frame)
{
    switch (wire_row((*frame)->message.type)->class) {
    case WIRE_CLASS_REQUEST:
        return request_received(p, *frame);
    case WIRE_CLASS_ITEM:
    case WIRE_CLASS_CONTROL:
        return forward_message(p, frame);
    case WIRE_CLASS_NOTICE:
        return notice_received(p, &(*frame)->message);
    case WIRE_CLASS_REPLY:
    case WIRE_CLASS_RECORD:
        break;
    }
    return -EPROTO; /* the session takes none from a client */
}

static int take_frames(struct peer *p)
{
    struct wire_frame *frame;
    int r = 0;
    while (r == 0 && !p->ending && session_next(p->session, &frame)) {
        r = frame_received(p, &frame);
        wire_frame_free(frame);
    }
    return r;
}

static void bytes_received(struct peer *p, const uint8_t *data, size_t len)
{
    int fed = session_feed(p->session, data, len);
    int r = take_frames(p);
    if (r == 0 && session_credit_changed(p->session))
        forward_credit(p);
    if (fed < 0 || session_failure(p->session))
        p->ending = true; /* its GOODBYE says why */
    else if (r < 0)
        peer_end(p, r, r == -ENOMEM ? "out of memory" : "this cannot be passed on");
    peer_flush(p);
}

static int begin_session(struct peer *p)
{
    const struct session_peer *service = client_peer(p->control->client);
    struct session_config config = {
        .role = SESSION_SERVER,
        .max_payload =
            service->max_payload < WIRE_PAYLOAD_MAX ? service->max_payload : WIRE_PAYLOAD_MAX,
        .max_calls = PEER_CALLS_MAX,
        .window = service->window,
        .features = service->features & WIRE_FEATURE_CHANGES,
        .agent = service->agent,
        .epoch = service->epoch,
    };
    memcpy(config.service_id, service->service_id, sizeof config.service_id);
    int r = session_new(&config, &p->session);
    if (r == 0)
        count_program(p->control, 1);
    return r;
}

/* --- HTTP ---------------------------------------------------------------------------- */

static int describe(struct peer *p)
{
    struct control *c = p->control;
    json_t *object = json_pack("{s:i,s:I,s:I,s:b}", "pid", (int)getpid(), "programs",
                               (json_int_t)c->program_count, "calls", (json_int_t)c->calls,
                               "connected", c->client && !c->suspended);
    int r = object ? 0 : -ENOMEM;
    if (r == 0 && c->events.describe)
        r = c->events.describe(c->events.context, object);
    _cleanup_free_ char *text = r == 0 ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return text ? http_answer_text(&p->answer, text, false) : -ENOMEM;
}

static int stop(struct peer *p)
{
    struct control *c = p->control;
    if (!c->events.stop)
        return http_answer_problem(&p->answer, 409, "this connection is a mount's; unmount it", "");
    int r = http_answer_text(&p->answer, "ok\n", false);
    if (r == 0)
        c->events.stop(c->events.context);
    return r;
}

static int answer(struct peer *p, const struct http_request *request)
{
    bool get = strcmp(request->method, "GET") == 0;
    if (get && strcmp(request->path, "/v1/stream") == 0 && request->upgrade_berth) {
        if (!p->control->client || p->control->suspended)
            return http_answer_problem(&p->answer, 503, "there is no connection to the service now",
                                       "");
        int r = begin_session(p);
        return r < 0 ? r : buffer_append(&p->answer, HTTP_SWITCHING, strlen(HTTP_SWITCHING));
    }
    p->ending = true;
    if (get && strcmp(request->path, "/v1/connection") == 0)
        return describe(p);
    if (strcmp(request->method, "DELETE") == 0 && strcmp(request->path, "/v1/connection") == 0)
        return stop(p);
    return http_answer_problem(&p->answer, 404, "there is nothing here", "");
}

static void header_received(struct peer *p, const uint8_t *data, size_t len)
{
    size_t used;
    int r = http_reader_feed(p->reader, data, len, &used);
    if (r == 0)
        return;
    if (r > 0)
        r = answer(p, http_reader_request(p->reader));
    if (r < 0) {
        close_later(p);
        return;
    }
    http_reader_free(take_ptr(p->reader));
    if (p->session && used < len)
        bytes_received(p, data + used, len - used);
    peer_flush(p);
}

/* --- the socket ----------------------------------------------------------------------- */

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    struct peer *p = context;
    uint8_t data[READ_SIZE];
    ssize_t n = recv(fd, data, sizeof data, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        close_later(p);
    else if (p->ending)
        return; /* it is read on, so that it learns of the end and not of a reset */
    else if (p->reader)
        header_received(p, data, (size_t)n);
    else
        bytes_received(p, data, (size_t)n);
}

void peer_new(struct control *c, int fd)
{
    struct peer *p = calloc(1, sizeof *p);
    if (!p) {
        close_fd(&fd);
        return;
    }
    p->control = c;
    p->fd = fd;
    TAILQ_INSERT_TAIL(&c->peers, p, link);
    c->peer_count++;
    p->readable = event_new(c->base, fd, EV_READ | EV_PERSIST, on_readable, p);
    p->writable = event_new(c->base, fd, EV_WRITE, on_writable, p);
    p->flush = evtimer_new(c->base, on_flush, p);
    if (!p->readable || !p->writable || !p->flush || http_reader_new(&p->reader) < 0 ||
        event_add(p->readable, NULL) < 0)
        peer_free(p);
}
