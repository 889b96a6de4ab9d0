#include "scripted_service.h"

#include "unit.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "wire/session.h"

#define HELD_MAX 64
#define FLOOD_BYTES 0x400000

static const char answer[] =
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: berth/1\r\nConnection: Upgrade\r\n\r\n";

/* One connection of it. */
struct served {
    struct scripted_service *service;
    int in;
    int out;
    struct session *session;
    uint64_t held[HELD_MAX];
    size_t held_count;
    uint64_t held_lookup;
    uint64_t flooding; /* the tag; 0: nothing */
    uint64_t flooded;  /* bytes */
    bool silent;       /* neither reads nor writes any more */
    bool ended;
};

static void reply_ok(struct served *s, uint64_t tag, uint64_t seq)
{
    struct wire_message ok = {.type = WIRE_OK, .ok = {.seq = seq}};
    assert_int_equal(session_send(s->session, tag, &ok), 0);
}

static void run_command(struct served *s, uint64_t tag)
{
    struct wire_message m = {.type = WIRE_EXEC_STARTED, .exec_started = {.pid = 7}};
    assert_int_equal(session_send(s->session, tag, &m), 0);
    for (uint64_t i = 0; i < 3; i++) {
        m = (struct wire_message){
            .type = WIRE_EXEC_OUTPUT,
            .exec_output = {.stream = 1, .offset = i * 5, .data = bytes_of_string("hello")}};
        assert_int_equal(session_send(s->session, tag, &m), 0);
    }
    assert_int_equal(session_grant(s->session, tag, 1000), 0);
}

static void handle(struct served *s, const struct wire_frame *f)
{
    const struct wire_message *m = &f->message;
    struct wire_message reply;
    size_t open = session_open_calls(s->session);
    if (open > atomic_load(&s->service->most_open))
        atomic_store(&s->service->most_open, (unsigned)open);
    switch ((int)m->type) {
    case WIRE_PING:
        atomic_fetch_add(&s->service->pings, 1);
        reply = (struct wire_message){.type = WIRE_PONG, .pong = {.nonce = m->ping.nonce}};
        assert_int_equal(session_send(s->session, f->tag, &reply), 0);
        break;
    case WIRE_STATUS:
        reply = (struct wire_message){.type = WIRE_STATUS_REPLY,
                                      .status_reply = {.json = bytes_of_string("{}")}};
        assert_int_equal(session_send(s->session, f->tag, &reply), 0);
        break;
    case WIRE_FLUSH: /* answered with its handle */
        reply_ok(s, f->tag, m->flush.handle);
        break;
    case WIRE_WRITE:
        reply = (struct wire_message){.type = WIRE_WRITTEN, .written = {.size = m->write.data.len}};
        assert_int_equal(session_send(s->session, f->tag, &reply), 0);
        break;
    case WIRE_FSYNC: /* held */
        assert_true(s->held_count < HELD_MAX);
        s->held[s->held_count++] = f->tag;
        break;
    case WIRE_GETATTR:
        assert_int_equal(session_send_error(s->session, f->tag, -ESTALE, "gone\033 away"), 0);
        break;
    case WIRE_EXEC:
        run_command(s, f->tag);
        break;
    case WIRE_EXEC_ATTACH: /* much output, and input up to its end */
        s->flooding = f->tag;
        s->flooded = 0;
        break;
    case WIRE_LOOKUP: /* held */
        s->held_lookup = f->tag;
        break;
    case WIRE_CANCEL:
        atomic_fetch_add(&s->service->cancels, 1);
        break;
    case WIRE_FORGET:
    case WIRE_RELEASE:
        atomic_fetch_add(&s->service->forgotten, 1);
        break;
    case WIRE_EXEC_INPUT:
        if (f->tag == s->flooding) {
            atomic_fetch_add(&s->service->input, m->exec_input.data.len);
            assert_int_equal(session_grant(s->session, f->tag, f->payload.len), 0);
            if (!m->exec_input.end)
                break;
            s->flooding = 0;
        }
        reply = (struct wire_message){.type = WIRE_EXEC_EXIT,
                                      .exec_exit = {.verdict = WIRE_VERDICT_EXITED, .code = 3}};
        assert_int_equal(session_send(s->session, f->tag, &reply), 0);
        break;
    case WIRE_RMDIR: /* the service breaks down */
        s->ended = true;
        break;
    case WIRE_RENAME:
        s->silent = true;
        break;
    case WIRE_MKDIR:
        reply = (struct wire_message){.type = WIRE_GOODBYE,
                                      .goodbye = {.text = bytes_of_string("shutting down")}};
        assert_int_equal(session_send(s->session, 0, &reply), 0);
        s->ended = true;
        break;
    case WIRE_UNLINK: /* a frame of an unknown type */
        assert_int_equal(write(s->out, "\0\0\0\0\xff\xff\0\0\1\0\0\0\0\0\0\0", 16), 16);
        break;
    default:
        break;
    }
}

static void flood(struct served *s)
{
    static const uint8_t data[60000];
    size_t cost = session_item_cost(WIRE_EXEC_OUTPUT, sizeof data);
    while (s->flooding && s->flooded < FLOOD_BYTES &&
           session_credit(s->session, s->flooding) >= cost) {
        const struct wire_message m = {.type = WIRE_EXEC_OUTPUT,
                                       .exec_output = {.stream = 1,
                                                       .offset = s->flooded,
                                                       .data = bytes_of(data, sizeof data)}};
        assert_int_equal(session_send(s->session, s->flooding, &m), 0);
        s->flooded += sizeof data;
    }
}

static void answer_held_lookup(struct served *s)
{
    const struct wire_message m = {.type = WIRE_ENTRY, .entry.node = 5};
    if (s->held_lookup)
        assert_int_equal(session_send(s->session, s->held_lookup, &m), 0);
    s->held_lookup = 0;
}

static void write_all(struct served *s)
{
    for (;;) {
        struct bytes out = session_output(s->session);
        if (out.len == 0)
            return;
        ssize_t n = write(s->out, out.data, out.len);
        if (n < 0) {
            s->ended = true;
            return;
        }
        session_output_done(s->session, (size_t)n);
    }
}

void scripted_service_serve(struct scripted_service *service, int in, int out)
{
    struct served s = {.service = service, .in = in, .out = out};
    char request[4096] = {0};
    size_t len = 0;
    while (!strstr(request, "\r\n\r\n")) {
        ssize_t n = read(in, request + len, 1);
        if (n <= 0)
            return;
        len += (size_t)n;
    }
    struct session_config config = {.role = SESSION_SERVER,
                                    .max_payload = WIRE_PAYLOAD_MAX,
                                    .max_calls = service->max_calls,
                                    .window = 65536,
                                    .agent = "test service"};
    assert_int_equal(session_new(&config, &s.session), 0);
    assert_int_equal(write(out, answer, strlen(answer)), strlen(answer));
    while (!s.ended) {
        struct pollfd p = {.fd = s.silent ? -1 : in, .events = POLLIN};
        struct pollfd hang_up = {.fd = in, .events = POLLRDHUP};
        (void)poll(&p, 1, 5);
        /* As a command, it does not notice: so ssh behind a network that is gone. */
        if (s.silent && in != STDIN_FILENO && poll(&hang_up, 1, 0) > 0)
            break;
        if (p.revents) {
            static _Thread_local uint8_t data[65536];
            ssize_t n = read(in, data, sizeof data);
            if (n <= 0 || session_feed(s.session, data, (size_t)n) < 0)
                break;
        }
        struct wire_frame *f;
        while (!s.ended && !s.silent && session_next(s.session, &f)) {
            handle(&s, f);
            wire_frame_free(f);
        }
        while (atomic_load(&service->release) && s.held_count > 0) {
            s.held_count--;
            reply_ok(&s, s.held[s.held_count], s.held_count);
        }
        if (atomic_load(&service->release))
            answer_held_lookup(&s);
        flood(&s);
        if (!s.silent)
            write_all(&s);
    }
    session_free(s.session);
}

static void *accept_connections(void *context)
{
    struct scripted_service *s = context;
    for (;;) {
        int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            return NULL;
        scripted_service_serve(s, fd, fd);
        (void)close(fd);
    }
}

void scripted_service_start(struct scripted_service *s, uint32_t max_calls, char *url, size_t size)
{
    s->max_calls = max_calls;
    static atomic_uint number;
    (void)snprintf(s->path, sizeof s->path, "/tmp/berth-test-%d-%u.sock", getpid(),
                   atomic_fetch_add(&number, 1));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, s->path, strlen(s->path) + 1);
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(s->listener, 8), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, accept_connections, s), 0);
    (void)snprintf(url, size, "unix:%s", s->path);
}

void scripted_service_stop(struct scripted_service *s)
{
    if (!s->path[0])
        return;
    (void)shutdown(s->listener, SHUT_RDWR);
    (void)pthread_join(s->thread, NULL);
    (void)close(s->listener);
    (void)unlink(s->path);
    s->path[0] = '\0';
}
