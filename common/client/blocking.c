/* Connecting, and calls one at a time: for programs that have no event loop, or not yet. */
#include "client/private.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "stream/url.h"

/* What comes behind a WELCOME may belong to another session. */
static int feed_greeting(struct client *c, size_t len)
{
    size_t used = 0;
    int r = 0;
    while (r == 0 && used < len && !session_peer(c->session)->resumed) {
        size_t n = len - used;
        if (!session_ready(c->session) && n > session_wanted(c->session))
            n = session_wanted(c->session);
        r = session_feed(c->session, c->input + used, n);
        used += n;
    }
    c->input_len = len - used;
    memmove(c->input, c->input + used, c->input_len);
    return r;
}

/* Sends and receives once; waits for the descriptor, until the deadline, if nothing can be
 * done. 0, -ETIMEDOUT, -ECONNRESET, -ENOMEM, -EPROTO. */
static int step(struct client *c, uint64_t deadline_ns)
{
    int w = client_write_output(c);
    ssize_t n = stream_read(c->stream, c->input, sizeof c->input);
    if (n > 0)
        return feed_greeting(c, (size_t)n);
    if (n != -EAGAIN)
        return n == -ENOMEM ? -ENOMEM : -ECONNRESET;
    if (w < 0 && w != -EAGAIN)
        return w == -ENOMEM ? -ENOMEM : -ECONNRESET;
    uint64_t now = clock_monotonic_ns();
    if (now >= deadline_ns)
        return -ETIMEDOUT;
    uint64_t left = (deadline_ns - now) / NSEC_PER_MSEC + 1;
    struct pollfd fds[2] = {
        {.fd = stream_fd(c->stream), .events = (short)(POLLIN | (w == -EAGAIN ? POLLOUT : 0))},
        {.fd = stream_command_fd(c->stream), .events = POLLIN}};
    int r = poll(fds, 2, left < 60000 ? (int)left : 60000);
    if (r < 0 && errno != EINTR)
        return -errno;
    if (r > 0 && fds[1].revents)
        (void)stream_command_pump(c->stream);
    return 0;
}

static int lost_failure(struct client *c, int error, struct failure *f)
{
    char text[512];
    const char *reason;
    c->dead = true;
    if (c->goodbye[0])
        reason = c->goodbye;
    else if (session_failure(c->session))
        reason = session_failure(c->session);
    else if (error == -ETIMEDOUT)
        reason = "no answer in time";
    else if (error == -ECONNRESET)
        reason = stream_end_reason(c->stream, text, sizeof text);
    else
        reason = strerror(-error);
    return failure_set(f, error, "%s: the connection is lost: %s", c->url, reason);
}

static int greet(struct client *c, uint64_t deadline_ns, struct failure *f)
{
    int r = 0;
    while (r == 0 && !session_ready(c->session))
        r = step(c, deadline_ns);
    if (r == 0)
        return 0;
    (void)client_write_output(c);
    const char *failure = session_failure(c->session);
    char text[512];
    if (failure)
        return failure_set(f, r,
                           "%s: no agreement with the service: %s. Install the same version of "
                           "Berth on both sides",
                           c->url, failure);
    if (r == -ETIMEDOUT)
        return failure_set(f, r,
                           "%s: the service accepted the connection but does not greet. Check its "
                           "log, and try again",
                           c->url);
    return failure_set(f, r, "%s: the service ended the connection before its greeting: %s", c->url,
                       stream_end_reason(c->stream, text, sizeof text));
}

static int connect_with(const struct stream_options *options, const char *agent, uint64_t features,
                        const struct session_resume *resumes, struct client **ret,
                        struct failure *ret_failure)
{
    uint64_t start = clock_monotonic_ns();
    _cleanup_client_ struct client *c = calloc(1, sizeof *c);
    if (!c)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    TAILQ_INIT(&c->open);
    TAILQ_INIT(&c->queued);
    c->deadline_ns = CLIENT_DEADLINE_MS * NSEC_PER_MSEC;
    c->dead = true; /* until there is something to say goodbye to */
    struct stream_url url;
    bool local = options->url && stream_url_parse(options->url, &url, ret_failure) == 0 &&
                 url.kind == STREAM_UNIX;
    struct session_config config = {
        .role = SESSION_CLIENT,
        .max_payload = WIRE_PAYLOAD_MAX,
        .window = CLIENT_WINDOW,
        .features = features | (local ? 0 : (uint64_t)WIRE_FEATURE_ZSTD),
        .agent = agent,
        .resumes = resumes,
    };
    int r = session_new(&config, &c->session);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot make a session: %s", strerror(-r));
    /* The HELLO goes with the request for the upgrade: one turn less of each side. */
    struct stream_options with_hello = *options;
    with_hello.first = local ? session_output(c->session) : (struct bytes){0};
    r = stream_open(&with_hello, &c->stream, ret_failure);
    if (r < 0)
        return r;
    session_output_done(c->session, with_hello.first.len);
    c->url = strdup(options->url);
    if (!c->url)
        return failure_set(ret_failure, -ENOMEM, "%s: out of memory", options->url);
    uint64_t deadline = options->connect_timeout_ms
                            ? start + options->connect_timeout_ms * NSEC_PER_MSEC
                            : clock_monotonic_ns() + c->deadline_ns;
    r = greet(c, deadline, ret_failure);
    if (r < 0)
        return r;
    c->dead = false;
    *ret = take_ptr(c);
    return 0;
}

int client_connect(const struct stream_options *options, const char *agent, struct client **ret,
                   struct failure *ret_failure)
{
    return connect_with(options, agent, WIRE_FEATURE_CHANGES | WIRE_FEATURE_USAGE, NULL, ret,
                        ret_failure);
}

int client_connect_again(const struct stream_options *options, const char *agent,
                         const struct session_resume *resumes, struct client **ret,
                         struct failure *ret_failure)
{
    return connect_with(options, agent,
                        WIRE_FEATURE_CHANGES | WIRE_FEATURE_RESUME | WIRE_FEATURE_DELEGATION,
                        resumes, ret, ret_failure);
}

/* Takes the reply of tag from what was received, and drops the rest. */
static struct wire_frame *take_reply(struct client *c, uint64_t tag)
{
    struct wire_frame *frame;
    while (session_next(c->session, &frame)) {
        if (frame->tag == tag && wire_row(frame->message.type)->class == WIRE_CLASS_REPLY)
            return frame;
        if (frame->message.type == WIRE_GOODBYE)
            client_note_goodbye(c, &frame->message.goodbye);
        wire_frame_free(frame);
    }
    return NULL;
}

int client_call_sync(struct client *c, const struct wire_message *request, uint32_t timeout_ms,
                     struct wire_frame **ret, struct failure *ret_failure)
{
    assert(!c->attached);
    if (c->dead)
        return failure_set(ret_failure, -ENOTCONN, "%s: not connected any more", c->url);
    uint64_t deadline = timeout_ms ? clock_monotonic_ns() + timeout_ms * NSEC_PER_MSEC : UINT64_MAX;
    uint64_t tag;
    int r = session_request(c->session, request, true, &tag);
    if (r < 0 && session_failure(c->session))
        return lost_failure(c, -ECONNRESET, ret_failure);
    if (r < 0)
        return failure_set(ret_failure, r, "the request cannot be sent: %s", strerror(-r));
    struct wire_frame *frame;
    while (!(frame = take_reply(c, tag))) {
        if (r < 0)
            return lost_failure(c, r, ret_failure);
        r = step(c, deadline);
    }
    if (frame->message.type == WIRE_ERROR) {
        const struct wire_error *e = &frame->message.error;
        int error = -(int)e->error;
        char text[FAILURE_TEXT_MAX];
        (void)log_escape(e->text.data, e->text.len, text, sizeof text);
        (void)failure_set(ret_failure, error, "%s", *text ? text : strerror(-error));
        wire_frame_free(frame);
        return error;
    }
    *ret = frame;
    return 0;
}
