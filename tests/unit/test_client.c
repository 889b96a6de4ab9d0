/* The client on an event loop against a scripted service. With the argument --serve this program is
 * that service on standard input and output, for streams of a command. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/client.h"
#include "scripted_service.h"

/* No test may hang: far above what any needs on a busy machine. */
#define TEST_SECONDS 60

/* --- the fixture ---------------------------------------------------------------------------- */

struct fixture {
    struct scripted_service service;
    char url[128];
    struct event_base *base;
    struct client *client;
    bool in_call;   /* within client_call or client_send: no callback may come */
    bool free_next; /* the next callback frees the client */
    bool free_in_lost;
    unsigned replies;
    unsigned lost;
    int lost_error;
    char lost_reason[256];
    unsigned stop_at; /* replies: leave the loop */
};

struct asked {
    struct fixture *f;
    unsigned replies;
    unsigned items;
    unsigned writable;
    unsigned order; /* when it was answered */
    int error;
    uint64_t seq;
    bool had_message;
};

static void free_if_wanted(struct fixture *f)
{
    assert_false(f->in_call);
    if (f->free_next) {
        f->free_next = false;
        client_free(take_ptr(f->client));
        (void)event_base_loopbreak(f->base);
    }
}

static void on_reply(void *context, int error, const struct wire_message *m)
{
    struct asked *a = context;
    struct fixture *f = a->f;
    a->replies++;
    a->order = ++f->replies;
    a->error = error;
    a->had_message = m;
    if (m && m->type == WIRE_OK)
        a->seq = m->ok.seq;
    free_if_wanted(f);
    if (f->replies == f->stop_at)
        (void)event_base_loopbreak(f->base);
}

static void on_item(void *context, uint64_t tag, const struct wire_message *m)
{
    struct asked *a = context;
    a->items++;
    if (m->type == WIRE_EXEC_OUTPUT)
        assert_int_equal(
            client_grant(a->f->client, tag, session_item_cost(m->type, m->exec_output.data.len)),
            0);
    free_if_wanted(a->f);
}

static void on_writable(void *context, uint64_t tag)
{
    struct asked *a = context;
    a->writable++;
    free_if_wanted(a->f);
}

static void on_lost(void *context, int error, const char *reason)
{
    struct fixture *f = context;
    f->lost++;
    f->lost_error = error;
    (void)snprintf(f->lost_reason, sizeof f->lost_reason, "%s", reason);
    f->free_next = f->free_in_lost;
    free_if_wanted(f);
    (void)event_base_loopbreak(f->base);
}

static void connect_to(struct fixture *f, const char *url)
{
    struct stream_options options = {.url = url, .connect_timeout_ms = 10000};
    struct failure failure;
    if (client_connect(&options, "test 1", &f->client, &failure) < 0)
        fail_msg("%s", failure.text);
}

static void attach(struct fixture *f)
{
    struct client_events events = {.lost = on_lost, .context = f};
    assert_int_equal(client_attach(f->client, f->base, &events), 0);
}

static struct fixture *setup(uint32_t max_calls)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->base = event_base_new();
    assert_non_null(f->base);
    scripted_service_start(&f->service, max_calls, f->url, sizeof f->url);
    connect_to(f, f->url);
    attach(f);
    return f;
}

static void teardown(struct fixture *f)
{
    client_free(f->client);
    event_base_free(f->base);
    scripted_service_stop(&f->service);
    free(f);
}

static void ask(struct fixture *f, struct asked *a, const struct wire_message *m)
{
    a->f = f;
    struct client_call call = {.reply = on_reply,
                               .item = on_item,
                               .writable = on_writable,
                               .context = a,
                               .blocking = true};
    f->in_call = true;
    assert_int_equal(client_call(f->client, m, &call, NULL), 0);
    f->in_call = false;
}

static void run(struct fixture *f, unsigned stop_at)
{
    f->stop_at = stop_at;
    if (f->replies < stop_at || stop_at == 0)
        assert_true(event_base_loop(f->base, 0) >= 0);
}

static void stop_loop(evutil_socket_t fd, short what, void *context)
{
    struct fixture *f = context;
    (void)event_base_loopbreak(f->base);
}

static void run_for(struct fixture *f, unsigned ms)
{
    struct timeval t = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    f->stop_at = 0;
    assert_int_equal(event_base_once(f->base, -1, EV_TIMEOUT, stop_loop, f, &t), 0);
    assert_true(event_base_loop(f->base, 0) >= 0);
}

static const struct wire_message hold = {.type = WIRE_FSYNC, .fsync = {.handle = 1}};
static const struct wire_message status = {.type = WIRE_STATUS};
static const struct wire_message break_down = {.type = WIRE_RMDIR,
                                               .rmdir = {.name = {(const uint8_t *)"x", 1}}};
static const struct wire_message fall_silent = {
    .type = WIRE_RENAME,
    .rename = {.name = {(const uint8_t *)"x", 1}, .new_name = {(const uint8_t *)"y", 1}}};

/* --- tests ------------------------------------------------------------------------------------ */

static void test_calls_one_by_one(void **state)
{
    struct fixture f = {.base = event_base_new()};
    scripted_service_start(&f.service, 100, f.url, sizeof f.url);
    connect_to(&f, f.url);
    assert_string_equal(client_peer(f.client)->agent, "test service");
    assert_int_equal(client_peer(f.client)->max_calls, 100);
    assert_true(client_setup_ns(f.client) > 0);
    struct wire_frame *frame;
    struct failure failure;
    assert_int_equal(client_call_sync(f.client, &status, 5000, &frame, &failure), 0);
    assert_int_equal(frame->message.type, WIRE_STATUS_REPLY);
    wire_frame_free(frame);
    struct wire_message m = {.type = WIRE_GETATTR};
    assert_int_equal(client_call_sync(f.client, &m, 5000, &frame, &failure), -ESTALE);
    assert_string_equal(failure.text, "gone\\x1b away"); /* escaped */
    m = (struct wire_message){.type = WIRE_LOOKUP};      /* an empty name */
    assert_int_equal(client_call_sync(f.client, &m, 5000, &frame, &failure), -EINVAL);
    /* None of these ended the connection; this does. */
    assert_int_equal(client_call_sync(f.client, &status, 5000, &frame, &failure), 0);
    wire_frame_free(frame);
    assert_int_equal(client_stats(f.client).round_trips, 3);
    m = (struct wire_message){.type = WIRE_MKDIR, .mkdir = {.name = {(const uint8_t *)"x", 1}}};
    assert_int_equal(client_call_sync(f.client, &m, 5000, &frame, &failure), -ECONNRESET);
    assert_non_null(strstr(failure.text, "shutting down"));
    assert_int_equal(client_call_sync(f.client, &status, 5000, &frame, &failure), -ENOTCONN);
    client_free(take_ptr(f.client));

    connect_to(&f, f.url);
    uint64_t start = clock_monotonic_ns();
    assert_int_equal(client_call_sync(f.client, &hold, 200, &frame, &failure), -ETIMEDOUT);
    assert_in_range(clock_monotonic_ns() - start, 200 * NSEC_PER_MSEC, 5 * NSEC_PER_SEC);
    client_free(take_ptr(f.client));
    scripted_service_stop(&f.service);
    event_base_free(f.base);
}

static void test_replies_in_another_order(void **state)
{
    struct fixture *f = setup(100);
    struct asked held[5] = {0};
    struct asked quick = {0};
    for (int i = 0; i < 5; i++)
        ask(f, &held[i], &hold);
    ask(f, &quick, &(struct wire_message){.type = WIRE_FLUSH, .flush = {.handle = 42}});
    assert_int_equal(f->replies, 0);
    run(f, 1);
    assert_int_equal(quick.replies, 1);
    assert_int_equal(quick.seq, 42);
    atomic_store(&f->service.release, true);
    run(f, 6);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(held[i].replies, 1);
        assert_int_equal(held[i].error, 0);
        assert_int_equal(held[i].seq, i);
        assert_int_equal(held[i].order, 6 - i); /* newest first */
    }
    struct asked failed = {0};
    ask(f, &failed, &(struct wire_message){.type = WIRE_GETATTR});
    run(f, 7);
    assert_int_equal(failed.error, -ESTALE);
    assert_true(failed.had_message);
    teardown(f);
}

static void test_calls_beyond_the_limit_wait(void **state)
{
    struct fixture *f = setup(4);
    struct asked asked[50] = {0};
    uint8_t data[100];
    for (unsigned i = 0; i < 50; i++) {
        /* Queued ones are copied: what they point to is reused. */
        memset(data, (int)i, sizeof data);
        if (i % 2)
            ask(f, &asked[i],
                &(struct wire_message){.type = WIRE_WRITE,
                                       .write = {.data = bytes_of(data, sizeof data)}});
        else
            ask(f, &asked[i], &(struct wire_message){.type = WIRE_FLUSH, .flush = {.handle = i}});
    }
    run(f, 50);
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(asked[i].replies, 1);
        assert_int_equal(asked[i].error, 0);
        assert_int_equal(asked[i].order, i + 1); /* first come, first served */
        if (i % 2 == 0)
            assert_int_equal(asked[i].seq, i);
        assert_int_equal(asked[i].writable, i >= 3); /* told when it was sent */
    }
    assert_int_equal(atomic_load(&f->service.most_open), 3); /* one is kept for PING */

    struct client_call call = {.reply = on_reply};
    struct wire_message bad = {.type = WIRE_LOOKUP};
    assert_int_equal(client_call(f->client, &bad, &call, NULL), -EINVAL);
    struct asked held[3] = {0};
    for (int i = 0; i < 3; i++)
        ask(f, &held[i], &hold);
    assert_int_equal(client_call(f->client, &bad, &call, NULL), -EINVAL); /* also when queued */
    bad = (struct wire_message){.type = WIRE_OK};
    assert_int_equal(client_call(f->client, &bad, &call, NULL), -EINVAL);
    teardown(f);
    for (int i = 0; i < 3; i++)
        assert_int_equal(held[i].error, -ECANCELED);
}

static void test_slow_calls_are_not_a_dead_service(void **state)
{
    struct fixture *f = setup(4);
    struct asked held[3] = {0};
    struct asked queued = {0};
    client_set_deadline_ms(f->client, 300);
    for (int i = 0; i < 3; i++)
        ask(f, &held[i], &hold);
    ask(f, &queued, &status);
    run_for(f, 1200);
    assert_int_equal(f->lost, 0);
    assert_int_equal(f->replies, 0);
    assert_true(atomic_load(&f->service.pings) >= 3);
    atomic_store(&f->service.release, true);
    run(f, 4);
    assert_int_equal(queued.error, 0);
    teardown(f);
}

static void test_a_silent_service_is_lost(void **state)
{
    struct fixture *f = setup(100);
    struct asked held = {0};
    struct asked silent = {0};
    client_set_deadline_ms(f->client, 400);
    ask(f, &held, &hold);
    ask(f, &silent, &fall_silent);
    uint64_t start = clock_monotonic_ns();
    run(f, 0);
    uint64_t took = clock_monotonic_ns() - start;
    assert_in_range(took, 350 * NSEC_PER_MSEC, 3 * NSEC_PER_SEC);
    assert_int_equal(f->lost, 1);
    assert_int_equal(f->lost_error, -ETIMEDOUT);
    assert_non_null(strstr(f->lost_reason, "silent for 0.4 s"));
    assert_int_equal(held.error, -ETIMEDOUT);
    assert_int_equal(silent.error, -ETIMEDOUT);
    teardown(f);
}

static void test_a_stopped_client_does_not_blame_the_service(void **state)
{
    struct fixture *f = setup(100);
    struct asked held = {0};
    client_set_deadline_ms(f->client, 200);
    ask(f, &held, &hold);
    run_for(f, 20);
    (void)poll(NULL, 0, 1000); /* the loop stands still for longer than the deadline */
    run_for(f, 400);
    assert_int_equal(f->lost, 0);
    atomic_store(&f->service.release, true);
    run(f, 1);
    assert_int_equal(held.error, 0);
    teardown(f);
}

static void check_lost(struct fixture *f, struct asked *asked, size_t count, int error)
{
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(asked[i].replies, 1);
        assert_int_equal(asked[i].error, error);
        assert_false(asked[i].had_message);
    }
    assert_int_equal(f->lost, 1);
    assert_int_equal(f->lost_error, error);
}

static void test_a_lost_connection_answers_all_once(void **state)
{
    struct wire_message garbage = {.type = WIRE_UNLINK,
                                   .unlink = {.name = {(const uint8_t *)"x", 1}}};
    struct wire_message goodbye = {.type = WIRE_MKDIR,
                                   .mkdir = {.name = {(const uint8_t *)"x", 1}}};
    const struct {
        const struct wire_message *m;
        int error;
        const char *reason;
    } cases[] = {{&break_down, -ECONNRESET, "closed the connection"},
                 {&garbage, -EPROTO, "0xffff"},
                 {&goodbye, -ECONNRESET, "shutting down"}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture *f = setup(4);
        struct asked asked[10] = {0}; /* 3 sent, of which one ends it, and 7 queued */
        for (int k = 0; k < 2; k++)
            ask(f, &asked[k], &hold);
        for (int k = 2; k < 10; k++)
            ask(f, &asked[k], cases[i].m);
        run(f, 0);
        check_lost(f, asked, 10, cases[i].error);
        if (!strstr(f->lost_reason, cases[i].reason))
            fail_msg("%s", f->lost_reason);
        struct client_call call = {.reply = on_reply};
        assert_int_equal(client_call(f->client, &status, &call, NULL), -ENOTCONN);
        assert_int_equal(client_send(f->client, 0, &status), -ENOTCONN);
        assert_int_equal(client_grant(f->client, 1, 1), -ENOTCONN);
        assert_int_equal(client_credit(f->client, 1), 0);
        teardown(f);
    }
}

static void test_freed_in_a_callback(void **state)
{
    /* in a reply, with others open */
    struct fixture *f = setup(100);
    struct asked asked[8] = {0};
    for (int i = 0; i < 4; i++)
        ask(f, &asked[i], &hold);
    for (int i = 4; i < 8; i++)
        ask(f, &asked[i], &status);
    f->free_next = true;
    run(f, 0);
    assert_null(f->client);
    assert_int_equal(asked[4].error, 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(asked[i].replies, 1);
        if (i != 4)
            assert_int_equal(asked[i].error, -ECANCELED);
    }
    assert_int_equal(f->lost, 0);
    teardown(f);

    /* in the first answer of a lost connection */
    f = setup(3);
    memset(asked, 0, sizeof asked);
    ask(f, &asked[0], &hold);
    for (int i = 1; i < 8; i++)
        ask(f, &asked[i], &break_down);
    f->free_next = true;
    run(f, 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(asked[i].replies, 1);
    assert_int_equal(asked[0].error, -ECONNRESET);
    assert_int_equal(f->lost, 0); /* nothing comes after client_free */
    teardown(f);

    /* in lost itself */
    f = setup(100);
    memset(asked, 0, sizeof asked);
    f->free_in_lost = true;
    ask(f, &asked[0], &break_down);
    run(f, 0);
    assert_int_equal(f->lost, 1);
    assert_null(f->client);
    teardown(f);

    /* in an item */
    f = setup(100);
    memset(asked, 0, sizeof asked);
    struct buffer argv = {0};
    assert_int_equal(wire_list_append(&argv, bytes_of_string("true")), 0);
    struct wire_message exec = {
        .type = WIRE_EXEC,
        .exec = {.workspace = bytes_of_string("w"), .argv = wire_list_of(&argv, 1)}};
    ask(f, &asked[0], &exec);
    f->free_next = true;
    run(f, 0);
    assert_int_equal(asked[0].items, 1);
    assert_int_equal(asked[0].replies, 1);
    assert_int_equal(asked[0].error, -ECANCELED);
    teardown(f);
    buffer_release(&argv);
}

static uint64_t exec_tag;

static void on_writable_sends(void *context, uint64_t tag)
{
    struct asked *a = context;
    a->writable++;
    exec_tag = tag;
    assert_true(client_credit(a->f->client, tag) >= 1000);
    struct wire_message input = {.type = WIRE_EXEC_INPUT, .exec_input = {.end = 1}};
    if (a->writable == 1)
        assert_int_equal(client_send(a->f->client, tag, &input), 0);
}

static void test_items_and_credit(void **state)
{
    struct fixture *f = setup(100);
    struct buffer argv = {0};
    assert_int_equal(wire_list_append(&argv, bytes_of_string("true")), 0);
    struct wire_message exec = {
        .type = WIRE_EXEC,
        .exec = {.workspace = bytes_of_string("w"), .argv = wire_list_of(&argv, 1)}};
    struct asked a = {.f = f};
    struct client_call call = {
        .reply = on_reply, .item = on_item, .writable = on_writable_sends, .context = &a};
    uint64_t tag = 0;
    assert_int_equal(client_call(f->client, &exec, &call, &tag), 0);
    run(f, 1);
    assert_int_equal(a.items, 4); /* started, and three outputs, all before the reply */
    assert_int_equal(a.writable, 1);
    assert_int_equal(exec_tag, tag);
    assert_int_equal(a.error, 0);
    buffer_release(&argv);
    teardown(f);
}

static void test_more_output_than_the_stream_takes(void **state)
{
    struct fixture *f = setup(100);
    static uint8_t data[WIRE_DATA_MAX];
    struct asked asked[40] = {0};
    for (int i = 0; i < 40; i++)
        ask(f, &asked[i],
            &(struct wire_message){.type = WIRE_WRITE,
                                   .write = {.data = bytes_of(data, sizeof data)}});
    run(f, 40);
    for (int i = 0; i < 40; i++)
        assert_int_equal(asked[i].error, 0);
    assert_true(client_stats(f->client).bytes_out > 40u * WIRE_DATA_MAX);
    teardown(f);
}

/* What the command writes to standard error, more than a pipe holds, does not stop it: ours has the
 * beginning, and the reason, when it ends, its last words. */
static char exec_url[4200];

static void test_stream_of_a_command(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->base = event_base_new();
    int saved = dup(STDERR_FILENO);
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(dup2(fileno(file), STDERR_FILENO), STDERR_FILENO);
    connect_to(f, exec_url);
    attach(f);
    run_for(f, 300);
    struct asked asked[2] = {0};
    ask(f, &asked[0], &status);
    run(f, 1);
    assert_int_equal(asked[0].error, 0);
    ask(f, &asked[1], &break_down);
    run(f, 0);
    assert_int_equal(dup2(saved, STDERR_FILENO), STDERR_FILENO);
    (void)close(saved);
    assert_int_equal(asked[1].error, -ECONNRESET);
    assert_int_equal(f->lost, 1);
    if (strcmp(f->lost_reason, "the command ended with status 9 and said: last words") != 0)
        fail_msg("%s", f->lost_reason);
    char text[0x20000];
    rewind(file);
    size_t len = fread(text, 1, sizeof text, file);
    (void)fclose(file);
    const char end[] = "\nconnect: (what it says from here on is not shown)\n";
    assert_in_range(len, 0x10000, 0x10000 + 4096 + sizeof end);
    assert_memory_equal(text, "connect: ", 9);
    assert_memory_equal(text + len - strlen(end), end, strlen(end));
    teardown(f);
}

static void test_a_command_that_falls_silent_is_ended_at_once(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->base = event_base_new();
    int saved = dup(STDERR_FILENO);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_int_equal(dup2(null, STDERR_FILENO), STDERR_FILENO);
    (void)close(null);
    connect_to(f, exec_url);
    attach(f);
    client_set_deadline_ms(f->client, 300);
    struct asked a = {0};
    ask(f, &a, &fall_silent);
    run(f, 0);
    assert_int_equal(f->lost_error, -ETIMEDOUT);
    uint64_t start = clock_monotonic_ns();
    client_free(take_ptr(f->client));
    assert_in_range(clock_monotonic_ns() - start, 0, NSEC_PER_SEC); /* end of file alone: 2 s */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);               /* reaped */
    assert_int_equal(dup2(saved, STDERR_FILENO), STDERR_FILENO);
    (void)close(saved);
    teardown(f);
}

static int serve_standard_streams(void)
{
    struct scripted_service service = {.max_calls = 100};
    static char noise[300000];
    memset(noise, '.', sizeof noise);
    pid_t writer = fork();
    if (writer == 0)
        _exit(write(STDERR_FILENO, noise, sizeof noise) == sizeof noise ? 0 : 1);
    scripted_service_serve(&service, STDIN_FILENO, STDOUT_FILENO);
    (void)fputs("\nlast words\n", stderr);
    return 9;
}

int main(int argc, char **argv)
{
    (void)alarm(TEST_SECONDS);
    (void)signal(SIGPIPE, SIG_IGN); /* of the service's threads */
    if (argc == 2 && strcmp(argv[1], "--serve") == 0)
        return serve_standard_streams();
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return 2;
    self[n] = '\0';
    (void)snprintf(exec_url, sizeof exec_url, "exec:exec '%s' --serve", self);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_one_by_one),
        cmocka_unit_test(test_replies_in_another_order),
        cmocka_unit_test(test_calls_beyond_the_limit_wait),
        cmocka_unit_test(test_slow_calls_are_not_a_dead_service),
        cmocka_unit_test(test_a_silent_service_is_lost),
        cmocka_unit_test(test_a_stopped_client_does_not_blame_the_service),
        cmocka_unit_test(test_a_lost_connection_answers_all_once),
        cmocka_unit_test(test_freed_in_a_callback),
        cmocka_unit_test(test_items_and_credit),
        cmocka_unit_test(test_more_output_than_the_stream_takes),
        cmocka_unit_test(test_stream_of_a_command),
        cmocka_unit_test(test_a_command_that_falls_silent_is_ended_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
