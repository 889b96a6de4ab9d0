/* Peers that do not keep to the protocol: each ends its connection, at the same byte and with
 * the same words however its bytes are cut, and hears why. */
#include "session_pair.h"

#include <stdio.h>

#include "wire/compress.h"

#define LATER 100 /* a tag that is not in use */

/* Takes what is there as text: "PING:2 EXEC:3 …". */
static void take_all(struct session *s, char *log, size_t size)
{
    struct wire_frame *frame;
    size_t used = strlen(log);
    while (session_next(s, &frame)) {
        int n = snprintf(log + used, size - used, "%s:%u ", wire_row(frame->message.type)->name,
                         (unsigned)frame->tag);
        used += (size_t)n;
        wire_frame_free(frame);
    }
}

struct outcome {
    int result;
    size_t fed; /* bytes accepted before the one that killed it */
    char failure[256];
    char log[256];
};

/* A session in the state that the attack starts from: ready, the client with one PING (tag 2)
 * and one EXEC (tag 3) open. */
static struct session *victim(enum session_role role, uint64_t features, bool ready)
{
    struct pair p;
    if (!ready) {
        const struct session_config client = pair_client_config(features);
        const struct session_config server = pair_server_config(features);
        pair_new(&p, &client, &server);
    } else {
        pair_start(&p, features);
        (void)session_must_request(p.client, &message_ping);
        (void)session_must_request(p.client, &message_exec);
        pair_move(&p);
        wire_frame_free(session_expect(p.server, WIRE_PING));
        wire_frame_free(session_expect(p.server, WIRE_EXEC));
    }
    struct session *kept = role == SESSION_CLIENT ? p.client : p.server;
    session_free(role == SESSION_CLIENT ? p.server : p.client);
    return kept;
}

static void feed_in_pieces(struct session *s, struct bytes bytes, size_t piece, struct outcome *ret)
{
    *ret = (struct outcome){0};
    /* What the victim had to say before. */
    session_output_done(s, session_output(s).len);
    while (ret->fed < bytes.len && ret->result == 0) {
        size_t n = bytes.len - ret->fed < piece ? bytes.len - ret->fed : piece;
        ret->result = session_feed(s, bytes.data + ret->fed, n);
        ret->fed += n;
        take_all(s, ret->log, sizeof ret->log);
    }
    if (session_failure(s))
        (void)snprintf(ret->failure, sizeof ret->failure, "%s", session_failure(s));
}

static void expect_dead(struct session *s, enum session_role role, const char *failure)
{
    assert_non_null(session_failure(s));
    if (!strstr(session_failure(s), failure))
        fail_msg("\"%s\" does not say \"%s\"", session_failure(s), failure);
    assert_int_equal(session_feed(s, "x", 1), -EPROTO);
    uint64_t tag;
    assert_int_equal(session_request(s, &message_ping, true, &tag),
                     role == SESSION_CLIENT ? -ENOTCONN : -EINVAL);
    assert_int_equal(session_send_error(s, 3, -EIO, NULL),
                     role == SESSION_CLIENT ? -EINVAL : -ENOTCONN);
    assert_int_equal(session_grant(s, 3, 1), -ENOTCONN);
    assert_int_equal(session_credit(s, 3), 0);
    /* It ends with a GOODBYE that tells the failure. */
    struct bytes out = session_output(s);
    assert_true(out.len >= WIRE_HEADER_SIZE);
    struct wire_header header;
    wire_header_decode(out.data, &header);
    assert_int_equal(header.type, WIRE_GOODBYE);
    assert_int_equal(header.length, out.len - WIRE_HEADER_SIZE);
    struct wire_message m;
    assert_int_equal(
        wire_decode(WIRE_GOODBYE, bytes_of(out.data + WIRE_HEADER_SIZE, header.length), &m), 0);
    assert_int_equal(m.goodbye.error, EPROTO);
    assert_true(bytes_equal(m.goodbye.text, bytes_of_string(session_failure(s))));
}

/* Feeds the bytes in many ways; log: the messages that come out before the end. */
static void attack_as(enum session_role role, uint64_t features, bool ready, struct bytes bytes,
                      const char *log, const char *failure)
{
    static const size_t pieces[] = {SIZE_MAX, 1, 2, 15, 16, 17, 33};
    size_t fatal = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct session *s = victim(role, features, ready);
        struct outcome got;
        feed_in_pieces(s, bytes, pieces[i], &got);
        assert_int_equal(got.result, -EPROTO);
        assert_string_equal(got.log, log);
        expect_dead(s, role, failure);
        if (pieces[i] == 1)
            fatal = got.fed;
        session_free(s);
    }
    /* All before the fatal byte is fine. */
    struct session *s = victim(role, features, ready);
    struct outcome got;
    feed_in_pieces(s, bytes_of(bytes.data, fatal - 1), SIZE_MAX, &got);
    assert_int_equal(got.result, 0);
    assert_string_equal(got.log, log);
    assert_null(session_failure(s));
    session_free(s);
}

static void attack(enum session_role role, struct buffer *bytes, const char *log,
                   const char *failure)
{
    attack_as(role, 0, true, buffer_view(bytes), log, failure);
    bytes->len = 0;
}

/* One header is enough: no byte of the payload is awaited. */
static void attack_header(enum session_role role, struct wire_header header, const char *failure)
{
    uint8_t raw[WIRE_HEADER_SIZE];
    wire_header_encode(raw, &header);
    attack_as(role, 0, true, bytes_of(raw, sizeof raw), "", failure);
}

static void headers_are_checked_alone(void **state)
{
    const enum session_role client = SESSION_CLIENT;
    const enum session_role server = SESSION_SERVER;
    static const struct {
        enum session_role role;
        struct wire_header header;
        const char *failure;
    } cases[] = {
        /* type */
        {server, {8, 0x7fff, 0, LATER}, "unknown message type 0x7fff"},
        {client, {8, 0, 0, 2}, "unknown message type 0x0000"},
        {server, {200, WIRE_DIRENT, 0, LATER}, "DIRENT from the client"},
        {client, {200, WIRE_DIRENT, 0, 2}, "DIRENT is not a message of its own"},
        /* direction */
        {server, {12, WIRE_PONG, 0, 2}, "PONG from the client"},
        {client, {8, WIRE_PING, 0, LATER}, "PING from the service"},
        {server, {8, WIRE_EXEC_STARTED, 0, 3}, "EXEC_STARTED from the client"},
        {client, {4, WIRE_EXEC_SIGNAL, 0, 3}, "EXEC_SIGNAL from the service"},
        /* phase */
        {server, {24, WIRE_HELLO, 0, LATER}, "HELLO after HELLO and WELCOME"},
        {client, {60, WIRE_WELCOME, 0, 2}, "WELCOME after HELLO and WELCOME"},
        /* flags */
        {server, {8, WIRE_PING, WIRE_FRAME_ZSTD_STREAM, LATER}, "flags 0x1"},
        {server, {80, WIRE_WRITE, WIRE_FRAME_ZSTD, LATER}, "flags 0x2"},
        {server, {8, WIRE_PING, 0x8000, LATER}, "flags 0x8000"},
        /* length */
        {server, {7, WIRE_PING, 0, LATER}, "PING of 7 bytes, not 8 to 8"},
        {server, {9, WIRE_PING, 0, LATER}, "PING of 9 bytes, not 8 to 8"},
        {server, {0, WIRE_PING, 0, LATER}, "PING of 0 bytes"},
        {server, {UINT32_MAX, WIRE_WRITE, 0, LATER}, "WRITE of 4294967295 bytes"},
        {server, {12, WIRE_LOOKUP, 0, LATER}, "LOOKUP of 12 bytes"},
        {server, {268, WIRE_LOOKUP, 0, LATER}, "LOOKUP of 268 bytes"},
        {client, {WIRE_DATA_MAX + 5, WIRE_DATA, 0, 2}, "DATA of"},
        /* tags of requests */
        {server, {8, WIRE_PING, 0, 0}, "a tag that does not rise"},
        {server, {8, WIRE_PING, 0, 1}, "a tag that does not rise"},
        {server, {8, WIRE_PING, 0, 3}, "a tag that does not rise"},
        /* of replies */
        {client, {12, WIRE_PONG, 0, 0}, "PONG for a call that is not open"},
        {client, {12, WIRE_PONG, 0, 1}, "PONG for a call that is not open"},
        {client, {12, WIRE_PONG, 0, LATER}, "PONG for a call that is not open"},
        {client, {12, WIRE_PONG, 0, 3}, "PONG as the reply to EXEC"},
        {client, {8, WIRE_OK, 0, 2}, "OK as the reply to PING"},
        /* within calls */
        {server, {4, WIRE_CANCEL, 0, 0}, "CANCEL for a call that was never opened"},
        {server, {4, WIRE_CANCEL, 0, 4}, "CANCEL for a call that was never opened"},
        {client, {4, WIRE_GRANT, 0, 4}, "GRANT for a call that was never opened"},
        {server, {4, WIRE_EXEC_SIGNAL, 0, 2}, "EXEC_SIGNAL within PING"},
        {client, {17, WIRE_EXEC_OUTPUT, 0, 2}, "EXEC_OUTPUT within PING"},
        /* of notices */
        {server, {8, WIRE_RELEASE, 0, 1}, "RELEASE with a tag"},
        {client, {8, WIRE_GOODBYE, 0, LATER}, "GOODBYE with a tag"},
        /* credit */
        {server, {PAIR_WINDOW + 1, WIRE_EXEC_INPUT, 0, 3}, "beyond the credit"},
        {client, {PAIR_WINDOW + 1, WIRE_EXEC_OUTPUT, 0, 3}, "beyond the credit"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        attack_header(cases[i].role, cases[i].header, cases[i].failure);
}

static void the_first_frame_must_be_hello(void **state)
{
    struct buffer b = {0};
    frame_append_message(&b, 1, &message_ping);
    attack_as(SESSION_SERVER, 0, false, buffer_view(&b), "", "PING before HELLO and WELCOME");
    b.len = 0;
    frame_append_message(&b, 1, &message_pong);
    attack_as(SESSION_CLIENT, 0, false, buffer_view(&b), "", "PONG before HELLO and WELCOME");
    b.len = 0;
    /* HTTP, or any text, on a stream that was not upgraded. */
    attack_as(SESSION_SERVER, 0, false, bytes_of_string("GET / HTTP/1.1\r\n\r\n"), "",
              "unknown message type");
    buffer_release(&b);
}

static void hello_is_checked(void **state)
{
    static const struct {
        struct wire_hello hello;
        const char *failure;
    } cases[] = {
        {{.version = 0, .max_payload = 65536}, "HELLO of protocol version 0"},
        {{.version = 1, .max_payload = SESSION_PAYLOAD_MIN - 1}, "limits out of bounds"},
        {{.version = 1, .max_payload = 65536, .window = SESSION_CREDIT_MAX + 1}, "limits"},
    };
    struct buffer b = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct wire_message m = {.type = WIRE_HELLO, .hello = cases[i].hello};
        frame_append_message(&b, 1, &m);
        attack_as(SESSION_SERVER, 0, false, buffer_view(&b), "", cases[i].failure);
        b.len = 0;
    }
    buffer_release(&b);
}

static void welcome_is_checked(void **state)
{
    static const uint8_t id[16];
    static const struct {
        struct wire_welcome welcome;
        const char *failure;
    } cases[] = {
        {{.version = 2, .max_payload = 65536, .max_calls = 1}, "speaks protocol version 2"},
        {{.version = 0, .max_payload = 65536, .max_calls = 1}, "speaks protocol version 0"},
        {{.version = 1, .max_payload = 100, .max_calls = 1}, "limits out of bounds"},
        {{.version = 1, .max_payload = 65536, .max_calls = 0}, "limits out of bounds"},
        {{.version = 1, .max_payload = 65536, .max_calls = 1, .window = UINT32_MAX}, "limits"},
        {{.version = 1, .max_payload = 65536, .max_calls = 1, .features = 1}, "features"},
    };
    struct buffer b = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct wire_message m = {.type = WIRE_WELCOME, .welcome = cases[i].welcome};
        m.welcome.service_id = bytes_of(id, sizeof id);
        frame_append_message(&b, 1, &m);
        attack_as(SESSION_CLIENT, 0, false, buffer_view(&b), "", cases[i].failure);
        b.len = 0;
    }
    buffer_release(&b);
}

static void what_came_before_is_kept(void **state)
{
    struct buffer b = {0};
    const struct wire_message release = {.type = WIRE_RELEASE};
    frame_append_message(&b, 4, &message_ping);
    frame_append_message(&b, 0, &release);
    frame_append_message(&b, 4, &message_ping);
    attack(SESSION_SERVER, &b, "PING:4 RELEASE:0 ", "PING with a tag that does not rise");

    frame_append_message(&b, 2, &message_pong);
    frame_append_message(&b, 2, &message_pong);
    attack(SESSION_CLIENT, &b, "PONG:2 ", "PONG for a call that is not open");
    buffer_release(&b);
}

static void payloads_must_decode(void **state)
{
    struct buffer b = {0};
    frame_append(&b, WIRE_LOOKUP, 0, 4, "12345678\2\0\0\0x", 13);
    attack(SESSION_SERVER, &b, "", "LOOKUP whose fields do not fit"); /* cut */
    frame_append(&b, WIRE_LOOKUP, 0, 4, "12345678\1\0\0\0xy", 14);
    attack(SESSION_SERVER, &b, "", "LOOKUP whose fields do not fit"); /* trailing */
    frame_append(&b, WIRE_LOOKUP, 0, 4, "12345678\0\0\0\0x", 13);
    attack(SESSION_SERVER, &b, "", "LOOKUP whose fields do not fit"); /* too short a name */
    frame_append(&b, WIRE_ERROR, 0, 3, "\0\0\0\0\0\0\0\0", 8);
    attack(SESSION_CLIENT, &b, "", "ERROR with error number 0");
    frame_append(&b, WIRE_ERROR, 0, 3, "\0\x10\0\0\0\0\0\0", 8);
    attack(SESSION_CLIENT, &b, "", "ERROR with error number 4096");
    frame_append(&b, WIRE_ERROR, 0, 3, "\xff\xff\xff\xff\0\0\0\0", 8);
    attack(SESSION_CLIENT, &b, "", "ERROR with error number 4294967295");
    buffer_release(&b);
}

static void open_calls_are_bounded(void **state)
{
    struct buffer b = {0};
    for (uint64_t i = 0; i < PAIR_MAX_CALLS - 1; i++) /* two are open already */
        frame_append_message(&b, 10 + i, &message_ping);
    attack(SESSION_SERVER, &b, "PING:10 PING:11 PING:12 PING:13 PING:14 PING:15 ",
           "PING beyond 8 open calls");
    buffer_release(&b);
}

static void credit_is_counted(void **state)
{
    static const char data[PAIR_WINDOW];
    struct buffer b = {0};
    const struct wire_message output = {.type = WIRE_EXEC_OUTPUT,
                                        .exec_output = {.data = bytes_of(data, 484)}};
    const struct wire_message byte = {.type = WIRE_EXEC_OUTPUT,
                                      .exec_output = {.data = bytes_of(data, 1)}};
    frame_append_message(&b, 3, &output); /* 500 */
    frame_append_message(&b, 3, &output); /* 1000 */
    frame_append_message(&b, 3, &byte);
    attack(SESSION_CLIENT, &b, "EXEC_OUTPUT:3 EXEC_OUTPUT:3 ", "beyond the credit of its call");

    struct wire_message grant = {.type = WIRE_GRANT,
                                 .grant = {.bytes = SESSION_CREDIT_MAX - PAIR_WINDOW}};
    frame_append_message(&b, 3, &grant);
    grant.grant.bytes = 1;
    frame_append_message(&b, 3, &grant);
    attack(SESSION_SERVER, &b, "", "GRANT beyond");
    buffer_release(&b);
}

static void nothing_follows_goodbye(void **state)
{
    struct buffer b = {0};
    const struct wire_message goodbye = {.type = WIRE_GOODBYE};
    frame_append_message(&b, 0, &goodbye);
    frame_append_message(&b, 4, &message_ping);
    struct session *s = victim(SESSION_SERVER, 0, true);
    struct outcome got;
    feed_in_pieces(s, buffer_view(&b), SIZE_MAX, &got);
    assert_int_equal(got.result, -EPROTO);
    assert_string_equal(got.log, "GOODBYE:0 ");
    assert_string_equal(got.failure, "a frame after GOODBYE");
    /* Who has said goodbye does not listen. */
    assert_int_equal(session_output(s).len, 0);
    session_free(s);
    buffer_release(&b);
}

/* --- compressed --------------------------------------------------------------- */
static void zstd_attack(struct buffer *b, const char *log, const char *failure)
{
    attack_as(SESSION_SERVER, WIRE_FEATURE_ZSTD, true, buffer_view(b), log, failure);
    b->len = 0;
}

static void compressed_frames_are_checked(void **state)
{
    struct buffer b = {0};
    frame_append(&b, WIRE_PING, WIRE_FRAME_ZSTD, 4, "12345678", 8);
    zstd_attack(&b, "", "PING with flags 0x2"); /* not bulk */
    frame_append(&b, WIRE_WRITE, WIRE_FRAME_ZSTD_STREAM, 4, "12345678", 8);
    zstd_attack(&b, "", "WRITE with flags 0x1"); /* bulk */
    frame_append(&b, WIRE_PING, WIRE_FRAME_ZSTD_STREAM, 4, "", 0);
    zstd_attack(&b, "", "PING of 0 bytes");
    frame_append(&b, WIRE_PING, WIRE_FRAME_ZSTD_STREAM, 4, "garbage, not zstd", 17);
    zstd_attack(&b, "", "PING that does not decompress within its bounds");
    frame_append(&b, WIRE_WRITE, WIRE_FRAME_ZSTD, 4, "garbage, not zstd", 17);
    zstd_attack(&b, "", "WRITE that does not decompress within its bounds");
    buffer_release(&b);
}

static void bombs_do_not_go_off(void **state)
{
    _cleanup_buffer_ struct buffer zeros = {0};
    assert_int_equal(buffer_reserve(&zeros, 0x1000000), 0);
    memset(zeros.data, 0, zeros.allocated);
    struct buffer packed = {0};
    struct buffer b = {0};
    struct compressor *c = NULL;
    /* 16 MiB in place of at most 1 MiB. */
    assert_int_equal(compressor_bulk(&c, bytes_of(zeros.data, 0x1000000), &packed), 1);
    assert_true(packed.len < 10000);
    frame_append(&b, WIRE_WRITE, WIRE_FRAME_ZSTD, 4, packed.data, packed.len);
    zstd_attack(&b, "", "WRITE that does not decompress within its bounds");
    /* The same with the size in its header made smaller: what comes out counts. */
    uint8_t *descriptor = packed.data + 4;
    assert_int_equal(*descriptor >> 6, 2); /* 4 bytes of content size */
    size_t at = *descriptor & 0x20 ? 5 : 6;
    memcpy(packed.data + at, "\x20\0\0\0", 4);
    frame_append(&b, WIRE_WRITE, WIRE_FRAME_ZSTD, 4, packed.data, packed.len);
    zstd_attack(&b, "", "WRITE that does not decompress within its bounds");
    /* A stream: one byte more than PING may have. */
    packed.len = 0;
    assert_int_equal(compressor_stream(&c, bytes_of(zeros.data, 9), &packed), 0);
    frame_append(&b, WIRE_LOOKUP, WIRE_FRAME_ZSTD_STREAM, 4, packed.data, packed.len);
    zstd_attack(&b, "", "LOOKUP whose fields do not fit");
    compressor_free(c);
    c = NULL;
    packed.len = 0;
    assert_int_equal(compressor_stream(&c, bytes_of(zeros.data, 0x10000), &packed), 0);
    frame_append(&b, WIRE_LOOKUP, WIRE_FRAME_ZSTD_STREAM, 4, packed.data, packed.len);
    zstd_attack(&b, "", "LOOKUP that does not decompress within its bounds");
    compressor_free(c);
    /* An item that is within its row, but beyond its credit. */
    c = NULL;
    packed.len = 0;
    const struct wire_message input = {.type = WIRE_EXEC_INPUT,
                                       .exec_input = {.data = bytes_of(zeros.data, 985)}};
    struct buffer payload = {0};
    assert_int_equal(wire_encode(&payload, &input), 0);
    assert_int_equal(compressor_bulk(&c, buffer_view(&payload), &packed), 1);
    frame_append(&b, WIRE_EXEC_INPUT, WIRE_FRAME_ZSTD, 3, packed.data, packed.len);
    zstd_attack(&b, "", "EXEC_INPUT that does not decompress within its bounds");
    compressor_free(c);
    buffer_release(&payload);
    buffer_release(&packed);
    buffer_release(&b);
}

/* A window of 2 GiB asked for by six bytes. */
static void windows_are_bounded(void **state)
{
    /* magic, descriptor (window given, no size), window 2^31, a raw block of 9 bytes */
    static const char huge[] = "\x28\xb5\x2f\xfd\x00\xa8\x49\x00\x00"
                               "123456789";
    struct buffer b = {0};
    frame_append(&b, WIRE_LOOKUP, WIRE_FRAME_ZSTD_STREAM, 4, huge, sizeof huge - 1);
    zstd_attack(&b, "", "LOOKUP that does not decompress within its bounds");
    buffer_release(&b);
}

/* What is dropped went through the stream all the same. */
static void dropped_frames_keep_the_stream(void **state)
{
    struct session *s = victim(SESSION_SERVER, WIRE_FEATURE_ZSTD, true);
    assert_int_equal(session_send(s, 2, &message_pong), 0);
    struct compressor *c = NULL;
    struct buffer b = {0};
    struct buffer packed = {0};
    assert_int_equal(compressor_stream(&c, bytes_of("\1\0\0\0", 4), &packed), 0);
    frame_append(&b, WIRE_GRANT, WIRE_FRAME_ZSTD_STREAM, 2, packed.data, packed.len);
    packed.len = 0;
    assert_int_equal(compressor_stream(&c, bytes_of("12345678", 8), &packed), 0);
    frame_append(&b, WIRE_PING, WIRE_FRAME_ZSTD_STREAM, 4, packed.data, packed.len);
    struct outcome got;
    feed_in_pieces(s, buffer_view(&b), 1, &got);
    assert_int_equal(got.result, 0);
    assert_string_equal(got.log, "PING:4 ");
    compressor_free(c);
    buffer_release(&packed);
    buffer_release(&b);
    session_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_are_checked_alone),
        cmocka_unit_test(the_first_frame_must_be_hello),
        cmocka_unit_test(hello_is_checked),
        cmocka_unit_test(welcome_is_checked),
        cmocka_unit_test(what_came_before_is_kept),
        cmocka_unit_test(payloads_must_decode),
        cmocka_unit_test(open_calls_are_bounded),
        cmocka_unit_test(credit_is_counted),
        cmocka_unit_test(nothing_follows_goodbye),
        cmocka_unit_test(compressed_frames_are_checked),
        cmocka_unit_test(bombs_do_not_go_off),
        cmocka_unit_test(windows_are_bounded),
        cmocka_unit_test(dropped_frames_keep_the_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
