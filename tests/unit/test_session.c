#include "session_pair.h"

#include "samples.h"
#include "wire/compress.h"

static void hello_exchange(void **state)
{
    struct session_config client = pair_client_config(WIRE_FEATURE_ZSTD | 0x100);
    struct session_config server = pair_server_config(WIRE_FEATURE_ZSTD | 0x200);
    client.max_payload = 100000;
    server.max_payload = 200000;
    struct pair p;
    pair_new(&p, &client, &server);
    assert_false(session_ready(p.client));
    uint64_t tag;
    assert_int_equal(session_request(p.client, &message_ping, true, &tag), -ENOTCONN);
    session_move(p.client, p.server, 0);
    assert_true(session_ready(p.server));
    assert_false(session_ready(p.client));
    pair_move(&p);
    assert_true(session_ready(p.client));
    session_expect_nothing(p.client);
    session_expect_nothing(p.server);
    assert_int_equal(session_open_calls(p.client), 0);
    assert_int_equal(session_open_calls(p.server), 0);

    const struct session_peer *peer = session_peer(p.client);
    assert_true(peer->features == WIRE_FEATURE_ZSTD);
    assert_int_equal(peer->max_payload, 200000);
    assert_int_equal(peer->max_calls, PAIR_MAX_CALLS);
    assert_int_equal(peer->epoch, 42);
    assert_memory_equal(peer->service_id, "0123456789abcde", 16);
    assert_string_equal(peer->agent, "server");
    peer = session_peer(p.server);
    assert_true(peer->features == WIRE_FEATURE_ZSTD);
    assert_int_equal(peer->max_payload, 100000);
    assert_string_equal(peer->agent, "unit test ?");
    pair_free(&p);
}

static void bad_configs_are_refused(void **state)
{
    struct session *s = NULL;
    struct session_config c = pair_client_config(0);
    c.max_payload = SESSION_PAYLOAD_MIN - 1;
    assert_int_equal(session_new(&c, &s), -EINVAL);
    c.max_payload = WIRE_PAYLOAD_MAX + 1;
    assert_int_equal(session_new(&c, &s), -EINVAL);
    c = pair_client_config(0);
    c.window = SESSION_CREDIT_MAX + 1;
    assert_int_equal(session_new(&c, &s), -EINVAL);
    char agent[130];
    memset(agent, 'a', 129);
    agent[129] = '\0';
    c = pair_client_config(0);
    c.agent = agent;
    assert_int_equal(session_new(&c, &s), -EINVAL);
    c = pair_server_config(0);
    c.max_calls = 0;
    assert_int_equal(session_new(&c, &s), -EINVAL);
    assert_null(s);
}

/* What a message must come back as: its payload. */
static void assert_same_message(const struct wire_message *a, const struct wire_message *b)
{
    struct buffer raw_a = {0};
    struct buffer raw_b = {0};
    assert_int_equal(wire_encode(&raw_a, a), 0);
    assert_int_equal(wire_encode(&raw_b, b), 0);
    assert_true(bytes_equal(buffer_view(&raw_a), buffer_view(&raw_b)));
    buffer_release(&raw_a);
    buffer_release(&raw_b);
}

/* Opens a call of this type with the least sample, taken at the server. */
static uint64_t open_call_of(struct pair *p, enum wire_type type)
{
    struct sample request;
    sample_make(wire_row(type), SAMPLE_LEAST, &request);
    uint64_t tag = session_must_request(p->client, &request.message);
    session_move(p->client, p->server, 0);
    wire_frame_free(session_expect(p->server, type));
    sample_release(&request);
    return tag;
}

/* Who attaches to a command gives it input and gets its output as who started it. */
static void messages_of_exec_belong_to_attach(void **state)
{
    struct session_config client = pair_client_config(0);
    struct session_config server = pair_server_config(0);
    struct pair p;
    pair_new(&p, &client, &server);
    pair_move(&p);
    uint64_t attach = open_call_of(&p, WIRE_EXEC_ATTACH);
    uint64_t list = open_call_of(&p, WIRE_EXEC_LIST);
    const struct wire_message input = {.type = WIRE_EXEC_INPUT, .exec_input.end = 1};
    const struct wire_message output = {.type = WIRE_EXEC_OUTPUT,
                                        .exec_output = {.stream = 1, .data = bytes_of_string("x")}};
    const struct wire_message started = {.type = WIRE_EXEC_STARTED};
    assert_int_equal(session_send(p.client, attach, &input), 0);
    assert_int_equal(session_send(p.server, attach, &started), 0);
    assert_int_equal(session_send(p.server, attach, &output), 0);
    pair_move(&p);
    wire_frame_free(session_expect(p.server, WIRE_EXEC_INPUT));
    wire_frame_free(session_expect(p.client, WIRE_EXEC_STARTED));
    wire_frame_free(session_expect(p.client, WIRE_EXEC_OUTPUT));
    assert_int_equal(session_send(p.client, list, &input), -EINVAL);
    assert_int_equal(session_send(p.server, list, &output), -EINVAL);
    pair_free(&p);
}

/* A request that a reply of this type answers. */
static enum wire_type request_for(enum wire_type reply)
{
    for (size_t i = 0; i < wire_row_count(); i++)
        if (wire_row_at(i)->class == WIRE_CLASS_REQUEST && wire_row_at(i)->owner == reply)
            return wire_row_at(i)->type;
    return WIRE_PING; /* ERROR answers anything */
}

static void cross(const struct wire_row *row, enum sample_kind kind, enum wire_from sender,
                  uint64_t features, size_t piece)
{
    struct session_config client = pair_client_config(features);
    struct session_config server = pair_server_config(features);
    client.window = server.window = WIRE_PAYLOAD_MAX;
    struct pair p;
    pair_new(&p, &client, &server);
    pair_move(&p);
    struct session *from = sender == WIRE_FROM_CLIENT ? p.client : p.server;
    struct session *to = sender == WIRE_FROM_CLIENT ? p.server : p.client;
    struct sample sample;
    sample_make(row, kind, &sample);
    uint64_t tag = 0;
    switch (row->class) {
    case WIRE_CLASS_REQUEST:
        tag = session_must_request(from, &sample.message);
        break;
    case WIRE_CLASS_REPLY:
        tag = open_call_of(&p, request_for(row->type));
        assert_int_equal(session_send(from, tag, &sample.message), 0);
        assert_int_equal(session_open_calls(from), 0);
        break;
    case WIRE_CLASS_ITEM:
    case WIRE_CLASS_CONTROL:
        tag = open_call_of(&p, row->owner == WIRE_NONE ? WIRE_PING : row->owner);
        assert_int_equal(session_send(from, tag, &sample.message), 0);
        break;
    case WIRE_CLASS_NOTICE:
        assert_int_equal(session_send(from, 0, &sample.message), 0);
        break;
    case WIRE_CLASS_RECORD:
        fail();
    }
    session_move(from, to, piece);
    struct wire_frame *frame = session_expect(to, row->type);
    assert_true(frame->tag == tag);
    assert_same_message(&sample.message, &frame->message);
    wire_frame_free(frame);
    session_expect_nothing(to);
    if (row->class == WIRE_CLASS_REPLY)
        assert_int_equal(session_open_calls(to), 0);
    sample_release(&sample);
    pair_free(&p);
}

static void every_message_crosses(void **state)
{
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        if (row->phase == WIRE_PHASE_HELLO || row->class == WIRE_CLASS_RECORD ||
            row->type == WIRE_GRANT || row->type == WIRE_ACK)
            continue;
        for (int kind = 0; kind < SAMPLE_KINDS; kind++)
            for (uint64_t features = 0; features <= WIRE_FEATURE_ZSTD; features++)
                for (int from = WIRE_FROM_CLIENT; from <= WIRE_FROM_SERVER; from++)
                    if (row->from & (unsigned)from)
                        cross(row, (enum sample_kind)kind, (enum wire_from)from, features,
                              row->max_payload > 100000 ? 4099 : 1);
    }
}

/* One reply can hold files that shrink and files that do not. */
static void what_shrinks_in_part_is_compressed(void **state)
{
    enum { SIZE = 0x40000, PART = SIZE / 4 };
    struct compressor *c = NULL;
    struct buffer in = {0}, out = {0};
    assert_int_equal(buffer_reserve(&in, SIZE), 0);
    for (uint32_t x = 1; in.len < SIZE; x ^= x << 5)
        in.data[in.len++] = (uint8_t)((x ^= x << 13, x ^= x >> 17) >> 7);
    assert_int_equal(compressor_bulk(&c, buffer_view(&in), &out), 0);
    assert_int_equal(out.len, 0);
    for (size_t part = 0; part < 4; part++) {
        memmove(in.data + (part == 0 ? 0 : (part - 1) * PART), in.data + part * PART,
                part == 0 ? 0 : PART);
        memset(in.data + part * PART, 'x', PART);
        assert_int_equal(compressor_bulk(&c, buffer_view(&in), &out), 1);
        assert_true(out.len < SIZE / 8 * 7);
        out.len = 0;
    }
    compressor_free(c);
    buffer_release(&in);
    buffer_release(&out);
}

/* A large file that does not shrink is not tried again and again; what follows is. */
static void what_never_shrinks_is_tried_now_and_then(void **state)
{
    enum { SIZE = 0x40000, SMALL = 0x4000 };
    struct compressor *c = NULL;
    struct buffer random = {0}, zeros = {0}, out = {0};
    assert_int_equal(buffer_reserve(&random, SIZE), 0);
    for (uint32_t x = 1; random.len < SIZE; x ^= x << 5)
        random.data[random.len++] = (uint8_t)((x ^= x << 13, x ^= x >> 17) >> 7);
    assert_int_equal(buffer_reserve(&zeros, SIZE), 0);
    memset(zeros.data, 0, zeros.len = SIZE);
    for (int i = 0; i < 64; i++)
        assert_int_equal(compressor_bulk(&c, buffer_view(&random), &out), 0);
    assert_int_equal(compressor_bulk(&c, bytes_of(zeros.data, SMALL), &out), 1);
    for (int i = 0; i < 200; i++)
        assert_int_equal(compressor_bulk(&c, buffer_view(&random), &out), 0);
    int untried = 0;
    while (untried < 100 && compressor_bulk(&c, buffer_view(&zeros), &out) == 0)
        untried++;
    assert_in_range(untried, 1, 16);
    assert_int_equal(compressor_bulk(&c, buffer_view(&random), &out), 0);
    assert_int_equal(compressor_bulk(&c, buffer_view(&zeros), &out), 1);
    compressor_free(c);
    buffer_release(&random);
    buffer_release(&zeros);
    buffer_release(&out);
}

static void replies_come_out_of_order(void **state)
{
    struct pair p;
    pair_start(&p, 0);
    uint64_t tags[4];
    for (size_t i = 0; i < 4; i++)
        tags[i] = session_must_request(p.client, &message_ping);
    session_move(p.client, p.server, 0);
    for (size_t i = 0; i < 4; i++) {
        struct wire_frame *frame = session_expect(p.server, WIRE_PING);
        assert_true(frame->tag == tags[i]);
        wire_frame_free(frame);
    }
    static const size_t order[] = {2, 0, 3, 1};
    for (size_t i = 0; i < 4; i++) {
        if (i == 1)
            assert_int_equal(session_send_error(p.server, tags[order[i]], -ENOENT, "gone"), 0);
        else
            assert_int_equal(session_send(p.server, tags[order[i]], &message_pong), 0);
    }
    session_move(p.server, p.client, 0);
    for (size_t i = 0; i < 4; i++) {
        struct wire_frame *frame = session_expect(p.client, i == 1 ? WIRE_ERROR : WIRE_PONG);
        assert_true(frame->tag == tags[order[i]]);
        if (i == 1) {
            assert_int_equal(frame->message.error.error, ENOENT);
            assert_true(bytes_equal(frame->message.error.text, bytes_of_string("gone")));
        }
        wire_frame_free(frame);
    }
    assert_int_equal(session_open_calls(p.client), 0);
    pair_free(&p);
}

static void max_calls_holds_back_the_client(void **state)
{
    struct pair p;
    pair_start(&p, 0);
    uint64_t tag = 0;
    for (int i = 0; i < PAIR_MAX_CALLS; i++)
        tag = session_must_request(p.client, &message_ping);
    uint64_t untouched = 77;
    assert_int_equal(session_request(p.client, &message_ping, true, &untouched), -EAGAIN);
    assert_true(untouched == 77);
    session_move(p.client, p.server, 0);
    assert_int_equal(session_open_calls(p.server), PAIR_MAX_CALLS);
    assert_int_equal(session_send(p.server, tag, &message_pong), 0);
    session_move(p.server, p.client, 0);
    (void)session_must_request(p.client, &message_ping);
    session_move(p.client, p.server, 0);
    assert_int_equal(session_open_calls(p.server), PAIR_MAX_CALLS);
    pair_free(&p);
}

static void open_calls_are_listed(void **state)
{
    struct pair p;
    pair_start(&p, 0);
    uint64_t tags[5];
    for (size_t i = 0; i < 5; i++)
        tags[i] = session_must_request(p.client, &message_ping);
    session_move(p.client, p.server, 0);
    size_t n = 0;
    for (uint64_t tag = session_next_open(p.server, 0); tag; tag = session_next_open(p.server, tag))
        assert_true(tag == tags[n++]);
    assert_int_equal(n, 5);
    /* Closing while listing, some of them. */
    n = 0;
    for (uint64_t tag = session_next_open(p.server, 0); tag;
         tag = session_next_open(p.server, tag), n++)
        if (n % 2 == 0)
            assert_int_equal(session_send(p.server, tag, &message_pong), 0);
    assert_int_equal(n, 5);
    assert_int_equal(session_open_calls(p.server), 2);
    assert_true(session_next_open(p.server, 0) == tags[1]);
    assert_true(session_next_open(p.server, tags[2]) == tags[3]);
    assert_true(session_next_open(p.server, tags[3]) == 0);
    pair_free(&p);
}

static struct wire_message output_item(const char *data, size_t len)
{
    return (struct wire_message){.type = WIRE_EXEC_OUTPUT,
                                 .exec_output = {.stream = 1, .data = bytes_of(data, len)}};
}

static void items_need_credit(void **state)
{
    static const char data[PAIR_WINDOW + 1];
    struct pair p;
    pair_start(&p, 0);
    uint64_t tag = open_call_of(&p, WIRE_EXEC);
    size_t overhead = session_item_cost(WIRE_EXEC_OUTPUT, 0);
    assert_int_equal(overhead, 16);
    assert_int_equal(session_credit(p.server, tag), PAIR_WINDOW);
    struct wire_message item = output_item(data, PAIR_WINDOW);
    assert_int_equal(session_send(p.server, tag, &item), -EAGAIN);
    assert_int_equal(session_output(p.server).len, 0);
    item = output_item(data, 500);
    assert_int_equal(session_send(p.server, tag, &item), 0);
    assert_int_equal(session_credit(p.server, tag),
                     PAIR_WINDOW - session_item_cost(WIRE_EXEC_OUTPUT, 500));
    item = output_item(data, session_credit(p.server, tag) - overhead);
    assert_int_equal(session_send(p.server, tag, &item), 0);
    assert_int_equal(session_credit(p.server, tag), 0);
    /* Control messages need none. */
    const struct wire_message started = {.type = WIRE_EXEC_STARTED};
    assert_int_equal(session_send(p.server, tag, &started), 0);
    pair_move(&p);
    assert_false(session_credit_changed(p.server));
    for (int i = 0; i < 2; i++)
        wire_frame_free(session_expect(p.client, WIRE_EXEC_OUTPUT));
    wire_frame_free(session_expect(p.client, WIRE_EXEC_STARTED));
    assert_int_equal(session_grant(p.client, tag, 300), 0);
    pair_move(&p);
    session_expect_nothing(p.server);
    assert_true(session_credit_changed(p.server));
    assert_false(session_credit_changed(p.server));
    assert_int_equal(session_credit(p.server, tag), 300);
    assert_int_equal(session_send(p.server, tag, &item), -EAGAIN);
    item = output_item(data, 300 - overhead);
    assert_int_equal(session_send(p.server, tag, &item), 0);
    pair_move(&p);
    wire_frame_free(session_expect(p.client, WIRE_EXEC_OUTPUT));
    /* The other direction has a credit of its own. */
    assert_int_equal(session_credit(p.client, tag), PAIR_WINDOW);
    assert_int_equal(session_grant(p.client, tag, SESSION_CREDIT_MAX), 0);
    assert_int_equal(session_grant(p.client, tag, 1), -EINVAL);
    pair_move(&p);
    assert_int_equal(session_credit(p.server, tag), SESSION_CREDIT_MAX);
    assert_int_equal(session_grant(p.client, tag + 1, 1), -ENOENT);
    assert_int_equal(session_credit(p.client, tag + 1), 0);
    pair_free(&p);
}

/* What the client sends within a call crosses the reply: it is dropped, even when it was
 * half there already. */
static void late_items_are_dropped(void **state)
{
    static const char data[400];
    const struct wire_message input = {.type = WIRE_EXEC_INPUT,
                                       .exec_input = {.data = bytes_of(data, sizeof data)}};
    const struct wire_message cancel = {.type = WIRE_CANCEL};
    const struct wire_message exit = {.type = WIRE_EXEC_EXIT, .exec_exit = {.verdict = 1}};
    for (size_t before = 0; before < 600; before += 150) {
        struct pair p;
        pair_start(&p, 0);
        uint64_t tag = open_call_of(&p, WIRE_EXEC);
        assert_int_equal(session_send(p.client, tag, &input), 0);
        assert_int_equal(session_send(p.client, tag, &cancel), 0);
        assert_int_equal(session_grant(p.client, tag, 10), 0);
        struct bytes out = session_output(p.client);
        size_t n = before < out.len ? before : out.len;
        assert_int_equal(session_feed(p.server, out.data, n), 0);
        session_output_done(p.client, n);
        assert_int_equal(session_send(p.server, tag, &exit), 0);
        (void)session_must_request(p.client, &message_ping);
        pair_move(&p);
        if (before >= 16 + 16 + sizeof data) {
            wire_frame_free(session_expect(p.server, WIRE_EXEC_INPUT));
            if (before >= 16 + 16 + sizeof data + 20)
                wire_frame_free(session_expect(p.server, WIRE_CANCEL));
        }
        wire_frame_free(session_expect(p.server, WIRE_PING));
        wire_frame_free(session_expect(p.client, WIRE_EXEC_EXIT));
        /* For the sender it is no error either. */
        assert_int_equal(session_send(p.client, tag, &input), -ENOENT);
        assert_int_equal(session_send(p.server, tag, &exit), -ENOENT);
        assert_int_equal(session_send_error(p.server, tag, -EIO, NULL), -ENOENT);
        pair_free(&p);
    }
}

static void answer(struct pair *p, uint64_t tag)
{
    session_move(p->client, p->server, 0);
    assert_int_equal(session_send(p->server, tag, &message_pong), 0);
    session_move(p->server, p->client, 0);
    wire_frame_free(session_expect(p->client, WIRE_PONG));
    wire_frame_free(session_expect(p->server, WIRE_PING));
}

static void round_trips_are_waits_in_series(void **state)
{
    struct pair p;
    pair_start(&p, 0);
    assert_int_equal(session_stats(p.client).round_trips, 0);
    uint64_t a = session_must_request(p.client, &message_ping);
    uint64_t b = session_must_request(p.client, &message_ping);
    assert_int_equal(session_stats(p.client).round_trips, 1);
    answer(&p, a);
    uint64_t c = session_must_request(p.client, &message_ping); /* after a's reply */
    assert_int_equal(session_stats(p.client).round_trips, 2);
    answer(&p, b); /* sent first: does not lengthen */
    uint64_t d = session_must_request(p.client, &message_ping);
    assert_int_equal(session_stats(p.client).round_trips, 2);
    answer(&p, c);
    answer(&p, d);
    /* Nobody waits for heartbeats. */
    for (int i = 0; i < 3; i++) {
        uint64_t tag;
        assert_int_equal(session_request(p.client, &message_ping, false, &tag), 0);
        answer(&p, tag);
    }
    assert_int_equal(session_stats(p.client).round_trips, 2);
    answer(&p, session_must_request(p.client, &message_ping));
    const struct session_stats stats = session_stats(p.client);
    assert_int_equal(stats.round_trips, 3);
    assert_int_equal(stats.requests, 8);
    assert_int_equal(stats.blocking, 5);
    assert_int_equal(stats.frames_out, 9);
    assert_int_equal(stats.frames_in, 9);
    const struct session_stats other = session_stats(p.server);
    assert_int_equal(other.requests, 8);
    assert_true(other.bytes_in == stats.bytes_out && other.bytes_out == stats.bytes_in);
    pair_free(&p);
}

static void misuse_is_refused(void **state)
{
    struct pair p;
    pair_start(&p, 0);
    uint64_t tag = open_call_of(&p, WIRE_EXEC);
    const struct wire_message data = {.type = WIRE_DATA};
    const struct wire_message started = {.type = WIRE_EXEC_STARTED};
    const struct wire_message grant = {.type = WIRE_GRANT, .grant = {.bytes = 1}};
    const struct wire_message hello = {.type = WIRE_HELLO, .hello = {.version = 1}};
    const struct wire_message dirent = {.type = WIRE_DIRENT,
                                        .dirent = {.name = bytes_of_string("x")}};
    const struct wire_message nothing = {.type = WIRE_NONE};
    const struct wire_message release = {.type = WIRE_RELEASE};
    const struct wire_message lookup = {.type = WIRE_LOOKUP}; /* without a name */
    uint64_t unused;
    assert_int_equal(session_send(p.server, tag, &data), -EINVAL); /* not EXEC's reply */
    assert_int_equal(session_send(p.client, tag, &started), -EINVAL);
    assert_int_equal(session_send(p.client, tag, &message_ping), -EINVAL);
    assert_int_equal(session_send(p.client, tag, &grant), -EINVAL);
    assert_int_equal(session_send(p.client, tag, &release), -EINVAL);
    assert_int_equal(session_send(p.server, 0, &release), -EINVAL);
    assert_int_equal(session_send(p.client, 0, &dirent), -EINVAL);
    assert_int_equal(session_send(p.client, 0, &nothing), -EINVAL);
    assert_int_equal(session_request(p.client, &hello, true, &unused), -EINVAL);
    assert_int_equal(session_request(p.client, &release, true, &unused), -EINVAL);
    assert_int_equal(session_request(p.server, &message_ping, true, &unused), -EINVAL);
    assert_int_equal(session_request(p.client, &lookup, true, &unused), -EINVAL);
    assert_int_equal(session_output(p.client).len, 0);
    assert_int_equal(session_output(p.server).len, 0);
    assert_int_equal(session_open_calls(p.client), 1);
    assert_null(session_failure(p.client));
    /* The refused request's tag is used by the next. */
    assert_true(session_must_request(p.client, &message_ping) == tag + 1);
    pair_free(&p);
}

static void large_frames_need_a_peer_that_takes_them(void **state)
{
    struct session_config client = pair_client_config(0);
    struct session_config server = pair_server_config(0);
    client.max_payload = SESSION_PAYLOAD_MIN;
    struct pair p;
    pair_new(&p, &client, &server);
    pair_move(&p);
    uint64_t tag = open_call_of(&p, WIRE_READ);
    static const char data[SESSION_PAYLOAD_MIN];
    struct wire_message m = {.type = WIRE_DATA, .data = {.data = bytes_of(data, sizeof data)}};
    assert_int_equal(session_send(p.server, tag, &m), -EMSGSIZE);
    assert_int_equal(session_output(p.server).len, 0);
    m.data.data.len = sizeof data - 4;
    assert_int_equal(session_send(p.server, tag, &m), 0);
    pair_move(&p);
    wire_frame_free(session_expect(p.client, WIRE_DATA));
    pair_free(&p);
}

static void error_texts_are_cut(void **state)
{
    char text[3000];
    memset(text, 't', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    struct pair p;
    pair_start(&p, 0);
    uint64_t tag = open_call_of(&p, WIRE_PING);
    assert_int_equal(session_send_error(p.server, tag, -EIO, text), 0);
    pair_move(&p);
    struct wire_frame *frame = session_expect(p.client, WIRE_ERROR);
    assert_int_equal(frame->message.error.text.len, 1024);
    wire_frame_free(frame);
    pair_free(&p);
}

static void goodbye_is_last(void **state)
{
    struct pair p;
    pair_start(&p, 0);
    uint64_t tag = open_call_of(&p, WIRE_PING);
    const struct wire_message goodbye = {.type = WIRE_GOODBYE,
                                         .goodbye = {.text = bytes_of_string("stopping")}};
    assert_int_equal(session_send(p.server, 0, &goodbye), 0);
    assert_int_equal(session_send(p.server, tag, &message_pong), -ENOTCONN);
    assert_int_equal(session_grant(p.server, tag, 1), -ENOTCONN);
    pair_move(&p);
    struct wire_frame *frame = session_expect(p.client, WIRE_GOODBYE);
    assert_true(bytes_equal(frame->message.goodbye.text, bytes_of_string("stopping")));
    wire_frame_free(frame);
    assert_null(session_failure(p.client));
    /* What was on its way is still heard. */
    (void)session_must_request(p.client, &message_ping);
    session_move(p.client, p.server, 0);
    wire_frame_free(session_expect(p.server, WIRE_PING));
    pair_free(&p);
}

/* A server that refuses a client can say why, whatever phase it is in. */
static void goodbye_instead_of_welcome(void **state)
{
    const struct session_config client = pair_client_config(0);
    const struct session_config server = pair_server_config(0);
    struct pair p;
    pair_new(&p, &client, &server);
    const struct wire_message goodbye = {.type = WIRE_GOODBYE,
                                         .goodbye = {.text = bytes_of_string("too\nbusy")}};
    assert_int_equal(session_send(p.server, 0, &goodbye), 0);
    struct bytes out = session_output(p.server);
    assert_int_equal(session_feed(p.client, out.data, out.len), -EPROTO);
    assert_string_equal(session_failure(p.client),
                        "the service ended the connection: too\\x0abusy");
    assert_false(session_ready(p.client));
    pair_free(&p);
}

/* Output taken in any pieces, while more is added, is what was sent. */
static void output_is_taken_in_pieces(void **state)
{
    struct pair p;
    pair_start(&p, 0);
    struct buffer got = {0};
    struct buffer expected = {0};
    unsigned random = 1;
    for (uint64_t nonce = 0; nonce < 3000; nonce++) {
        const struct wire_message m = {.type = WIRE_RELEASE, .release = {.handle = nonce}};
        assert_int_equal(session_send(p.client, 0, &m), 0);
        frame_append_message(&expected, 0, &m);
        random = random * 1103515245 + 12345;
        struct bytes out = session_output(p.client);
        size_t n = (random >> 16) % 60;
        n = n < out.len ? n : out.len;
        assert_int_equal(buffer_append(&got, out.data, n), 0);
        session_output_done(p.client, n);
    }
    struct bytes out = session_output(p.client);
    assert_int_equal(buffer_append(&got, out.data, out.len), 0);
    session_output_done(p.client, out.len);
    assert_int_equal(session_output(p.client).len, 0);
    assert_true(bytes_equal(buffer_view(&got), buffer_view(&expected)));
    buffer_release(&got);
    buffer_release(&expected);
    pair_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_exchange),
        cmocka_unit_test(bad_configs_are_refused),
        cmocka_unit_test(every_message_crosses),
        cmocka_unit_test(messages_of_exec_belong_to_attach),
        cmocka_unit_test(what_shrinks_in_part_is_compressed),
        cmocka_unit_test(what_never_shrinks_is_tried_now_and_then),
        cmocka_unit_test(replies_come_out_of_order),
        cmocka_unit_test(max_calls_holds_back_the_client),
        cmocka_unit_test(open_calls_are_listed),
        cmocka_unit_test(items_need_credit),
        cmocka_unit_test(late_items_are_dropped),
        cmocka_unit_test(round_trips_are_waits_in_series),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(large_frames_need_a_peer_that_takes_them),
        cmocka_unit_test(error_texts_are_cut),
        cmocka_unit_test(goodbye_is_last),
        cmocka_unit_test(goodbye_instead_of_welcome),
        cmocka_unit_test(output_is_taken_in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
