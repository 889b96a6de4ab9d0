#include "cli/exec_input.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"

/* Bytes of one read. */
#define READ_MAX 65536

struct exec_input {
    struct event *readable;
    struct client *client; /* NULL: disconnected */
    uint64_t tag;
    bool is_file; /* always readable, and nothing epoll would take */
    bool ended;   /* it has been read to its end */
    bool end_sent;
    uint64_t sent;      /* bytes, ever */
    struct buffer kept; /* from `kept_from` on, to all that was read */
    uint64_t kept_from;
};

static void wait_readable(struct exec_input *in)
{
    if (in->is_file)
        event_active(in->readable, EV_READ, 1);
    else
        (void)event_add(in->readable, NULL);
}

static size_t room(const struct exec_input *in)
{
    size_t overhead = session_item_cost(WIRE_EXEC_INPUT, 0);
    size_t credit = in->client ? client_credit(in->client, in->tag) : 0;
    return credit > overhead ? credit - overhead : 0;
}

/* What the service has not received is within a window of what was sent. */
static void drop_received(struct exec_input *in)
{
    uint64_t window = client_peer(in->client)->window;
    if (in->sent - in->kept_from > 2 * window) {
        size_t n = (size_t)(in->sent - in->kept_from - window);
        buffer_consume(&in->kept, n);
        in->kept_from += n;
    }
}

static void pump(struct exec_input *in)
{
    size_t n;
    while ((n = room(in)) > 0) {
        size_t at = (size_t)(in->sent - in->kept_from);
        size_t left = in->kept.len - at;
        bool end = in->ended && left <= n;
        if (left == 0 && (!end || in->end_sent))
            break;
        n = left < n ? left : n;
        n = n < WIRE_CHUNK_MAX ? n : WIRE_CHUNK_MAX;
        end = end && n == left;
        const struct wire_message message = {
            .type = WIRE_EXEC_INPUT,
            .exec_input = {
                .end = end, .offset = in->sent, .data = bytes_of(in->kept.data + at, n)}};
        if (client_send(in->client, in->tag, &message) < 0)
            return;
        in->sent += n;
        in->end_sent = in->end_sent || end;
        drop_received(in);
    }
    if (!in->ended && in->sent == in->kept_from + in->kept.len && room(in) > 0)
        wait_readable(in);
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    struct exec_input *in = context;
    size_t n = room(in);
    if (n == 0 || in->ended)
        return;
    n = n < READ_MAX ? n : READ_MAX;
    if (buffer_reserve(&in->kept, n) < 0) {
        /* No end of file that is none: it goes on when credit comes, or not at all. */
        return;
    }
    ssize_t got = read(fd, in->kept.data + in->kept.len, n);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        wait_readable(in);
        return;
    }
    /* An unreadable standard input (closed, a directory) is an empty one. */
    if (got > 0)
        in->kept.len += (size_t)got;
    else
        in->ended = true;
    pump(in);
}

int exec_input_connect(struct exec_input *in, struct client *client, uint64_t tag,
                       uint64_t received)
{
    if (received < in->kept_from || received > in->kept_from + in->kept.len)
        return -ERANGE;
    in->client = client;
    in->tag = tag;
    in->sent = received;
    in->end_sent = false;
    pump(in);
    return 0;
}

void exec_input_disconnect(struct exec_input *in)
{
    in->client = NULL;
    (void)event_del(in->readable);
}

void exec_input_writable(struct exec_input *in)
{
    if (in->client)
        pump(in);
}

int exec_input_new(struct event_base *base, struct exec_input **ret)
{
    struct stat st;
    struct exec_input *in = calloc(1, sizeof *in);
    if (!in)
        return -ENOMEM;
    in->is_file = fstat(STDIN_FILENO, &st) < 0 ||
                  !(S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || isatty(STDIN_FILENO));
    in->readable = event_new(base, STDIN_FILENO, EV_READ, on_readable, in);
    if (!in->readable) {
        free(in);
        return -ENOMEM;
    }
    *ret = in;
    return 0;
}

void exec_input_free(struct exec_input *in)
{
    if (!in)
        return;
    event_free(in->readable);
    buffer_release(&in->kept);
    free(in);
}
