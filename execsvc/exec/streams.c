#include "exec/streams.h"

#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "wire/wire.h"

#define DEFAULT_ROWS 24
#define DEFAULT_COLUMNS 80

static const struct streams no_streams = {.child = {-1, -1, -1}, .input = -1, .output = {-1, -1}};

static int set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

/* A pipe of which only our end is non-blocking: the command gets what every program expects. */
static int open_pipe(int *ret_ours, int *ret_theirs, bool we_read)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    *ret_ours = ends[we_read ? 0 : 1];
    *ret_theirs = ends[we_read ? 1 : 0];
    return set_nonblocking(*ret_ours);
}

int streams_resize(int fd, uint32_t rows, uint32_t columns)
{
    const struct winsize size = {
        .ws_row = (unsigned short)(rows && rows <= UINT16_MAX ? rows : DEFAULT_ROWS),
        .ws_col = (unsigned short)(columns && columns <= UINT16_MAX ? columns : DEFAULT_COLUMNS),
    };
    return ioctl(fd, TIOCSWINSZ, &size) < 0 ? -errno : 0;
}

/* Who has asked for a terminal can do something about it, where he is told that it is that. */
static int open_multiplexer(const struct streams_options *o, int *ret, struct failure *f)
{
    const int flags = O_RDWR | O_NOCTTY | O_CLOEXEC;
    *ret = o->terminals < 0 ? posix_openpt(flags) : openat(o->terminals, "ptmx", flags);
    if (*ret >= 0)
        return 0;
    if (errno == ENOSPC)
        return failure_set(f, -errno, "no terminal: the machine has as many as kernel.pty.max");
    return failure_set(f, -errno,
                       o->terminals < 0
                           ? "no terminal: /dev/ptmx: %s; commands have none of their own without "
                             "a mount namespace, and run without -t"
                           : "no terminal: the workspace's /dev/pts: %s",
                       strerror(errno));
}

static int open_terminal(struct streams *s, const struct streams_options *o, struct failure *f)
{
    int r = open_multiplexer(o, &s->output[0], f);
    if (r < 0)
        return r;
    if (grantpt(s->output[0]) < 0 || unlockpt(s->output[0]) < 0)
        return -errno;
    /* By the master, not by name: our /dev/pts may be another than the one it lives in. */
    s->child[0] = ioctl(s->output[0], TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (s->child[0] < 0)
        return -errno;
    r = streams_resize(s->output[0], o->rows, o->columns);
    if (r < 0)
        return r;
    struct termios termios;
    if (tcgetattr(s->child[0], &termios) == 0) {
        termios.c_iflag |= IUTF8; /* erase removes a character, not a byte of it */
        (void)tcsetattr(s->child[0], TCSANOW, &termios);
    }
    s->child[1] = fcntl(s->child[0], F_DUPFD_CLOEXEC, 0);
    s->child[2] = fcntl(s->child[0], F_DUPFD_CLOEXEC, 0);
    s->input = fcntl(s->output[0], F_DUPFD_CLOEXEC, 0);
    if (s->child[1] < 0 || s->child[2] < 0 || s->input < 0)
        return -errno;
    return set_nonblocking(s->output[0]); /* the copy shares the flag */
}

static int open_pipes(struct streams *s, uint32_t flags)
{
    int r;
    if (flags & WIRE_EXEC_STDIN) {
        r = open_pipe(&s->input, &s->child[0], false);
    } else {
        s->child[0] = file_open_null();
        r = s->child[0] < 0 ? s->child[0] : 0;
    }
    if (r < 0)
        return r;
    r = open_pipe(&s->output[0], &s->child[1], true);
    if (r < 0)
        return r;
    if (!(flags & WIRE_EXEC_MERGE))
        return open_pipe(&s->output[1], &s->child[2], true);
    s->child[2] = fcntl(s->child[1], F_DUPFD_CLOEXEC, 0);
    return s->child[2] < 0 ? -errno : 0;
}

int streams_open(const struct streams_options *o, struct streams *ret, struct failure *ret_failure)
{
    struct streams s = no_streams;
    struct failure f = {.text = ""};
    int r = o->flags & WIRE_EXEC_PTY ? open_terminal(&s, o, &f) : open_pipes(&s, o->flags);
    if (r < 0) {
        streams_release(&s);
        return failure_set(ret_failure, r, "%s", f.text[0] ? f.text : strerror(-r));
    }
    *ret = s;
    return 0;
}

void streams_close_child(struct streams *s)
{
    for (size_t i = 0; i < ARRAY_SIZE(s->child); i++)
        close_fd(&s->child[i]);
}

void streams_release(struct streams *s)
{
    streams_close_child(s);
    close_fd(&s->input);
    for (size_t i = 0; i < ARRAY_SIZE(s->output); i++)
        close_fd(&s->output[i]);
}
