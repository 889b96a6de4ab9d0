/* What the session does without memory, and how much of it a peer can make it take. */
#include "session_pair.h"

#include "failing_malloc.h"

#define MEBI 0x100000
#define PAGE 4096 /* the allocator rounds large blocks up */

static uint8_t zeros[MEBI];

/* --- every allocation fails once --------------------------------------------- */

/* Moves output; false when a session died of it, which only memory may be the reason of. */
static bool carry(struct session *from, struct session *to)
{
    struct bytes out;
    while ((out = session_output(from)).len > 0) {
        int r = session_feed(to, out.data, out.len);
        if (r < 0) {
            assert_int_equal(r, -ENOMEM);
            assert_non_null(session_failure(to));
            return false;
        }
        session_output_done(from, out.len);
    }
    return true;
}

/* 0, or -ENOMEM: then the session is unchanged, unless it is dead, and a retry with memory
 * works. */
static bool sent(struct session *s, int r, bool *retry)
{
    if (r == 0)
        return true;
    assert_int_equal(r, -ENOMEM);
    *retry = !session_failure(s);
    if (*retry)
        malloc_fail_at(0, false);
    return false;
}

static bool send_on(struct session *s, uint64_t tag, const struct wire_message *m)
{
    bool retry;
    if (sent(s, session_send(s, tag, m), &retry))
        return true;
    if (!retry)
        return false;
    assert_int_equal(session_send(s, tag, m), 0);
    return true;
}

static bool request_on(struct session *s, const struct wire_message *m, uint64_t *tag)
{
    bool retry;
    if (sent(s, session_request(s, m, true, tag), &retry))
        return true;
    if (!retry)
        return false;
    assert_int_equal(session_request(s, m, true, tag), 0);
    return true;
}

static void drain(struct session *s)
{
    struct wire_frame *frame;
    while (session_next(s, &frame))
        wire_frame_free(frame);
}

/* A conversation that uses all of the machine. */
static void talk(struct session *client, struct session *server)
{
    uint64_t write;
    uint64_t exec;
    const struct wire_message m_write = {.type = WIRE_WRITE,
                                         .write = {.data = bytes_of(zeros, 50000)}};
    const struct wire_message m_exec = {
        .type = WIRE_EXEC,
        .exec = {.workspace = bytes_of_string("w"), .cwd = bytes_of(zeros, 3000)}};
    const struct wire_message m_input = {.type = WIRE_EXEC_INPUT,
                                         .exec_input = {.data = bytes_of(zeros, 700)}};
    const struct wire_message m_output = {.type = WIRE_EXEC_OUTPUT,
                                          .exec_output = {.data = bytes_of(zeros, 700)}};
    const struct wire_message m_written = {.type = WIRE_WRITTEN};
    const struct wire_message m_exit = {.type = WIRE_EXEC_EXIT,
                                        .exec_exit = {.text = bytes_of(zeros, 900)}};
    if (!carry(client, server) || !carry(server, client))
        return;
    if (!request_on(client, &m_write, &write) || !request_on(client, &m_exec, &exec) ||
        !send_on(client, exec, &m_input) || !carry(client, server))
        return;
    assert_int_equal(session_open_calls(server), 2);
    drain(server);
    if (!send_on(server, exec, &m_output) || !send_on(server, write, &m_written) ||
        !send_on(server, exec, &m_exit) || !carry(server, client))
        return;
    drain(client);
    assert_int_equal(session_open_calls(client), 0);
    assert_int_equal(session_open_calls(server), 0);
}

static bool talk_without(size_t n, bool all, uint64_t features)
{
    size_t before = malloc_blocks();
    const struct session_config client_config = pair_client_config(features);
    const struct session_config server_config = pair_server_config(features);
    struct session *client = NULL;
    struct session *server = NULL;
    malloc_fail_at(n, all);
    int r = session_new(&client_config, &client);
    if (r == 0)
        r = session_new(&server_config, &server);
    if (r == 0)
        talk(client, server);
    else
        assert_int_equal(r, -ENOMEM);
    bool failed = malloc_has_failed();
    malloc_fail_at(0, false);
    session_free(client);
    session_free(server);
    assert_int_equal(malloc_blocks(), before);
    return failed;
}

static void every_allocation_may_fail(void **state)
{
    for (uint64_t features = 0; features <= WIRE_FEATURE_ZSTD; features++) {
        size_t n = 1;
        while (talk_without(n, false, features))
            n++;
        print_message("%zu allocations\n", n - 1);
        assert_true(n > 15); /* it did fail, many times */
        for (n = 1; talk_without(n, true, features);)
            n++;
    }
}

/* --- how much a peer can take ------------------------------------------------- */

/* Connections that promise 1 MiB each and send little. */
static void promises_take_no_memory(void **state)
{
    enum { COUNT = 1000, SENT = 100 };
    static struct session *servers[COUNT];
    uint8_t raw[WIRE_HEADER_SIZE];
    const struct wire_header header = {.length = MEBI, .type = WIRE_WRITE, .tag = 2};
    wire_header_encode(raw, &header);
    const struct session_config config = pair_server_config(0);
    const struct session_config client_config = pair_client_config(0);
    size_t before = malloc_bytes();
    for (size_t i = 0; i < COUNT; i++) {
        struct session *client;
        assert_int_equal(session_new(&client_config, &client), 0);
        assert_int_equal(session_new(&config, &servers[i]), 0);
        session_move(client, servers[i], 0);
        session_free(client);
        session_output_done(servers[i], session_output(servers[i]).len);
        assert_int_equal(session_feed(servers[i], raw, sizeof raw), 0);
        assert_int_equal(session_feed(servers[i], zeros, SENT), 0);
    }
    assert_true(malloc_bytes() - before < (size_t)COUNT * 4096);
    print_message("a half-open connection takes %zu bytes\n", (malloc_bytes() - before) / COUNT);
    for (size_t i = 0; i < COUNT; i++)
        session_free(servers[i]);
    assert_int_equal(malloc_bytes(), before);
}

/* Memory follows a payload that comes slowly: never more than twice what is here. */
static void memory_follows_the_bytes(void **state)
{
    struct pair p;
    pair_start(&p, 0);
    uint8_t raw[WIRE_HEADER_SIZE];
    const struct wire_header header = {.length = MEBI, .type = WIRE_WRITE, .tag = 2};
    wire_header_encode(raw, &header);
    assert_int_equal(session_feed(p.server, raw, sizeof raw), 0);
    size_t before = malloc_bytes();
    for (size_t sent = 0; sent + 1000 < MEBI; sent += 1000) {
        assert_int_equal(session_feed(p.server, zeros, 1000), 0);
        assert_true(malloc_bytes() - before <= 2 * (sent + 1000) + PAGE);
        assert_true(malloc_bytes() - before <= MEBI + PAGE);
    }
    pair_free(&p);
}

/* A hundred writes of 1 MiB in a few KiB: no more than the limit and one frame is there at
 * any time, if the owner takes them one by one. */
static void inflated_frames_wait_their_turn(void **state)
{
    enum { COUNT = 100 };
    struct session_config client = pair_client_config(WIRE_FEATURE_ZSTD);
    struct session_config server = pair_server_config(WIRE_FEATURE_ZSTD);
    server.max_calls = COUNT;
    struct pair p;
    pair_new(&p, &client, &server);
    pair_move(&p);
    const struct wire_message write = {.type = WIRE_WRITE,
                                       .write = {.data = bytes_of(zeros, MEBI)}};
    struct buffer all = {0};
    for (size_t i = 0; i < COUNT; i++) {
        (void)session_must_request(p.client, &write);
        struct bytes out = session_output(p.client);
        assert_int_equal(buffer_append(&all, out.data, out.len), 0);
        session_output_done(p.client, out.len);
    }
    assert_true(all.len < 100000);
    size_t before = malloc_bytes();
    malloc_reset_peak();
    assert_int_equal(session_feed(p.server, all.data, all.len), 0);
    for (size_t i = 0; i < COUNT; i++)
        wire_frame_free(session_expect(p.server, WIRE_WRITE));
    session_expect_nothing(p.server);
    assert_true(malloc_peak() - before < (size_t)6 * MEBI);
    assert_int_equal(session_open_calls(p.server), COUNT);
    /* An error that was waiting is found by taking. */
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(session_send_error(p.server, i + 2, -EIO, NULL), 0);
    session_output_done(p.server, session_output(p.server).len);
    assert_int_equal(session_feed(p.server, all.data, all.len), -EPROTO); /* tags again */
    session_expect_nothing(p.server);
    buffer_release(&all);
    pair_free(&p);
}

static void errors_wait_with_the_frames(void **state)
{
    struct pair p;
    pair_start(&p, WIRE_FEATURE_ZSTD);
    const struct wire_message write = {.type = WIRE_WRITE,
                                       .write = {.data = bytes_of(zeros, MEBI)}};
    for (size_t i = 0; i < 6; i++)
        (void)session_must_request(p.client, &write);
    struct bytes out = session_output(p.client);
    struct buffer all = {0};
    assert_int_equal(buffer_append(&all, out.data, out.len), 0);
    frame_append(&all, 0x7fff, 0, 0, "", 0);
    assert_int_equal(session_feed(p.server, all.data, all.len), 0);
    for (size_t i = 0; i < 6; i++)
        wire_frame_free(session_expect(p.server, WIRE_WRITE));
    session_expect_nothing(p.server);
    assert_string_equal(session_failure(p.server), "unknown message type 0x7fff");
    buffer_release(&all);
    pair_free(&p);
}

/* An idle connection gives back what a large frame took. */
static void output_memory_is_given_back(void **state)
{
    struct pair p;
    pair_start(&p, 0);
    size_t before = malloc_bytes();
    const struct wire_message write = {.type = WIRE_WRITE,
                                       .write = {.data = bytes_of(zeros, MEBI)}};
    (void)session_must_request(p.client, &write);
    session_output_done(p.client, session_output(p.client).len);
    assert_true(malloc_bytes() < before + 1024);
    pair_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(promises_take_no_memory),
        cmocka_unit_test(memory_follows_the_bytes),
        cmocka_unit_test(inflated_frames_wait_their_turn),
        cmocka_unit_test(errors_wait_with_the_frames),
        cmocka_unit_test(output_memory_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
