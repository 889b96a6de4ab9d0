/* Connections that are lent: what programs ask is passed on under tags of its own and comes back to
 * who has asked; nobody gets more than the others leave, or learns of them. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "control/control.h"
#include "fake_client.h"
#include "stream/unix_path.h"

#define PROGRAMS_MAX 4

static const char upgrade[] = "GET /v1/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
                              "Upgrade: berth/1\r\n\r\n";

struct program {
    int fd;
    struct session *session;
    bool closed;
};

struct test {
    char directory[32];
    char path[64];
    struct event_base *base;
    struct client client;
    struct control *control;
    struct program programs[PROGRAMS_MAX];
    size_t count; /* as the control says */
};

static void on_peers(void *context, size_t count)
{
    struct test *t = context;
    t->count = count;
}

static int setup(void **state)
{
    static struct test t;
    struct failure failure;
    memset(&t, 0, sizeof t);
    strcpy(t.directory, "/tmp/berth-control-XXXXXX");
    assert_non_null(mkdtemp(t.directory));
    (void)snprintf(t.path, sizeof t.path, "%s/s", t.directory);
    t.base = event_base_new();
    fake_client_init(&t.client);
    const struct control_events events = {.peers = on_peers, .context = &t};
    assert_int_equal(control_new(t.base, t.path, &events, &t.control, &failure), 0);
    control_set_client(t.control, &t.client, NULL);
    for (size_t i = 0; i < PROGRAMS_MAX; i++)
        t.programs[i].fd = -1;
    *state = &t;
    return 0;
}

static int teardown(void **state)
{
    struct test *t = *state;
    control_free(t->control);
    fake_client_end(&t->client);
    for (size_t i = 0; i < PROGRAMS_MAX; i++) {
        session_free(t->programs[i].session);
        close_fd(&t->programs[i].fd);
    }
    event_base_free(t->base);
    assert_int_equal(access(t->path, F_OK), -1);
    assert_int_equal(rmdir(t->directory), 0);
    return 0;
}

static void program_pump(struct program *p)
{
    uint8_t data[65536];
    ssize_t n = -1;
    struct bytes out = p->session ? session_output(p->session) : (struct bytes){0};
    if (out.len > 0 && (n = send(p->fd, out.data, out.len, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
        session_output_done(p->session, (size_t)n);
    while (p->session && (n = recv(p->fd, data, sizeof data, MSG_DONTWAIT)) > 0)
        (void)session_feed(p->session, data, (size_t)n);
    p->closed = p->closed || (p->session && n == 0);
}

static void turn(struct test *t)
{
    for (int round = 0; round < 20; round++) {
        (void)event_base_loop(t->base, EVLOOP_NONBLOCK);
        for (size_t i = 0; i < PROGRAMS_MAX; i++)
            if (t->programs[i].fd >= 0)
                program_pump(&t->programs[i]);
    }
}

static int connect_raw(struct test *t)
{
    int fd;
    assert_int_equal(unix_path_connect(t->path, &fd), 0);
    return fd;
}

static bool was_closed(struct test *t, int fd)
{
    char data[4096];
    ssize_t n;
    turn(t);
    while ((n = recv(fd, data, sizeof data, MSG_DONTWAIT)) > 0)
        ;
    int error = errno;
    (void)close(fd);
    return n == 0 || error == ECONNRESET;
}

static struct program *begin(struct test *t, size_t i)
{
    struct program *p = &t->programs[i];
    char answer[512];
    p->fd = connect_raw(t);
    assert_int_equal(send(p->fd, upgrade, strlen(upgrade), 0), strlen(upgrade));
    turn(t);
    ssize_t n = recv(p->fd, answer, sizeof answer - 1, MSG_DONTWAIT);
    assert_true(n > 12 && memcmp(answer, "HTTP/1.1 101", 12) == 0);
    const struct session_config config = {.role = SESSION_CLIENT,
                                          .max_payload = WIRE_PAYLOAD_MAX,
                                          .max_calls = 8,
                                          .window = CLIENT_WINDOW,
                                          .agent = "test"};
    assert_int_equal(session_new(&config, &p->session), 0);
    turn(t);
    assert_true(session_ready(p->session));
    assert_int_equal(session_peer(p->session)->epoch, t->client.peer.epoch);
    return p;
}

static struct wire_frame *next(struct test *t, struct program *p)
{
    struct wire_frame *frame = NULL;
    turn(t);
    return session_next(p->session, &frame) ? frame : NULL;
}

static uint64_t request(struct test *t, struct program *p, const struct wire_message *m)
{
    uint64_t tag;
    assert_int_equal(session_request(p->session, m, false, &tag), 0);
    turn(t);
    return tag;
}

static const struct wire_message status = {.type = WIRE_STATUS};
static const struct wire_message attach = {
    .type = WIRE_EXEC_ATTACH,
    .exec_attach = {.workspace = {(const uint8_t *)"w", 1}, .id = {(const uint8_t *)"i", 1}}};

static struct wire_message answer_of(const char *text)
{
    return (struct wire_message){.type = WIRE_STATUS_REPLY,
                                 .status_reply.json = bytes_of_string(text)};
}

static void expect_answer(struct test *t, struct program *p, uint64_t tag, const char *text)
{
    struct wire_frame *frame = next(t, p);
    assert_non_null(frame);
    assert_int_equal(frame->message.type, WIRE_STATUS_REPLY);
    assert_int_equal(frame->tag, tag);
    assert_true(bytes_equal(frame->message.status_reply.json, bytes_of_string(text)));
    wire_frame_free(frame);
}

static void test_each_gets_the_answer_to_what_it_asked(void **state)
{
    struct test *t = *state;
    struct program *a = begin(t, 0);
    struct program *b = begin(t, 1);
    assert_int_equal(t->count, 2);
    uint64_t first = request(t, a, &status);
    uint64_t second = request(t, b, &status);
    assert_int_equal(first, second); /* of each one's own */
    assert_int_equal(t->client.count, 2);
    const struct wire_message of_b = answer_of("{\"b\":1}");
    const struct wire_message of_a = answer_of("{\"a\":1}");
    fake_client_reply(&t->client, 1, &of_b);
    fake_client_reply(&t->client, 0, &of_a);
    expect_answer(t, a, first, "{\"a\":1}");
    expect_answer(t, b, second, "{\"b\":1}");
    assert_null(next(t, a));
}

static void test_what_takes_a_session_is_refused(void **state)
{
    struct test *t = *state;
    struct program *p = begin(t, 0);
    const struct wire_message look_up = {
        .type = WIRE_LOOKUP, .lookup = {.parent = 1, .name = {(const uint8_t *)"x", 1}}};
    const struct wire_message ping = {.type = WIRE_PING, .ping.nonce = 5};
    (void)request(t, p, &look_up);
    struct wire_frame *frame = next(t, p);
    assert_int_equal(frame->message.type, WIRE_ERROR);
    assert_int_equal(frame->message.error.error, EOPNOTSUPP);
    wire_frame_free(frame);
    (void)request(t, p, &ping);
    frame = next(t, p);
    assert_int_equal(frame->message.type, WIRE_PONG);
    wire_frame_free(frame);
    assert_int_equal(t->client.count, 0);
}

static void test_credit_goes_from_end_to_end(void **state)
{
    struct test *t = *state;
    struct program *p = begin(t, 0);
    uint64_t tag = request(t, p, &attach);
    const struct fake_call *call = &t->client.calls[0];
    static uint8_t data[60000];
    const struct wire_message item = {.type = WIRE_EXEC_OUTPUT,
                                      .exec_output = {.stream = 1, .data = {data, sizeof data}}};
    fake_client_item(&t->client, 0, &item);
    turn(t);
    assert_int_equal(call->granted, 0); /* it has not read anything yet */
    assert_int_equal(session_grant(p->session, tag, 50000), 0);
    turn(t);
    assert_int_equal(call->granted, 50000);
    /* And what the service gives, the program may send. */
    size_t before = session_credit(p->session, tag);
    t->client.credit = 1000;
    call->call.writable(call->call.context, call->tag);
    turn(t);
    assert_int_equal(session_credit(p->session, tag), before + 1000);
}

static void test_who_leaves_leaves_its_commands(void **state)
{
    struct test *t = *state;
    struct program *p = begin(t, 0);
    (void)request(t, p, &attach);
    close_fd(&p->fd);
    turn(t);
    assert_int_equal(t->count, 0);
    assert_int_equal(t->client.calls[0].cancel, WIRE_CANCEL_LEAVE);
    /* What still comes is for nobody, and costs the service no credit. */
    const struct wire_message item = {
        .type = WIRE_EXEC_OUTPUT, .exec_output = {.stream = 1, .data = {(const uint8_t *)"x", 1}}};
    fake_client_item(&t->client, 0, &item);
    assert_int_equal(t->client.calls[0].granted, session_item_cost(WIRE_EXEC_OUTPUT, 1));
}

static void test_another_connection_is_not_the_same(void **state)
{
    static struct client other;
    struct test *t = *state;
    struct program *p = begin(t, 0);
    (void)request(t, p, &status);
    fake_client_init(&other);
    control_set_client(t->control, &other, "it was replaced");
    turn(t);
    assert_true(p->closed);
    const struct wire_message late = answer_of("{}");
    fake_client_reply(&t->client, 0, &late);
    assert_int_equal(other.count + other.notices, 0);
    session_free(take_ptr(p->session));
    close_fd(&p->fd);
    p = begin(t, 1);
    (void)request(t, p, &status);
    assert_int_equal(other.count, 1);
    control_set_client(t->control, NULL, NULL);
    fake_client_end(&other);
}

static void test_no_connection_is_said(void **state)
{
    struct test *t = *state;
    char answer[512] = "";
    control_set_suspended(t->control, true);
    int fd = connect_raw(t);
    assert_int_equal(send(fd, upgrade, strlen(upgrade), 0), strlen(upgrade));
    turn(t);
    assert_true(recv(fd, answer, sizeof answer - 1, MSG_DONTWAIT) > 12);
    assert_memory_equal(answer, "HTTP/1.1 503", 12);
    (void)close(fd);
    control_set_suspended(t->control, false);
    (void)begin(t, 0);
}

static void test_garbage_ends_its_connection_alone(void **state)
{
    static const char *const all[] = {
        "\xff\xff\xff\xff\x01\x00\x00\x00", "\x00\x00\x00\x00\xff\xff\x00\x00",
        "\x10\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"};
    struct test *t = *state;
    struct program *beside = begin(t, 0);
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        uint8_t zeros[4096] = {0};
        int fd = connect_raw(t);
        assert_true(send(fd, upgrade, strlen(upgrade), 0) > 0);
        assert_true(send(fd, all[i], 8, 0) == 8);
        (void)send(fd, zeros, sizeof zeros, MSG_NOSIGNAL);
        assert_true(was_closed(t, fd));
    }
    int fd = connect_raw(t);
    assert_true(send(fd, "\x16\x03\x01 no HTTP\r\n\r\n", 14, 0) > 0);
    assert_true(was_closed(t, fd));
    uint64_t tag = request(t, beside, &status);
    const struct wire_message answer = answer_of("{}");
    fake_client_reply(&t->client, 0, &answer);
    expect_answer(t, beside, tag, "{}");
}

static void test_another_user_is_closed_at_once(void **state)
{
    struct test *t = *state;
    if (geteuid() != 0)
        return; /* only root can be another */
    int fd = connect_raw(t);
    /* Credentials are those of the one that has connected; seen from another user they differ. */
    assert_int_equal(seteuid(65534), 0);
    turn(t);
    assert_int_equal(seteuid(0), 0);
    assert_true(was_closed(t, fd));
    assert_int_equal(t->count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_gets_the_answer_to_what_it_asked, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_what_takes_a_session_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_credit_goes_from_end_to_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_who_leaves_leaves_its_commands, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_connection_is_not_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_connection_is_said, setup, teardown),
        cmocka_unit_test_setup_teardown(test_garbage_ends_its_connection_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_user_is_closed_at_once, setup, teardown),
    };
    (void)alarm(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
