#include "cli/local_output.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/buffer.h"

/* What a pipe takes without blocking once it polls writable, if nobody else writes to it. */
#define CAREFUL_SIZE PIPE_BUF

enum output_kind {
    OUTPUT_FILE,    /* never waits for a reader: plain write */
    OUTPUT_OWN,     /* a description of our own that is non-blocking */
    OUTPUT_SOCKET,  /* send with MSG_DONTWAIT */
    OUTPUT_CAREFUL, /* shared and blocking: small pieces, each after a poll */
};

struct local_output {
    int fd;  /* borrowed */
    int own; /* OUTPUT_OWN, else -1 */
    enum output_kind kind;
    int error; /* negative errno once broken */
    bool told; /* broken() was called */
    struct event *writable;
    struct buffer queue;
    size_t written; /* bytes at the start of queue */
    size_t unnamed; /* bytes that written() has not been told of */
    struct local_output_events events;
};

/* A pipe or terminal can be opened again by its /proc name, as a description that only we
 * have: making the inherited one non-blocking would surprise every process that shares it. */
static int open_own(int fd)
{
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

static void choose_kind(struct local_output *o)
{
    struct stat st;
    o->own = -1;
    o->kind = OUTPUT_CAREFUL;
    if (fstat(o->fd, &st) < 0)
        return;
    if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode) || (S_ISCHR(st.st_mode) && !isatty(o->fd))) {
        o->kind = OUTPUT_FILE;
    } else if (S_ISSOCK(st.st_mode)) {
        o->kind = OUTPUT_SOCKET;
    } else {
        o->own = open_own(o->fd);
        if (o->own >= 0)
            o->kind = OUTPUT_OWN;
    }
}

static ssize_t write_some(const struct local_output *o, const void *data, size_t len)
{
    struct pollfd poll_fd = {.fd = o->fd, .events = POLLOUT};
    switch (o->kind) {
    case OUTPUT_FILE:
        return write(o->fd, data, len);
    case OUTPUT_OWN:
        return write(o->own, data, len);
    case OUTPUT_SOCKET:
        return send(o->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    case OUTPUT_CAREFUL:
        if (poll(&poll_fd, 1, 0) == 0) {
            errno = EAGAIN;
            return -1;
        }
        return write(o->fd, data, len < CAREFUL_SIZE ? len : CAREFUL_SIZE);
    }
    errno = EBADF;
    return -1;
}

static size_t queued(const struct local_output *o)
{
    return o->queue.len - o->written;
}

static void write_queue(struct local_output *o)
{
    while (!o->error && queued(o) > 0) {
        ssize_t n = write_some(o, o->queue.data + o->written, queued(o));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            o->error = -errno;
            break;
        }
        o->written += (size_t)n;
        o->unnamed += (size_t)n;
    }
    if (o->error) {
        o->unnamed += queued(o);
        o->written = o->queue.len;
    }
    if (o->written > o->queue.len / 2) {
        buffer_consume(&o->queue, o->written);
        o->written = 0;
    }
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    struct local_output *o = context;
    write_queue(o);
    if (queued(o) > 0)
        (void)event_add(o->writable, NULL);
    if (o->error && !o->told) {
        o->told = true;
        o->events.broken(o->events.context, o->error);
    }
    size_t unnamed = o->unnamed;
    o->unnamed = 0;
    if (unnamed > 0)
        o->events.written(o->events.context, unnamed);
}

int local_output_new(struct event_base *base, int fd, const struct local_output_events *events,
                     struct local_output **ret)
{
    _cleanup_free_ struct local_output *o = calloc(1, sizeof *o);
    if (!o)
        return -ENOMEM;
    o->fd = fd;
    o->events = *events;
    choose_kind(o);
    o->writable = event_new(base, o->own >= 0 ? o->own : fd, EV_WRITE, on_writable, o);
    if (!o->writable) {
        close_fd(&o->own);
        return -ENOMEM;
    }
    *ret = take_ptr(o);
    return 0;
}

void local_output_free(struct local_output *o)
{
    if (!o)
        return;
    event_free(o->writable);
    close_fd(&o->own);
    buffer_release(&o->queue);
    free(o);
}

int local_output_append(struct local_output *o, struct bytes data)
{
    if (o->error) {
        o->unnamed += data.len;
    } else {
        int r = buffer_append(&o->queue, data.data, data.len);
        if (r < 0)
            return r;
        write_queue(o);
    }
    if (queued(o) > 0)
        (void)event_add(o->writable, NULL);
    if (o->unnamed > 0 || (o->error && !o->told))
        event_active(o->writable, EV_WRITE, 1);
    return 0;
}

bool local_output_idle(const struct local_output *o)
{
    return queued(o) == 0 && o->unnamed == 0;
}
