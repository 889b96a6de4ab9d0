/* Calls of the gateway that block, against a scripted service. */
#include "unit.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "gateway/upstream.h"
#include "scripted_service.h"

/* No test may hang: far above what any needs on a busy machine. */
#define TEST_SECONDS 60

static const struct wire_message hold = {.type = WIRE_FSYNC};
static const struct wire_message attach = {
    .type = WIRE_EXEC_ATTACH,
    .exec_attach = {.workspace = {(const uint8_t *)"w", 1}, .id = {(const uint8_t *)"i", 1}}};

struct fixture {
    struct scripted_service service;
    char url[128];
    struct upstream *u;
};

static struct fixture *setup(uint32_t max_calls)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    scripted_service_start(&f->service, max_calls, f->url, sizeof f->url);
    const struct stream_options options = {.url = f->url, .connect_timeout_ms = 10000};
    struct failure failure;
    if (upstream_open(&options, "test 1", &f->u, &failure) < 0)
        fail_msg("%s", failure.text);
    return f;
}

static void teardown(struct fixture *f)
{
    upstream_free(f->u);
    scripted_service_stop(&f->service);
    free(f);
}

static struct wire_message flush_of(uint64_t handle)
{
    return (struct wire_message){.type = WIRE_FLUSH, .flush.handle = handle};
}

static void ask_flush(struct fixture *f, uint64_t handle)
{
    const struct wire_message m = flush_of(handle);
    struct wire_frame *reply;
    struct failure failure;
    assert_int_equal(upstream_call(f->u, &m, &reply, &failure), 0);
    assert_int_equal(reply->message.ok.seq, handle); /* the scripted service says it back */
    wire_frame_free(reply);
}

static void wait_for(atomic_uint *count, unsigned at_least)
{
    while (atomic_load(count) < at_least)
        (void)usleep(1000);
}

static void test_one_call(void **state)
{
    struct fixture *f = setup(100);
    ask_flush(f, 7);
    const struct wire_message m = {.type = WIRE_GETATTR};
    struct wire_frame *reply = NULL;
    struct failure failure;
    assert_int_equal(upstream_call(f->u, &m, &reply, &failure), -ESTALE);
    assert_string_equal(failure.text, "gone\\x1b away");
    assert_null(reply);
    const struct wire_message bad = {.type = WIRE_LOOKUP}; /* an empty name */
    assert_int_equal(upstream_call(f->u, &bad, &reply, &failure), -EINVAL);
    assert_false(upstream_is_lost(f->u));
    teardown(f);
}

/* More at once than the service takes: all are answered, in one chain of waiting. */
static void test_many_at_once(void **state)
{
    struct fixture *f = setup(4);
    struct upstream_call *calls[50];
    for (uint64_t i = 0; i < 50; i++) {
        const struct wire_message m = flush_of(i);
        assert_int_equal(upstream_start(f->u, &m, &calls[i]), 0);
    }
    for (uint64_t i = 50; i-- > 0;) {
        struct wire_frame *reply;
        struct failure failure;
        assert_int_equal(upstream_finish(calls[i], &reply, &failure), 0);
        assert_int_equal(reply->message.ok.seq, i);
        wire_frame_free(reply);
    }
    assert_in_range(atomic_load(&f->service.most_open), 2, 4);
    teardown(f);
}

/* 4 MiB through a window of 1 MiB, and 1 MiB back through one of 64 KiB, at the same time. */
static void test_items_both_ways(void **state)
{
    struct fixture *f = setup(100);
    static const uint8_t data[16384];
    struct upstream_call *call;
    uint64_t received = 0, sent = 0;
    assert_int_equal(upstream_start(f->u, &attach, &call), 0);
    while (received < 0x400000 || sent < 0x100000) {
        while (sent < 0x100000) {
            const struct wire_message m = {
                .type = WIRE_EXEC_INPUT,
                .exec_input = {.offset = sent, .data = bytes_of(data, sizeof data)}};
            size_t credit = upstream_credit(call);
            int r = upstream_send(call, &m);
            assert_true(r == 0 || r == -EAGAIN);
            assert_int_equal(r == 0, credit >= session_item_cost(WIRE_EXEC_INPUT, sizeof data));
            if (r < 0)
                break;
            sent += sizeof data;
        }
        struct wire_frame *item;
        int r = upstream_next(call, 0, &item);
        if (r == -EAGAIN) {
            assert_int_equal(upstream_wait(f->u, -1), 0);
            continue;
        }
        assert_int_equal(r, 1);
        assert_int_equal(item->message.type, WIRE_EXEC_OUTPUT);
        assert_int_equal(item->message.exec_output.offset, received);
        received += item->message.exec_output.data.len;
        wire_frame_free(item);
    }
    const struct wire_message end = {.type = WIRE_EXEC_INPUT,
                                     .exec_input = {.end = 1, .offset = sent}};
    while (upstream_send(call, &end) == -EAGAIN)
        assert_int_equal(upstream_wait(f->u, -1), 0);
    struct wire_frame *reply;
    struct failure failure;
    assert_int_equal(upstream_next(call, -1, &reply), 0);
    assert_true(upstream_is_answered(call));
    assert_int_equal(upstream_send(call, &end), -ENOENT);
    assert_int_equal(upstream_finish(call, &reply, &failure), 0);
    assert_int_equal(reply->message.exec_exit.code, 3);
    assert_int_equal(atomic_load(&f->service.input), 0x100000);
    wire_frame_free(reply);
    teardown(f);
}

/* Whoever does not look at what comes has only so much of it. */
static void test_items_that_nobody_takes_stay_there(void **state)
{
    struct fixture *f = setup(100);
    struct upstream_call *call;
    assert_int_equal(upstream_start(f->u, &attach, &call), 0);
    for (uint64_t i = 0; i < 100; i++)
        ask_flush(f, i);
    assert_in_range(upstream_stats(f->u).bytes_in, 0, CLIENT_WINDOW + 65536);
    upstream_drop(call, 0);
    ask_flush(f, 1);
    assert_int_equal(atomic_load(&f->service.cancels), 1);
    teardown(f);
}

static void test_a_time_limit(void **state)
{
    struct fixture *f = setup(100);
    struct upstream_call *call;
    struct wire_frame *item;
    assert_int_equal(upstream_start(f->u, &hold, &call), 0);
    uint64_t start = clock_monotonic_ns();
    assert_int_equal(upstream_next(call, 50, &item), -EAGAIN);
    assert_true(clock_monotonic_ns() - start >= 49 * NSEC_PER_MSEC);
    assert_int_equal(upstream_wait(f->u, 0), -EAGAIN);
    atomic_store(&f->service.release, true);
    assert_int_equal(upstream_next(call, -1, &item), 0);
    upstream_drop(call, 0);
    teardown(f);
}

/* What has come is told first; then, that nobody waits for the rest. A half that is shut down is no
 * hanging up. */
static void test_the_caller_hangs_up(void **state)
{
    struct fixture *f = setup(100);
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(upstream_set_caller(f->u, pair[0]), 0);
    assert_int_equal(write(pair[1], "more", 4), 4);
    assert_int_equal(shutdown(pair[1], SHUT_WR), 0);
    struct upstream_call *call;
    assert_int_equal(upstream_start(f->u, &hold, &call), 0);
    assert_int_equal(upstream_wait(f->u, 50), -EAGAIN);
    ask_flush(f, 3);
    (void)close(pair[1]);
    struct wire_frame *reply;
    struct failure failure;
    assert_int_equal(upstream_finish(call, &reply, &failure), -ECONNABORTED);
    assert_int_equal(upstream_wait(f->u, -1), -ECONNABORTED);
    assert_false(upstream_is_lost(f->u));
    /* It serves another. */
    assert_int_equal(upstream_set_caller(f->u, -1), 0);
    (void)close(pair[0]);
    ask_flush(f, 4);
    assert_int_equal(atomic_load(&f->service.cancels), 1);
    teardown(f);
}

/* A node that came for nobody is given back. */
static void test_dropped_calls_keep_nothing(void **state)
{
    struct fixture *f = setup(100);
    const struct wire_message lookup = {.type = WIRE_LOOKUP,
                                        .lookup = {.parent = 1, .name = bytes_of_string("x")}};
    struct upstream_call *call;
    assert_int_equal(upstream_start(f->u, &lookup, &call), 0);
    upstream_drop(call, 0);
    ask_flush(f, 1);
    assert_int_equal(atomic_load(&f->service.forgotten), 0);
    atomic_store(&f->service.release, true);
    while (atomic_load(&f->service.forgotten) < 1)
        ask_flush(f, 2);
    teardown(f);
}

static void test_a_lost_connection(void **state)
{
    struct fixture *f = setup(100);
    const struct wire_message breaks = {.type = WIRE_MKDIR,
                                        .mkdir = {.parent = 1, .name = bytes_of_string("x")}};
    struct upstream_call *held, *call;
    struct wire_frame *reply;
    struct failure failure;
    assert_int_equal(upstream_start(f->u, &hold, &held), 0);
    assert_int_equal(upstream_call(f->u, &breaks, &reply, &failure), -ECONNRESET);
    assert_non_null(strstr(failure.text, "shutting down"));
    assert_true(upstream_is_lost(f->u));
    assert_int_equal(upstream_next(held, -1, &reply), 0);
    assert_int_equal(upstream_finish(held, &reply, &failure), -ECONNRESET);
    assert_int_equal(upstream_start(f->u, &hold, &call), -ENOTCONN);
    assert_int_equal(upstream_call(f->u, &hold, &reply, &failure), -ENOTCONN);
    assert_int_equal(upstream_wait(f->u, -1), -ENOTCONN);
    teardown(f);
}

/* Open calls are dropped with it. */
static void test_freed_with_open_calls(void **state)
{
    struct fixture *f = setup(4);
    struct upstream_call *call;
    for (int i = 0; i < 10; i++)
        assert_int_equal(upstream_start(f->u, &hold, &call), 0);
    upstream_drop(call, 0); /* one that is still queued */
    assert_int_equal(upstream_start(f->u, &attach, &call), 0);
    upstream_flush(f->u);
    wait_for(&f->service.most_open, 3);
    teardown(f);
}

int main(void)
{
    (void)alarm(TEST_SECONDS);
    (void)signal(SIGPIPE, SIG_IGN); /* of the service's threads */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_call),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_items_both_ways),
        cmocka_unit_test(test_items_that_nobody_takes_stay_there),
        cmocka_unit_test(test_a_time_limit),
        cmocka_unit_test(test_the_caller_hangs_up),
        cmocka_unit_test(test_dropped_calls_keep_nothing),
        cmocka_unit_test(test_a_lost_connection),
        cmocka_unit_test(test_freed_with_open_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
