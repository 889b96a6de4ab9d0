#include "stream/bridge.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "terminal/text.h"

#define LINE_MAX_KEPT 240 /* of the last line, for the failure's text */
#define PUMP_BYTES_MAX                                                                     \
    65536                         /* per call: a command that never stops talking must not \
                                     keep us from the stream */
#define END_OF_FILE_GRACE_MS 2000 /* as stream_close promises */
#define TERM_GRACE_MS 500
#define KILL_GRACE_MS 100 /* dies at once, unless the kernel holds it */

/* Bytes shown of what a command says while a connection lasts: whoever is on its other side must
 * fill neither a terminal nor a log. The rest is read and lost. */
#define SHOWN_MAX ((size_t)65536)

/* Whose words they are. */
#define PREFIX "connect: "

struct bridge {
    pid_t pid;
    int pidfd;
    int stderr_fd;
    enum bridge_end end;
    int code;
    char line[LINE_MAX_KEPT]; /* being read */
    size_t line_len;
    size_t shown;
    bool within_line; /* what was shown last */
    uint8_t held[3];  /* the beginning of a character */
    size_t held_len;
    char last[LINE_MAX_KEPT * 4 + 8]; /* escaped */
};

/* Runs in the child after fork(): async-signal-safe calls only. */
static _Noreturn void run_child(const char *text, int socket, int stderr_fd)
{
    /* Signals typed at the terminal go to the whole foreground group. They are meant for our
     * caller, who may still need the stream to pass them on; and a mount outlives the
     * terminal it was made from. */
    static const int typed[] = {SIGINT, SIGQUIT, SIGTSTP, SIGHUP};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct sigaction by_default = {.sa_handler = SIG_DFL};
    for (size_t i = 0; i < ARRAY_SIZE(typed); i++)
        (void)sigaction(typed[i], &ignore, NULL);
    (void)sigaction(SIGPIPE, &by_default, NULL);
    (void)sigaction(SIGCHLD, &by_default, NULL);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    /* None of the two is 0, 1 or 2 (bridge_start sees to it), so dup2 always makes a new
     * descriptor, without close-on-exec. */
    if (dup2(socket, STDIN_FILENO) < 0 || dup2(socket, STDOUT_FILENO) < 0 ||
        dup2(stderr_fd, STDERR_FILENO) < 0)
        _exit(126);
    (void)execl("/bin/sh", "sh", "-c", text, (char *)NULL);
    _exit(127);
}

/* Moves *fd above the standard descriptors, which a caller may have closed. */
static int lift_fd(int *fd)
{
    if (*fd > STDERR_FILENO)
        return 0;
    int lifted = fcntl(*fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (lifted < 0)
        return -errno;
    close_fd(fd);
    *fd = lifted;
    return 0;
}

static void free_bridge(struct bridge *c)
{
    close_fd(&c->pidfd);
    close_fd(&c->stderr_fd);
    free(c);
}
DEFINE_CLEANUP(struct bridge *, free_bridge);

int bridge_start(const char *text, int socket, struct bridge **ret, struct failure *ret_failure)
{
    _cleanup_(free_bridge_pointer) struct bridge *c = calloc(1, sizeof *c);
    if (!c)
        return failure_set(ret_failure, -ENOMEM, "exec:%s: out of memory", text);
    c->pidfd = -1;
    c->stderr_fd = -1;
    _cleanup_close_ int theirs = -1;
    _cleanup_close_ int their_stderr = -1;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        goto failed;
    c->stderr_fd = ends[0];
    their_stderr = ends[1];
    theirs = fcntl(socket, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (theirs < 0 || lift_fd(&their_stderr) < 0 || lift_fd(&c->stderr_fd) < 0 ||
        fcntl(c->stderr_fd, F_SETFL, O_NONBLOCK) < 0)
        goto failed;

    c->pid = fork();
    if (c->pid < 0)
        goto failed;
    if (c->pid == 0)
        run_child(text, theirs, their_stderr);
    /* By pidfd and not by number: after a fork of ours (a driver that becomes a daemon) the
     * command is not our child any more, and its number may come to mean another process. */
    c->pidfd = pidfd_open(c->pid, 0);
    if (c->pidfd < 0) {
        int error = -errno;
        (void)kill(c->pid, SIGKILL);
        (void)waitpid(c->pid, NULL, 0);
        return failure_set(ret_failure, error, "exec:%s: cannot watch the command: %s", text,
                           strerror(-error));
    }
    *ret = take_ptr(c);
    return 0;

failed:;
    int error = -errno;
    return failure_set(ret_failure, error, "exec:%s: cannot start the command: %s", text,
                       strerror(-error));
}

int bridge_stderr_fd(const struct bridge *c)
{
    return c->stderr_fd;
}

static void keep_line(struct bridge *c)
{
    size_t blank = 0;
    while (blank < c->line_len && strchr(" \t\r", c->line[blank]))
        blank++;
    while (c->line_len > blank && strchr(" \t\r", c->line[c->line_len - 1]))
        c->line_len--;
    if (blank < c->line_len)
        (void)log_escape(c->line + blank, c->line_len - blank, c->last, sizeof c->last);
    c->line_len = 0;
}

static void keep_last_line(struct bridge *c, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (data[i] == '\n')
            keep_line(c);
        else if (data[i] && c->line_len < sizeof c->line)
            c->line[c->line_len++] = data[i];
    }
}

/* A line's end does not begin another: what would only move the cursor is left out. */
static int show_part(struct bridge *c, struct buffer *out, const uint8_t *data, size_t len,
                     bool ends)
{
    int r = 0;
    if (len > 0 && !c->within_line)
        r = buffer_append(out, PREFIX, strlen(PREFIX));
    c->within_line = c->within_line || len > 0;
    if (r == 0)
        r = text_escape(out, bytes_of(data, len), TEXT_SENTENCE);
    if (r == 0 && ends && c->within_line) {
        c->within_line = false;
        r = buffer_append(out, "\n", 1);
    }
    return r;
}

/* Bytes at the end that may be the beginning of a character of UTF-8. */
static size_t begun_character(const uint8_t *data, size_t len)
{
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        uint8_t byte = data[len - back];
        if (byte >= 0xc0)
            return back < (byte >= 0xf0 ? 4U : byte >= 0xe0 ? 3U : 2U) ? back : 0;
        if (byte < 0x80)
            return 0;
    }
    return 0;
}

static int show_text(struct bridge *c, struct buffer *out, uint8_t *data, size_t len)
{
    int r = 0;
    for (size_t at = 0; r == 0 && at < len;) {
        size_t end = at;
        for (; end < len && data[end] != '\n' && data[end] != '\r'; end++)
            if (data[end] == '\t')
                data[end] = ' ';
        r = show_part(c, out, data + at, end - at, end < len);
        at = end + 1;
    }
    return r;
}

/* Passes on what the command said; at its end what was held back as well. */
static void show(struct bridge *c, const char *data, size_t len, bool at_end)
{
    _cleanup_buffer_ struct buffer text = {0}, out = {0};
    if (c->shown > SHOWN_MAX)
        return;
    if (buffer_append(&text, c->held, c->held_len) < 0 || buffer_append(&text, data, len) < 0)
        return;
    c->held_len = at_end ? 0 : begun_character(text.data, text.len);
    text.len -= c->held_len;
    if (c->held_len)
        memcpy(c->held, text.data + text.len, c->held_len);
    if (show_text(c, &out, text.data, text.len) < 0)
        return;
    c->shown += out.len;
    if (c->shown > SHOWN_MAX)
        (void)buffer_printf(&out, "%s" PREFIX "(what it says from here on is not shown)\n",
                            c->within_line ? "\n" : "");
    /* Where our own standard error is gone or full, its text is lost, never the stream. */
    if (out.len > 0) {
        ssize_t ignored = write(STDERR_FILENO, out.data, out.len);
        (void)ignored;
    }
}

bool bridge_pump(struct bridge *c)
{
    char chunk[4096];
    for (size_t total = 0; total < PUMP_BYTES_MAX && c->stderr_fd >= 0;) {
        ssize_t n = read(c->stderr_fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n <= 0) {
            show(c, "", 0, true);
            keep_line(c);
            close_fd(&c->stderr_fd);
            return false;
        }
        keep_last_line(c, chunk, (size_t)n);
        show(c, chunk, (size_t)n, false);
        total += (size_t)n;
    }
    return c->stderr_fd >= 0;
}

const char *bridge_last_line(const struct bridge *c)
{
    return c->last;
}

static void reap(struct bridge *c)
{
    siginfo_t info = {0};
    int r;
    do
        r = waitid(P_PIDFD, (id_t)c->pidfd, &info, WEXITED);
    while (r < 0 && errno == EINTR);
    if (r < 0) {
        c->end = BRIDGE_GONE;
    } else {
        c->end = info.si_code == CLD_EXITED ? BRIDGE_EXITED : BRIDGE_SIGNALED;
        c->code = info.si_status;
    }
}

enum bridge_end bridge_wait(struct bridge *c, unsigned timeout_ms, int *ret_code)
{
    uint64_t deadline = clock_monotonic_ns() + timeout_ms * NSEC_PER_MSEC;
    while (c->end == BRIDGE_RUNS) {
        uint64_t now = clock_monotonic_ns();
        int left = now < deadline ? (int)((deadline - now) / NSEC_PER_MSEC) + 1 : 0;
        struct pollfd fds[2] = {{.fd = c->pidfd, .events = POLLIN},
                                {.fd = c->stderr_fd, .events = POLLIN}};
        int n = poll(fds, 2, left);
        if (n < 0 && errno != EINTR)
            break;
        if (n > 0 && fds[1].revents)
            (void)bridge_pump(c);
        if (n > 0 && fds[0].revents) {
            reap(c);
            /* What it wrote before it ended is in the pipe already. */
            (void)bridge_pump(c);
            keep_line(c);
        }
        if (left == 0)
            break;
    }
    *ret_code = c->code;
    return c->end;
}

const char *bridge_describe(struct bridge *c, char *text, size_t size)
{
    int n = 0;
    switch (c->end) {
    case BRIDGE_RUNS:
        n = snprintf(text, size, "closed its output");
        break;
    case BRIDGE_EXITED:
        n = snprintf(text, size, "ended with status %d", c->code);
        break;
    case BRIDGE_SIGNALED:
        n = snprintf(text, size, "was killed by signal %d (%s)", c->code, strsignal(c->code));
        break;
    case BRIDGE_GONE:
        n = snprintf(text, size, "ended");
        break;
    }
    if (n > 0 && (size_t)n < size && c->last[0])
        (void)snprintf(text + n, size - (size_t)n, " and said: %s", c->last);
    return text;
}

void bridge_stop(struct bridge *c, bool abandon)
{
    int code;
    if (bridge_wait(c, abandon ? 0 : END_OF_FILE_GRACE_MS, &code) == BRIDGE_RUNS) {
        (void)pidfd_send_signal(c->pidfd, SIGTERM, NULL, 0);
        if (bridge_wait(c, TERM_GRACE_MS, &code) == BRIDGE_RUNS) {
            (void)pidfd_send_signal(c->pidfd, SIGKILL, NULL, 0);
            (void)bridge_wait(c, KILL_GRACE_MS, &code);
        }
    }
    free_bridge(c);
}
