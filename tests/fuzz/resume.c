/* Both ends of a session that outlives its connections, on a line that is cut wherever the input
 * says. The input is a script: bit 0 of the first byte says whether compression is offered; then
 * each byte is a step, in its three low bits, with a number in the others, and some take bytes
 * more. As long as nobody lies, each frame is taken once, in order, and nothing fails. After a lie
 * (a wrong count of what was received, or bytes that the peer never sent) anything may, but memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "wire/session.h"

#define MAX_CALLS 32
#define STEPS_MAX 4096

enum step { ASK, ANSWER, TAKE, UP, DOWN, CUT, LIE, INJECT };

struct line {
    const uint8_t *data;
    size_t len;
    struct session *client, *server;
    struct buffer up, down; /* bytes between the two, lost in a cut */
    uint64_t features;
    uint64_t asked, taken, answered;
    uint64_t tags[MAX_CALLS], numbers[MAX_CALLS]; /* taken by the server, not answered */
    size_t open;
    uint64_t lie_up, lie_down; /* added to what HELLO and WELCOME say */
    bool lied;
    bool over; /* the session is lost */
};

static void check(bool ok)
{
    if (!ok)
        abort();
}

static uint8_t next(struct line *l)
{
    if (!l->len)
        return 0;
    l->len--;
    return *l->data++;
}

static uint64_t next_number(struct line *l)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < 8; i++)
        n |= (uint64_t)next(l) << (8 * i);
    return n;
}

/* Dead ends are of liars. */
static bool fine(struct line *l, int r)
{
    check(r == 0 || l->lied);
    l->over |= r < 0;
    return r == 0;
}

static struct session_config config_of(const struct line *l, enum session_role role)
{
    return (struct session_config){.role = role,
                                   .max_payload = WIRE_PAYLOAD_MAX,
                                   .max_calls = MAX_CALLS,
                                   .window = 4096,
                                   .features = l->features,
                                   .agent = "fuzz"};
}

static void move(struct session *from, struct session *to)
{
    struct bytes out = session_output(from);
    if (out.len)
        check(session_feed(to, out.data, out.len) == 0);
    session_output_done(from, out.len);
}

/* --- what the two do ------------------------------------------------------------------------ */

static void ask(struct line *l, uint8_t size)
{
    static const uint8_t zeros[31 * 257];
    const struct wire_message messages[] = {
        {.type = WIRE_PING, .ping.nonce = l->asked},
        {.type = WIRE_WRITE,
         .write = {.handle = l->asked, .data = bytes_of(zeros, (size_t)size * 257)}}};
    uint64_t tag;
    int r = session_request(l->client, &messages[size != 0], true, &tag);
    check(r == 0 || r == -EAGAIN || l->lied);
    l->asked += r == 0;
}

static void serve(struct line *l)
{
    struct wire_frame *frame;
    while (l->open < MAX_CALLS && session_next(l->server, &frame)) {
        const struct wire_message *m = &frame->message;
        bool ours = m->type == WIRE_PING || m->type == WIRE_WRITE;
        check(ours || l->lied);
        if (ours) {
            uint64_t number = m->type == WIRE_PING ? m->ping.nonce : m->write.handle;
            check(l->lied || number == l->taken);
            l->taken++;
            l->tags[l->open] = frame->tag;
            l->numbers[l->open++] = m->type == WIRE_PING ? number * 2 : number * 2 + 1;
        }
        wire_frame_free(frame);
    }
    l->over |= session_failure(l->server) != NULL;
}

static void answer(struct line *l, size_t which)
{
    serve(l);
    if (!l->open)
        return;
    which %= l->open;
    uint64_t number = l->numbers[which];
    const struct wire_message replies[] = {{.type = WIRE_PONG, .pong.nonce = number / 2},
                                           {.type = WIRE_WRITTEN, .written.size = number / 2}};
    int r = session_send(l->server, l->tags[which], &replies[number % 2]);
    check(r == 0 || l->lied);
    l->open--;
    l->tags[which] = l->tags[l->open];
    l->numbers[which] = l->numbers[l->open];
}

static void take(struct line *l)
{
    struct wire_frame *frame;
    while (session_next(l->client, &frame)) {
        l->answered++;
        wire_frame_free(frame);
    }
    check(l->lied || l->answered <= l->taken);
    l->over |= session_failure(l->client) != NULL;
}

/* --- the line ------------------------------------------------------------------------------- */

/* Puts some of the output on the line, and delivers some of what is on it. */
static void pass(struct line *l, struct session *from, struct session *to, struct buffer *line)
{
    size_t send = (size_t)next(l) * 37, deliver = (size_t)next(l) * 37;
    struct bytes out = session_output(from);
    if (send > out.len)
        send = out.len;
    if (send)
        check(buffer_append(line, out.data, send) == 0);
    session_output_done(from, send);
    if (deliver > line->len)
        deliver = line->len;
    if (deliver && fine(l, session_feed(to, line->data, deliver)))
        buffer_consume(line, deliver);
}

static bool on_resume(void *context, const struct session_resume *asked, uint64_t *ret_received)
{
    struct line *l = context;
    uint64_t received = asked->received + l->lie_up;
    uint64_t kept = session_kept(l->server);
    if (session_resume(l->server, received) < 0) {
        check(session_kept(l->server) == kept); /* nothing has changed */
        return false;
    }
    *ret_received = session_received(l->server) + l->lie_down;
    return true;
}

static void cut(struct line *l)
{
    struct session_config client = config_of(l, SESSION_CLIENT);
    struct session_config server = config_of(l, SESSION_SERVER);
    struct session_resume point = {.received = session_received(l->client)};
    struct session *one = NULL, *other = NULL;
    memcpy(point.key, session_peer(l->client)->key, sizeof point.key);
    client.resumes = &point;
    server.resume = on_resume;
    server.resume_context = l;
    l->up.len = l->down.len = 0;
    l->lied |= l->lie_up || l->lie_down;
    check(session_new(&client, &one) == 0 && session_new(&server, &other) == 0);
    move(one, other);
    move(other, one);
    check(session_ready(one) && session_ready(other));
    const struct session_peer *peer = session_peer(one);
    if (!peer->resumed || session_resume(l->client, peer->received) < 0) {
        check(l->lied);
        l->over = true;
    }
    session_free(one);
    session_free(other);
}

static void inject(struct line *l, bool up, size_t len)
{
    if (len > l->len)
        len = l->len;
    if (!len)
        return;
    l->lied = true;
    (void)fine(l, session_feed(up ? l->server : l->client, l->data, len));
    l->data += len;
    l->len -= len;
}

static void step(struct line *l, uint8_t byte)
{
    uint8_t number = byte >> 3;
    switch ((enum step)(byte & 7)) {
    case ASK:
        ask(l, number);
        break;
    case ANSWER:
        answer(l, number);
        break;
    case TAKE:
        take(l);
        break;
    case UP:
        pass(l, l->client, l->server, &l->up);
        break;
    case DOWN:
        pass(l, l->server, l->client, &l->down);
        break;
    case CUT:
        cut(l);
        break;
    case LIE:
        l->lie_up = number & 1 ? next_number(l) : 0;
        l->lie_down = number & 2 ? next_number(l) : 0;
        cut(l);
        l->lie_up = l->lie_down = 0;
        break;
    case INJECT:
        inject(l, number & 1, number + 1u);
        break;
    }
}

/* All that is missing arrives. */
static void finish(struct line *l)
{
    cut(l);
    for (unsigned i = 0; l->answered < l->asked; i++) {
        check(i < 100000);
        move(l->client, l->server);
        answer(l, i);
        move(l->server, l->client);
        take(l);
    }
    check(l->taken == l->asked && l->answered == l->asked);
    check(!session_failure(l->client) && !session_failure(l->server));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct line l = {.data = data, .len = len};
    l.features = WIRE_FEATURE_RESUME | (next(&l) & 1 ? WIRE_FEATURE_ZSTD : 0);
    struct session_config config = config_of(&l, SESSION_CLIENT);
    check(session_new(&config, &l.client) == 0);
    config.role = SESSION_SERVER;
    check(session_new(&config, &l.server) == 0);
    move(l.client, l.server);
    move(l.server, l.client);
    for (unsigned i = 0; i < STEPS_MAX && l.len && !l.over; i++)
        step(&l, next(&l));
    if (!l.lied)
        finish(&l);
    session_free(l.client);
    session_free(l.server);
    buffer_release(&l.up);
    buffer_release(&l.down);
    return 0;
}
