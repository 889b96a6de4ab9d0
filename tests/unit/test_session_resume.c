/* A session that outlives its connections: whatever is lost with them, each end takes each frame
 * once and in order. */
#include "session_pair.h"

#include <stdlib.h>

#define ALL (WIRE_FEATURE_RESUME | WIRE_FEATURE_ZSTD)

/* Bytes that have been taken from one end and not yet fed to the other: lost in a cut. */
struct way {
    struct session *from, *to;
    struct buffer wire;
};

struct line {
    struct pair p;
    struct way up, down;
    uint64_t asked;                  /* requests of the client */
    uint64_t taken;                  /* by the server */
    uint64_t answered;               /* replies that came, */
    uint64_t sum;                    /* and their nonces */
    uint64_t open[PAIR_MAX_CALLS];   /* tags that the server has not answered */
    uint64_t nonces[PAIR_MAX_CALLS]; /* what to answer */
    size_t open_count;
};

static void line_start(struct line *l, uint64_t features)
{
    *l = (struct line){0};
    pair_start(&l->p, features);
    l->up = (struct way){.from = l->p.client, .to = l->p.server};
    l->down = (struct way){.from = l->p.server, .to = l->p.client};
}

static void line_end(struct line *l)
{
    buffer_release(&l->up.wire);
    buffer_release(&l->down.wire);
    pair_free(&l->p);
}

static size_t at_most(size_t n)
{
    return n == 0 ? 0 : (size_t)random() % (n + 1);
}

static void send_some(struct way *w)
{
    struct bytes out = session_output(w->from);
    size_t n = at_most(out.len);
    assert_int_equal(buffer_append(&w->wire, out.data, n), 0);
    session_output_done(w->from, n);
}

static void deliver(struct way *w, size_t n)
{
    if (session_feed(w->to, w->wire.data, n) < 0)
        fail_msg("%s", session_failure(w->to));
    buffer_consume(&w->wire, n);
}

static void resume(struct way *w)
{
    w->wire.len = 0;
    assert_int_equal(session_resume(w->from, session_received(w->to)), 0);
}

static void ask(struct line *l)
{
    static uint8_t bytes[3000];
    const struct wire_message messages[] = {
        {.type = WIRE_PING, .ping.nonce = l->asked},
        {.type = WIRE_WRITE,
         .write = {.handle = l->asked, .data = bytes_of(bytes, at_most(sizeof bytes))}}};
    uint64_t tag;
    if (session_request(l->p.client, &messages[l->asked % 2], true, &tag) == 0)
        l->asked++;
}

static void serve(struct line *l)
{
    struct wire_frame *frame;
    while (session_next(l->p.server, &frame)) {
        const struct wire_message *m = &frame->message;
        uint64_t number = m->type == WIRE_PING ? m->ping.nonce : m->write.handle;
        assert_int_equal(number, l->taken);
        l->taken++;
        l->open[l->open_count] = frame->tag;
        l->nonces[l->open_count++] = number;
        wire_frame_free(frame);
    }
    if (l->open_count == 0)
        return;
    size_t i = at_most(l->open_count - 1); /* in any order */
    const struct wire_message replies[] = {{.type = WIRE_PONG, .pong.nonce = l->nonces[i]},
                                           {.type = WIRE_WRITTEN, .written.size = l->nonces[i]}};
    assert_int_equal(session_send(l->p.server, l->open[i], &replies[l->nonces[i] % 2]), 0);
    l->open[i] = l->open[--l->open_count];
    l->nonces[i] = l->nonces[l->open_count];
}

static void take_replies(struct line *l)
{
    struct wire_frame *frame;
    while (session_next(l->p.client, &frame)) {
        const struct wire_message *m = &frame->message;
        l->answered++;
        l->sum += m->type == WIRE_PONG ? m->pong.nonce : m->written.size;
        wire_frame_free(frame);
    }
}

/* One in `cuts` steps is a cut. */
static void work(struct line *l, unsigned steps, unsigned cuts)
{
    while (steps-- > 0) {
        ask(l);
        send_some(&l->up);
        deliver(&l->up, at_most(l->up.wire.len));
        serve(l);
        send_some(&l->down);
        deliver(&l->down, at_most(l->down.wire.len));
        take_replies(l);
        if (random() % cuts == 0) {
            resume(&l->up);
            resume(&l->down);
        }
    }
}

static void finish(struct line *l)
{
    deliver(&l->up, l->up.wire.len);
    deliver(&l->down, l->down.wire.len);
    while (l->answered < l->asked) {
        pair_move(&l->p);
        serve(l);
        take_replies(l);
    }
}

static void frames_are_taken_once_and_in_order(uint64_t features)
{
    struct line l;
    srandom(7);
    for (unsigned round = 0; round < 20; round++) {
        line_start(&l, features);
        work(&l, 2000, round + 1);
        resume(&l.up);
        resume(&l.down);
        finish(&l);
        assert_true(l.asked > 100);
        assert_int_equal(l.taken, l.asked);
        assert_int_equal(l.answered, l.asked);
        assert_int_equal(l.sum, l.asked * (l.asked - 1) / 2);
        line_end(&l);
    }
}

static void test_frames_are_taken_once_and_in_order_however_often_it_is_cut(void **state)
{
    frames_are_taken_once_and_in_order(WIRE_FEATURE_RESUME);
    frames_are_taken_once_and_in_order(ALL);
}

static void test_what_was_acknowledged_is_not_kept(void **state)
{
    struct line l;
    srandom(8);
    line_start(&l, WIRE_FEATURE_RESUME);
    for (unsigned i = 0; i < 100; i++) {
        work(&l, 50, 1000000);
        finish(&l);
        pair_move(&l.p);
        assert_true(session_kept(l.p.client) < 2 * SESSION_ACK_EVERY);
        assert_true(session_kept(l.p.server) < 2 * SESSION_ACK_EVERY);
    }
    assert_true(session_received(l.p.server) > 10 * SESSION_ACK_EVERY);
    line_end(&l);
}

static void test_without_the_feature_nothing_is_kept(void **state)
{
    struct line l;
    line_start(&l, 0);
    ask(&l);
    pair_move(&l.p);
    assert_int_equal(session_kept(l.p.client), 0);
    assert_false(session_resumable(l.p.client));
    assert_int_equal(session_resume(l.p.client, session_received(l.p.server)), -ESTALE);
    line_end(&l);
}

static void test_a_peer_that_acknowledges_nothing_takes_bounded_memory(void **state)
{
    static uint8_t data[WIRE_DATA_MAX];
    struct pair p;
    pair_start(&p, WIRE_FEATURE_RESUME);
    const struct wire_message read = {.type = WIRE_READ, .read = {.handle = 1}};
    const struct wire_message reply = {.type = WIRE_DATA, .data.data = bytes_of(data, sizeof data)};
    for (unsigned i = 0; i < 40; i++) {
        struct buffer b = {0};
        frame_append_message(&b, i + 2, &read);
        assert_int_equal(session_feed(p.server, b.data, b.len), 0);
        buffer_release(&b);
        wire_frame_free(session_expect(p.server, WIRE_READ));
        assert_int_equal(session_send(p.server, i + 2, &reply), 0);
        session_output_done(p.server, session_output(p.server).len);
        assert_true(session_kept(p.server) <= SESSION_KEEP_MAX);
    }
    /* What is missing cannot be sent again. */
    assert_int_equal(session_resume(p.server, session_received(p.client)), -ESTALE);
    pair_free(&p);
}

static void test_bytes_that_were_never_sent_are_not_believed(void **state)
{
    struct line l;
    line_start(&l, WIRE_FEATURE_RESUME);
    ask(&l);
    uint64_t before = session_received(l.p.server);
    /* Made, and not taken by anybody yet. */
    assert_int_equal(session_resume(l.p.client, before + 1), -ESTALE);
    pair_move(&l.p);
    assert_int_equal(session_resume(l.p.client, session_received(l.p.server) + 1), -ESTALE);
    assert_int_equal(session_resume(l.p.client, UINT64_MAX), -ESTALE);
    assert_int_equal(session_resume(l.p.client, session_received(l.p.server)), 0);
    struct buffer b = {0};
    const struct wire_message ack = {.type = WIRE_ACK, .ack.received = 1 << 20};
    frame_append_message(&b, 0, &ack);
    assert_int_equal(session_feed(l.p.server, b.data, b.len), -EPROTO);
    assert_non_null(strstr(session_failure(l.p.server), "never sent"));
    assert_false(session_resumable(l.p.server));
    buffer_release(&b);
    line_end(&l);
}

static void test_a_session_that_said_goodbye_is_over(void **state)
{
    struct pair p;
    pair_start(&p, WIRE_FEATURE_RESUME);
    const struct wire_message goodbye = {.type = WIRE_GOODBYE};
    assert_true(session_resumable(p.client) && session_resumable(p.server));
    assert_int_equal(session_send(p.client, 0, &goodbye), 0);
    pair_move(&p);
    assert_false(session_resumable(p.client) || session_resumable(p.server));
    pair_free(&p);
}

/* --- HELLO ----------------------------------------------------------------------- */

struct asked {
    struct session_resume resume;
    unsigned count;
    bool answer;
};

static bool on_resume(void *context, const struct session_resume *resume, uint64_t *ret_received)
{
    struct asked *a = context;
    a->resume = *resume;
    a->count++;
    *ret_received = 77;
    return a->answer;
}

static void greet(struct pair *p, struct asked *a, const struct session_resume *wanted)
{
    struct session_config client = pair_client_config(WIRE_FEATURE_RESUME);
    struct session_config server = pair_server_config(WIRE_FEATURE_RESUME);
    client.resumes = wanted;
    server.resume = on_resume;
    server.resume_context = a;
    memset(server.key, 'k', sizeof server.key);
    pair_new(p, &client, &server);
    pair_move(p);
}

static void test_hello_asks_for_a_session_and_welcome_answers(void **state)
{
    const struct session_resume wanted = {.key = "0123456789abcde", .received = 5, .abandoned = 6};
    for (unsigned answer = 0; answer < 2; answer++) {
        struct asked a = {.answer = answer};
        struct pair p;
        greet(&p, &a, &wanted);
        assert_int_equal(a.count, 1);
        assert_memory_equal(&a.resume, &wanted, sizeof wanted);
        const struct session_peer *peer = session_peer(p.client);
        assert_int_equal(peer->resumed, answer);
        assert_int_equal(session_peer(p.server)->resumed, answer);
        if (answer)
            assert_int_equal(peer->received, 77);
        else
            assert_int_equal(peer->key[0], 'k');
        assert_int_equal(session_resumable(p.client), !answer);
        pair_free(&p);
    }
}

static void test_who_does_not_ask_gets_a_session_of_its_own(void **state)
{
    struct asked a = {.answer = true};
    struct pair p;
    greet(&p, &a, NULL);
    assert_int_equal(a.count, 0);
    assert_false(session_peer(p.client)->resumed);
    pair_free(&p);
}

static void test_a_service_cannot_resume_what_was_not_asked_for(void **state)
{
    struct session_config config = pair_client_config(WIRE_FEATURE_RESUME);
    struct session *s;
    struct buffer b = {0};
    assert_int_equal(session_new(&config, &s), 0);
    const uint8_t id[16] = {0};
    const struct wire_message welcome = {.type = WIRE_WELCOME,
                                         .welcome = {.version = WIRE_VERSION,
                                                     .max_payload = WIRE_PAYLOAD_MAX,
                                                     .max_calls = 8,
                                                     .features = WIRE_FEATURE_RESUME,
                                                     .service_id = bytes_of(id, sizeof id),
                                                     .resumed = 1}};
    frame_append_message(&b, 1, &welcome);
    assert_int_equal(session_feed(s, b.data, b.len), -EPROTO);
    assert_non_null(strstr(session_failure(s), "not asked for"));
    buffer_release(&b);
    session_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_are_taken_once_and_in_order_however_often_it_is_cut),
        cmocka_unit_test(test_what_was_acknowledged_is_not_kept),
        cmocka_unit_test(test_without_the_feature_nothing_is_kept),
        cmocka_unit_test(test_a_peer_that_acknowledges_nothing_takes_bounded_memory),
        cmocka_unit_test(test_bytes_that_were_never_sent_are_not_believed),
        cmocka_unit_test(test_a_session_that_said_goodbye_is_over),
        cmocka_unit_test(test_hello_asks_for_a_session_and_welcome_answers),
        cmocka_unit_test(test_who_does_not_ask_gets_a_session_of_its_own),
        cmocka_unit_test(test_a_service_cannot_resume_what_was_not_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
