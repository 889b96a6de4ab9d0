/* One end of a session, fed by a peer that may say anything. The first byte chooses how: bits
 * 0-1 the size of the pieces that its bytes come in, bit 2 whether compression is offered, bit
 * 3 whether the owner answers what comes. What the owner sees must not depend on the pieces. */
#include "requests.h"
#include "wire/session.h"

#define MAX_CALLS 64
#define WINDOW 4096

struct end {
    struct session *session;
    uint64_t hash; /* of all messages taken */
    size_t messages;
    bool answering;
    bool asked; /* client: the requests are out */
};

static void check(bool ok)
{
    if (!ok)
        abort();
}

static void hash_bytes(struct end *e, const void *data, size_t len)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++)
        e->hash = (e->hash ^ p[i]) * UINT64_C(0x100000001b3);
}

static void end_new(struct end *e, uint64_t features, bool answering)
{
    const struct session_config config = {.role = FUZZ_ROLE,
                                          .max_payload = WIRE_PAYLOAD_MAX,
                                          .max_calls = MAX_CALLS,
                                          .window = WINDOW,
                                          .features = features,
                                          .agent = "fuzz"};
    *e = (struct end){.answering = answering, .hash = UINT64_C(0xcbf29ce484222325)};
    check(session_new(&config, &e->session) == 0);
}

/* Client: all its calls, as soon as it may. */
static void ask(struct end *e)
{
    if (FUZZ_ROLE != SESSION_CLIENT || e->asked || !session_ready(e->session) ||
        session_failure(e->session))
        return;
    e->asked = true;
    struct sample sample;
    for (size_t i = 0; fuzz_request(i, &sample); i++) {
        uint64_t tag;
        int r = session_request(e->session, &sample.message, true, &tag);
        check(r == 0 ? tag == i + 2 : r == -EAGAIN);
        sample_release(&sample);
        if (r < 0)
            break;
    }
}

static void answer(struct end *e, const struct wire_frame *frame)
{
    const struct wire_row *row = wire_row(frame->message.type);
    if (FUZZ_ROLE == SESSION_CLIENT || row->class != WIRE_CLASS_REQUEST || frame->tag % 4 == 0)
        return;
    int r;
    if (frame->tag % 4 == 1) {
        r = session_send_error(e->session, frame->tag, -EIO, "fuzz");
    } else {
        struct sample sample;
        sample_make(wire_row(row->owner), SAMPLE_TYPICAL, &sample);
        if (frame->tag % 4 == 3)
            (void)session_grant(e->session, frame->tag, 1000);
        r = session_send(e->session, frame->tag, &sample.message);
        sample_release(&sample);
    }
    check(r == 0 || r == -ENOTCONN || r == -EMSGSIZE || r == -ENOMEM);
}

static void take(struct end *e)
{
    struct wire_frame *frame;
    while (session_next(e->session, &frame)) {
        struct buffer payload = {0};
        /* What was decoded can be encoded, so it was in the table's bounds. */
        check(wire_encode(&payload, &frame->message) == 0);
        hash_bytes(e, &frame->message.type, sizeof frame->message.type);
        hash_bytes(e, &frame->tag, sizeof frame->tag);
        hash_bytes(e, payload.data, payload.len);
        buffer_release(&payload);
        e->messages++;
        if (e->answering)
            answer(e, frame);
        wire_frame_free(frame);
    }
    check(session_open_calls(e->session) <=
          (FUZZ_ROLE == SESSION_SERVER ? MAX_CALLS : wire_row_count()));
    if (e->answering)
        session_output_done(e->session, session_output(e->session).len);
}

static void feed(struct end *e, const uint8_t *data, size_t len, size_t piece)
{
    for (size_t done = 0; done < len;) {
        size_t n = len - done < piece ? len - done : piece;
        /* A client answers WELCOME before anything else can come. */
        if (FUZZ_ROLE == SESSION_CLIENT && !e->asked)
            n = 1;
        /* Of one size of pieces what can be is put where it belongs. */
        size_t room = 0;
        void *to = piece == 7 ? session_room(e->session, &room) : NULL;
        if (to) {
            check(room > 0);
            n = n < room ? n : room;
            memcpy(to, data + done, n);
        }
        int r = to ? session_room_filled(e->session, n) : session_feed(e->session, data + done, n);
        check(r == 0 || (r == -EPROTO && session_failure(e->session)));
        done += n;
        take(e);
        ask(e);
        if (session_failure(e->session))
            break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const size_t pieces[] = {SIZE_MAX, 1, 7, 4096};
    if (len == 0)
        return 0;
    uint64_t features = data[0] & 4 ? WIRE_FEATURE_ZSTD : 0;
    bool answering = data[0] & 8;
    struct end e;
    end_new(&e, features, answering);
    feed(&e, data + 1, len - 1, pieces[data[0] & 3]);
    if (!answering && (data[0] & 3) != 0) {
        struct end other;
        end_new(&other, features, false);
        feed(&other, data + 1, len - 1, SIZE_MAX);
        check(other.hash == e.hash && other.messages == e.messages);
        const char *why = session_failure(e.session);
        const char *why_other = session_failure(other.session);
        check(!why == !why_other && (!why || strcmp(why, why_other) == 0));
        session_free(other.session);
    }
    session_free(e.session);
    return 0;
}
