#include "exec/input.h"

#include <termios.h>

#include "base/buffer.h"

/* The usual end-of-file character, where the terminal's own cannot be asked for. */
#define CONTROL_D 4

struct input {
    int fd; /* -1: closed, by us or by the reader */
    bool terminal;
    bool end;
    bool last_was_newline;
    unsigned int end_characters; /* end-of-file characters still to write behind pending */
    struct event *writable;
    struct buffer pending;
    size_t passed;  /* bytes at the start of pending that have been written */
    size_t unnamed; /* bytes that taken() has not been told of */
    input_taken_fn *taken;
    void *context;
};

static bool input_has_work(const struct input *in)
{
    return in->fd >= 0 && (in->passed < in->pending.len || in->end_characters > 0);
}

static void input_close(struct input *in)
{
    in->unnamed += in->pending.len - in->passed;
    in->passed = 0;
    in->end_characters = 0;
    buffer_release(&in->pending);
    (void)event_del(in->writable);
    close_fd(&in->fd);
}

/* True when something was written. A broken pipe is the command's choice, not an error. */
static bool input_write_some(struct input *in, const void *data, size_t len, size_t *ret_written)
{
    ssize_t n;
    do
        n = write(in->fd, data, len);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN)
        input_close(in);
    if (n < 0)
        return false;
    *ret_written = (size_t)n;
    return true;
}

static uint8_t end_character(const struct input *in)
{
    struct termios termios;
    return tcgetattr(in->fd, &termios) == 0 ? termios.c_cc[VEOF] : CONTROL_D;
}

static void input_write(struct input *in)
{
    size_t n;
    while (in->fd >= 0 && in->passed < in->pending.len) {
        if (!input_write_some(in, in->pending.data + in->passed, in->pending.len - in->passed, &n))
            break;
        in->passed += n;
        in->unnamed += n;
    }
    if (in->passed > in->pending.len / 2) {
        buffer_consume(&in->pending, in->passed);
        in->passed = 0;
    }
    while (in->fd >= 0 && in->pending.len == 0 && in->end_characters > 0) {
        const uint8_t character = end_character(in);
        if (!input_write_some(in, &character, 1, &n))
            break;
        in->end_characters--;
    }
    if (in->fd >= 0 && in->end && !in->terminal && in->pending.len == 0)
        input_close(in);
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    struct input *in = context;
    input_write(in);
    if (input_has_work(in))
        (void)event_add(in->writable, NULL);
    size_t unnamed = in->unnamed;
    in->unnamed = 0;
    if (unnamed > 0)
        in->taken(in->context, unnamed);
}

int input_new(struct event_base *base, int fd, bool terminal, input_taken_fn *taken, void *context,
              struct input **ret)
{
    _cleanup_free_ struct input *in = calloc(1, sizeof *in);
    if (!in)
        return -ENOMEM;
    in->terminal = terminal;
    in->last_was_newline = true;
    in->taken = taken;
    in->context = context;
    in->writable = event_new(base, fd, EV_WRITE, on_writable, in);
    if (!in->writable)
        return -ENOMEM;
    in->fd = fd;
    *ret = take_ptr(in);
    return 0;
}

void input_free(struct input *in)
{
    if (!in)
        return;
    event_free(in->writable);
    buffer_release(&in->pending);
    close_fd(&in->fd);
    free(in);
}

int input_append(struct input *in, struct bytes data, bool end)
{
    if (in->fd >= 0 && !in->end) {
        int r = buffer_append(&in->pending, data.data, data.len);
        if (r < 0)
            return r;
        if (data.len > 0)
            in->last_was_newline = data.data[data.len - 1] == '\n';
        in->end = end;
        /* On a line of its own one such character ends the input; behind other bytes the
         * first one only hands them over. */
        if (end && in->terminal)
            in->end_characters = in->last_was_newline ? 1 : 2;
        input_write(in);
    } else {
        in->unnamed += data.len;
    }
    /* Told from the loop, so that a caller is never called back from its own call. */
    if (in->unnamed > 0)
        event_active(in->writable, EV_WRITE, 1);
    else if (input_has_work(in))
        (void)event_add(in->writable, NULL);
    return 0;
}
