#include "session_pair.h"

const struct wire_message message_ping = {.type = WIRE_PING, .ping = {.nonce = 7}};
const struct wire_message message_pong = {.type = WIRE_PONG, .pong = {.nonce = 7}};
const struct wire_message message_exec = {.type = WIRE_EXEC,
                                          .exec = {.workspace = {(const uint8_t *)"w", 1}}};

struct session_config pair_client_config(uint64_t features)
{
    return (struct session_config){.role = SESSION_CLIENT,
                                   .max_payload = WIRE_PAYLOAD_MAX,
                                   .window = PAIR_WINDOW,
                                   .features = features,
                                   .agent = "unit test \xff"};
}

struct session_config pair_server_config(uint64_t features)
{
    return (struct session_config){.role = SESSION_SERVER,
                                   .max_payload = WIRE_PAYLOAD_MAX,
                                   .max_calls = PAIR_MAX_CALLS,
                                   .window = PAIR_WINDOW,
                                   .features = features,
                                   .agent = "server",
                                   .service_id = "0123456789abcde",
                                   .epoch = 42};
}

void pair_new(struct pair *p, const struct session_config *client,
              const struct session_config *server)
{
    assert_int_equal(session_new(client, &p->client), 0);
    assert_int_equal(session_new(server, &p->server), 0);
}

void pair_start(struct pair *p, uint64_t features)
{
    const struct session_config client = pair_client_config(features);
    const struct session_config server = pair_server_config(features);
    pair_new(p, &client, &server);
    pair_move(p);
    assert_true(session_ready(p->client));
    assert_true(session_ready(p->server));
}

void pair_free(struct pair *p)
{
    session_free(p->client);
    session_free(p->server);
}

void session_move(struct session *from, struct session *to, size_t piece)
{
    for (;;) {
        struct bytes out = session_output(from);
        if (out.len == 0)
            break;
        size_t n = piece > 0 && piece < out.len ? piece : out.len;
        size_t room;
        void *place = session_room(to, &room);
        if (place) {
            n = n < room ? n : room;
            memcpy(place, out.data, n);
        }
        int r = place ? session_room_filled(to, n) : session_feed(to, out.data, n);
        if (r < 0)
            fail_msg("%s", session_failure(to));
        session_output_done(from, n);
    }
}

void pair_move(struct pair *p)
{
    while (session_output(p->client).len > 0 || session_output(p->server).len > 0) {
        session_move(p->client, p->server, 0);
        session_move(p->server, p->client, 0);
    }
}

struct wire_frame *session_expect(struct session *s, enum wire_type type)
{
    struct wire_frame *frame = NULL;
    assert_int_equal(session_next(s, &frame), 1);
    assert_string_equal(wire_row(frame->message.type)->name, wire_row(type)->name);
    return frame;
}

void session_expect_nothing(struct session *s)
{
    struct wire_frame *frame = NULL;
    assert_int_equal(session_next(s, &frame), 0);
}

uint64_t session_must_request(struct session *s, const struct wire_message *m)
{
    uint64_t tag = 0;
    assert_int_equal(session_request(s, m, true, &tag), 0);
    assert_true(tag > 0);
    return tag;
}

void frame_append(struct buffer *b, uint16_t type, uint16_t flags, uint64_t tag,
                  const void *payload, size_t len)
{
    uint8_t raw[WIRE_HEADER_SIZE];
    const struct wire_header h = {
        .length = (uint32_t)len, .type = type, .flags = flags, .tag = tag};
    wire_header_encode(raw, &h);
    assert_int_equal(buffer_append(b, raw, sizeof raw), 0);
    assert_int_equal(buffer_append(b, payload, len), 0);
}

void frame_append_message(struct buffer *b, uint64_t tag, const struct wire_message *m)
{
    struct buffer payload = {0};
    assert_int_equal(wire_encode(&payload, m), 0);
    frame_append(b, (uint16_t)m->type, 0, tag, payload.data, payload.len);
    buffer_release(&payload);
}
