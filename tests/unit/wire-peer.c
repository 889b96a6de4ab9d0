/* The server end of a session on standard input and output, for the tests of
 * tests/lib/berthwire.py: answers PING, sends a WRITE's data back as the text of an ERROR, and any
 * other request with ENOSYS. */
#include "wire/session.h"

static int answer(struct session *s, const struct wire_frame *frame)
{
    const struct wire_message *m = &frame->message;
    const struct wire_row *row = wire_row(m->type);
    if (row->class != WIRE_CLASS_REQUEST)
        return 0;
    if (m->type == WIRE_PING) {
        const struct wire_message pong = {.type = WIRE_PONG, .pong = {.nonce = m->ping.nonce}};
        return session_send(s, frame->tag, &pong);
    }
    if (m->type == WIRE_WRITE) {
        const struct wire_message error = {.type = WIRE_ERROR,
                                           .error = {.error = EIO, .text = m->write.data}};
        return session_send(s, frame->tag, &error);
    }
    return session_send_error(s, frame->tag, -ENOSYS, row->name);
}

static int write_all(struct session *s)
{
    struct bytes out;
    while ((out = session_output(s)).len > 0) {
        ssize_t n = write(STDOUT_FILENO, out.data, out.len);
        if (n < 0)
            return -errno;
        session_output_done(s, (size_t)n);
    }
    return 0;
}

int main(void)
{
    const struct session_config config = {.role = SESSION_SERVER,
                                          .max_payload = WIRE_PAYLOAD_MAX,
                                          .max_calls = 4,
                                          .window = 1000,
                                          .features = WIRE_FEATURE_ZSTD,
                                          .agent = "wire-peer"};
    struct session *s;
    if (session_new(&config, &s) < 0)
        return 1;
    static uint8_t data[65536];
    ssize_t n;
    int r = 0;
    while (r == 0 && (n = read(STDIN_FILENO, data, sizeof data)) > 0) {
        r = session_feed(s, data, (size_t)n);
        struct wire_frame *frame;
        while (session_next(s, &frame)) {
            if (r == 0)
                r = answer(s, frame);
            wire_frame_free(frame);
        }
        (void)write_all(s);
    }
    session_free(s);
    return r < 0;
}
