#include "gateway/private.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "gateway/problem.h"

/* --- the bytes ------------------------------------------------------------------------------- */

static int wait_for(int fd, short events, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    int n;
    while ((n = poll(&p, 1, timeout_ms)) < 0 && errno == EINTR)
        ;
    return n < 0 ? -errno : n == 0 ? -ETIMEDOUT : 0;
}

int conversation_receive(struct conversation *c, int timeout_ms)
{
    if (c->input_at > 0) {
        c->input_len -= c->input_at;
        memmove(c->input, c->input + c->input_at, c->input_len);
        c->input_at = 0;
    }
    if (c->input_len == sizeof c->input)
        return -ENOBUFS;
    int r = wait_for(c->fd, POLLIN, timeout_ms);
    if (r < 0)
        return r;
    ssize_t n;
    while ((n = recv(c->fd, c->input + c->input_len, sizeof c->input - c->input_len, 0)) < 0 &&
           errno == EINTR)
        ;
    if (n <= 0)
        return -ECONNABORTED;
    c->input_len += (size_t)n;
    return 0;
}

struct bytes conversation_input(const struct conversation *c)
{
    return bytes_of(c->input + c->input_at, c->input_len - c->input_at);
}

void conversation_take(struct conversation *c, size_t len)
{
    c->input_at += len;
}

int conversation_send(struct conversation *c, struct iovec *parts, size_t count)
{
    while (count > 0) {
        if (parts->iov_len == 0) {
            parts++;
            count--;
            continue;
        }
        const struct msghdr m = {.msg_iov = parts, .msg_iovlen = count};
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno != EAGAIN || wait_for(c->fd, POLLOUT, CONVERSATION_STALL_S * 1000) < 0))
            return -ECONNABORTED;
        for (; n > 0 && count > 0; parts++, count--) {
            size_t part = (size_t)n < parts->iov_len ? (size_t)n : parts->iov_len;
            parts->iov_base = (uint8_t *)parts->iov_base + part;
            parts->iov_len -= part;
            n -= (ssize_t)part;
            if (parts->iov_len > 0)
                break;
        }
    }
    return 0;
}

/* --- requests -------------------------------------------------------------------------------- */

/* 1: a header is complete; 0: the client has ended, or sends nothing; a negative errno as
 * http_reader_feed, or -ETIMEDOUT amid a header. */
static int read_header(struct conversation *c, struct http_reader *reader)
{
    uint64_t deadline = 0;
    for (;;) {
        struct bytes in = conversation_input(c);
        size_t used = in.len;
        int r = in.len > 0 ? http_reader_feed(reader, in.data, in.len, &used) : 0;
        if (r < 0)
            return r;
        conversation_take(c, used);
        if (r > 0)
            return 1;
        uint64_t now = clock_monotonic_ns();
        if (deadline == 0 && !http_reader_untouched(reader))
            deadline = now + CONVERSATION_HEADER_S * NSEC_PER_SEC;
        int left = deadline == 0    ? CONVERSATION_IDLE_S * 1000
                   : now > deadline ? 0
                                    : (int)((deadline - now) / NSEC_PER_MSEC) + 1;
        r = conversation_receive(c, left);
        if (r < 0)
            return r == -ETIMEDOUT && deadline > 0 ? r : 0;
    }
}

static void refuse_header(struct exchange *x, int error)
{
    exchange_close(x);
    if (error == -ETIMEDOUT)
        (void)exchange_refuse(x, 408, "the request's header did not come within %d seconds",
                              CONVERSATION_HEADER_S);
    else if (error == -EMSGSIZE)
        (void)exchange_refuse(x, 431,
                              "the request's header is larger than %d bytes, or has too "
                              "many fields",
                              HTTP_HEADER_MAX);
    else if (error == -EPROTO)
        (void)exchange_refuse(x, 400,
                              "this request could be read in two ways: a "
                              "Transfer-Encoding other than chunked, folded fields, lines "
                              "without CR, or a field given twice");
    else if (error == -ENOMEM)
        (void)exchange_refuse(x, 503, "no memory for the request");
    else
        (void)exchange_refuse(x, 400, "this is not an HTTP/1.1 request");
}

static void count(struct conversation *c, const struct exchange *x, uint64_t start_ns)
{
    struct counters *n = c->options->counters;
    size_t i = x->route ? (size_t)(x->route - route_at(0)) : COUNTERS_ROUTES - 1;
    if (!n || x->status < 100)
        return;
    n->requests[i][x->status / 100 - 1]++;
    n->duration_us[i] += (clock_monotonic_ns() - start_ns) / 1000;
    n->received += x->received;
    n->sent += x->sent;
}

static void serve(struct conversation *c, struct exchange *x)
{
    struct failure failure = {.text = ""};
    int r = read_header(c, x->reader);
    uint64_t start = clock_monotonic_ns();
    if (r == 0) {
        c->closing = true;
        return;
    }
    x->request = http_reader_request(x->reader);
    if (r < 0) {
        refuse_header(x, r);
    } else {
        http_body_begin(&x->body, x->request);
        if (!x->request->keep_alive)
            exchange_close(x);
        r = exchange_begin_request(x, &failure);
        if (r == 0)
            r = x->route->handler(x, &failure);
        exchange_conclude(x, r, &failure);
    }
    count(c, x, start);
}

static void close_upstreams(struct conversation *c)
{
    for (size_t i = 0; i < CONVERSATION_UPSTREAMS_MAX; i++) {
        upstream_free(c->upstreams[i].upstream);
        free(c->upstreams[i].token);
    }
}

/* What the client has still sent must not turn the end into a reset that destroys the answer. The
 * service closes when it has read all of it. */
static void linger(struct conversation *c)
{
    uint64_t end = clock_monotonic_ns() + 2 * NSEC_PER_SEC;
    (void)shutdown(c->fd, SHUT_WR);
    c->input_at = c->input_len;
    while (clock_monotonic_ns() < end && conversation_receive(c, 2000) == 0)
        c->input_at = c->input_len;
}

void conversation_run(const struct conversation_options *options)
{
    struct conversation *c = calloc(1, sizeof *c);
    if (!c)
        return;
    c->options = options;
    c->fd = options->fd;
    while (!c->closing) {
        struct exchange x = {.conversation = c};
        if (http_reader_new(&x.reader) < 0)
            break;
        serve(c, &x);
        exchange_release(&x);
    }
    close_upstreams(c);
    linger(c);
    close_fd(&c->fd);
    free(c);
}
