#include "stream/private.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

#define CONNECT_TIMEOUT_MS 10000
#define EXEC_TIMEOUT_MS 60000
#define BACKLOG_RETRY_MS 20

/* After so long somebody wonders what is waited for. */
#define WORD_MS 5000
#define CORKED_MIN 0x10000

int stream_time_left_ms(const struct stream *s)
{
    uint64_t now = clock_monotonic_ns();
    return now < s->deadline_ns ? (int)((s->deadline_ns - now) / NSEC_PER_MSEC) + 1 : 0;
}

void stream_note_answer(struct stream *s)
{
    uint64_t deadline = clock_monotonic_ns() + CONNECT_TIMEOUT_MS * NSEC_PER_MSEC;
    if (!s->bridge || s->answering)
        return;
    s->answering = true;
    if (deadline < s->deadline_ns)
        s->deadline_ns = deadline;
}

/* Says once what is waited for. Milliseconds until that is due, at most left. */
static int tell_waiting(struct stream *s, int left)
{
    char url[200];
    uint64_t waited_ms = (clock_monotonic_ns() - s->start_ns) / NSEC_PER_MSEC;
    if (s->quiet || !s->bridge || s->timeout_ms <= WORD_MS)
        return left;
    if (waited_ms < WORD_MS)
        return left < (int)(WORD_MS - waited_ms) ? left : (int)(WORD_MS - waited_ms);
    s->quiet = true;
    log_info("still waiting for an answer from %s (%u s at most)",
             log_escape(s->url, strlen(s->url), url, sizeof url), s->timeout_ms / 1000);
    return left;
}

int stream_wait(struct stream *s, short events)
{
    for (;;) {
        int left = stream_time_left_ms(s);
        if (left == 0) {
            /* It would not end by itself either. */
            s->abandoned = true;
            return -ETIMEDOUT;
        }
        left = tell_waiting(s, left);
        struct pollfd fds[2] = {{.fd = s->fd, .events = events},
                                {.fd = stream_command_fd(s), .events = POLLIN}};
        int n = poll(fds, 2, left);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0 && fds[1].revents)
            (void)stream_command_pump(s);
        if (n > 0 && fds[0].revents)
            return 0;
    }
}

/* --- sockets of this machine ------------------------------------------------------------ */

static ssize_t socket_read(struct stream *s, void *buffer, size_t len)
{
    ssize_t n;
    while ((n = recv(s->fd, buffer, len, MSG_DONTWAIT)) < 0 && errno == EINTR)
        ;
    return n < 0 ? -errno : n;
}

static ssize_t socket_write(struct stream *s, const void *data, size_t len)
{
    ssize_t n;
    while ((n = send(s->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    return n < 0 ? -errno : n;
}

static void socket_close(struct stream *s)
{
    close_fd(&s->fd);
}

static const struct stream_carrier socket_carrier = {
    .read = socket_read, .write = socket_write, .close = socket_close};

/* --- opening ------------------------------------------------------------------------- */

static int check_token(const char *token, const char *url, struct failure *f)
{
    /* Anything else could end the header line and start another. */
    for (const char *c = token; *c; c++)
        if (*c <= ' ' || *c >= 0x7f)
            return failure_set(f, -EINVAL,
                               "%s: the token has spaces or bytes that are not printable ASCII. "
                               "Check the token file",
                               url);
    if (!*token)
        return failure_set(f, -EINVAL, "%s: the token is empty. Check the token file", url);
    return 0;
}

static int check_file(const char *file, const char *what, const char *url, struct failure *f)
{
    if (!file || access(file, R_OK) == 0)
        return 0;
    int error = -errno;
    return failure_set(f, error == -ENOENT || error == -EACCES ? error : -EINVAL,
                       "%s: cannot read the %s %s: %s. Check the path and its permissions", url,
                       what, file, strerror(-error));
}

/* A backlog that is full refuses with EAGAIN whoever does not block, and blocking has no deadline.
 */
static int connect_unix(struct stream *s, const struct stream_options *o, struct failure *f)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (o->socket > 0)
        return 0;
    memcpy(address.sun_path, s->parts.rest, strlen(s->parts.rest)); /* fits: stream_url_parse */
    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd < 0)
        return stream_failure_unix(s, errno, f);
    while (connect(s->fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        if (errno != EAGAIN && errno != EINTR)
            return stream_failure_unix(s, errno, f);
        if (stream_time_left_ms(s) == 0)
            return failure_set(f, -EBUSY,
                               "%s: the service takes no connections: too many are waiting. Try "
                               "again later",
                               s->url);
        (void)poll(NULL, 0, BACKLOG_RETRY_MS);
    }
    return 0;
}

static int start_command(struct stream *s, struct failure *f)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return failure_set(f, -errno, "%s: cannot make a socket for the command: %s", s->url,
                           strerror(errno));
    s->fd = ends[0];
    _cleanup_close_ int theirs = ends[1];
    return bridge_start(s->parts.rest, theirs, &s->bridge, f);
}

static int connect_stream(struct stream *s, const struct stream_options *o, struct failure *f)
{
    switch (s->parts.kind) {
    case STREAM_UNIX:
        return connect_unix(s, o, f);
    case STREAM_EXEC:
        return start_command(s, f);
    case STREAM_HTTPS:
    case STREAM_HTTP:
        break;
    }
    return stream_open_network(s, o, f);
}

int stream_open(const struct stream_options *o, struct stream **ret, struct failure *ret_failure)
{
    uint64_t start = clock_monotonic_ns();
    _cleanup_close_ int connected = o->socket > 0 ? o->socket : -1;
    if (!o->url)
        return failure_set(ret_failure, -EINVAL, "no URL given");
    struct stream_url parts;
    int r = stream_url_parse(o->url, &parts, ret_failure);
    if (r < 0)
        return r;
    if (o->token && (r = check_token(o->token, o->url, ret_failure)) < 0)
        return r;
    if (parts.kind == STREAM_HTTPS &&
        ((r = check_file(o->ca_file, "CA file", o->url, ret_failure)) < 0 ||
         (r = check_file(o->cert_file, "client certificate", o->url, ret_failure)) < 0 ||
         (r = check_file(o->key_file, "client key", o->url, ret_failure)) < 0))
        return r;
    if (o->key_file && !o->cert_file)
        return failure_set(ret_failure, -EINVAL,
                           "%s: a client key without a certificate. Name the certificate with "
                           "--cert-file",
                           o->url);

    _cleanup_stream_ struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return failure_set(ret_failure, -ENOMEM, "%s: out of memory", o->url);
    s->fd = take_fd(&connected);
    s->carrier = &socket_carrier;
    s->url = strdup(o->url);
    if (!s->url)
        return failure_set(ret_failure, -ENOMEM, "%s: out of memory", o->url);
    (void)stream_url_parse(s->url, &s->parts, ret_failure); /* again, to point into our copy */
    s->has_token = o->token;
    s->has_ca = o->ca_file;
    s->has_client_cert = o->cert_file;
    s->has_client_key = o->key_file;
    s->timeout_ms = o->connect_timeout_ms       ? o->connect_timeout_ms
                    : parts.kind == STREAM_EXEC ? EXEC_TIMEOUT_MS
                                                : CONNECT_TIMEOUT_MS;
    s->quiet = o->quiet;
    s->start_ns = start;
    s->deadline_ns = start + s->timeout_ms * NSEC_PER_MSEC;
    r = connect_stream(s, o, ret_failure);
    if (r == 0)
        r = stream_upgrade(s, o, ret_failure);
    if (r < 0)
        return r;
    if (s->carrier->opened)
        s->carrier->opened(s);
    s->setup_ns = clock_monotonic_ns() - start;
    *ret = take_ptr(s);
    return 0;
}

/* --- use ------------------------------------------------------------------------------ */

int stream_fd(const struct stream *s)
{
    return s->fd;
}

static ssize_t note_end(struct stream *s, ssize_t n)
{
    if (n < 0 && n != -EAGAIN)
        s->end_error = (int)n;
    return n;
}

ssize_t stream_read(struct stream *s, void *buffer, size_t len)
{
    if (s->early.len > 0) {
        size_t n = len < s->early.len ? len : s->early.len;
        memcpy(buffer, s->early.data, n);
        buffer_consume(&s->early, n);
        if (s->early.len == 0)
            buffer_release(&s->early);
        return (ssize_t)n;
    }
    return note_end(s, s->carrier->read(s, buffer, len));
}

ssize_t stream_write(struct stream *s, const void *data, size_t len)
{
    return len == 0 ? 0 : note_end(s, s->carrier->write(s, data, len));
}

/* OpenSSL gives each record to the kernel by itself, and without delay each would be a segment of
 * its own, which costs both ends as much as one of four times its size. */
void stream_expect(struct stream *s, size_t len)
{
    if (s->parts.kind != STREAM_HTTPS || (s->corked ? len > 0 : len <= CORKED_MIN))
        return;
    s->corked = !s->corked;
    const int value = s->corked;
    (void)setsockopt(s->fd, IPPROTO_TCP, TCP_CORK, &value, sizeof value);
}

int stream_command_fd(const struct stream *s)
{
    return s->bridge ? bridge_stderr_fd(s->bridge) : -1;
}

bool stream_command_pump(struct stream *s)
{
    return s->bridge && bridge_pump(s->bridge);
}

const char *stream_end_reason(struct stream *s, char *text, size_t size)
{
    if (s->bridge) {
        int code;
        char how[512];
        (void)bridge_wait(s->bridge, 200, &code);
        (void)snprintf(text, size, "the command %s", bridge_describe(s->bridge, how, sizeof how));
    } else if (s->end_error < 0) {
        (void)snprintf(text, size, "the connection broke: %s", strerror(-s->end_error));
    } else {
        (void)snprintf(text, size, "the service closed the connection");
    }
    return text;
}

bool stream_is_local(const struct stream *s)
{
    return s->parts.kind == STREAM_UNIX;
}

uint64_t stream_setup_ns(const struct stream *s)
{
    return s->setup_ns;
}

void stream_abandon(struct stream *s)
{
    s->abandoned = true;
}

void stream_close(struct stream *s)
{
    if (!s)
        return;
    s->carrier->close(s); /* end of file for the command */
    if (s->bridge)
        bridge_stop(s->bridge, s->abandoned);
    buffer_release(&s->early);
    free(s->url);
    free(s);
}
