#include "cli/bounded.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/clock.h"

/* Answers are paths and attributes; more means that something is wrong. */
#define ANSWER_MAX 262144

static void write_all(const void *data, size_t len)
{
    const uint8_t *at = data;
    while (len > 0) {
        ssize_t n = write(STDIN_FILENO, at, len);
        if (n <= 0)
            return;
        at += n;
        len -= (size_t)n;
    }
}

/* The pipe becomes descriptor 0 and all others are closed: a child that cannot die must not
 * keep our standard output open for whoever reads it to the end. */
static void run_child(bounded_fn *work, const void *context, int fd)
{
    _cleanup_buffer_ struct buffer out = {0};
    if (dup2(fd, STDIN_FILENO) < 0)
        _exit(1);
    (void)close_range(1, ~0U, 0);
    int result = work(context, &out);
    write_all(&result, sizeof result);
    if (result == 0)
        write_all(out.data, out.len);
    _exit(0);
}

/* Reads to the end of the pipe. */
static int collect(int fd, uint64_t deadline_ns, struct buffer *answer)
{
    for (;;) {
        uint64_t now = clock_monotonic_ns();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int wait_ms = now >= deadline_ns ? 0 : (int)((deadline_ns - now) / NSEC_PER_MSEC) + 1;
        int n = poll(&p, 1, wait_ms);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -ETIMEDOUT;
        int r = buffer_reserve(answer, 4096);
        if (r < 0)
            return r;
        ssize_t got = read(fd, answer->data + answer->len, 4096);
        if (got == 0)
            return 0;
        if (got < 0 && errno != EINTR)
            return -errno;
        answer->len += got > 0 ? (size_t)got : 0;
        if (answer->len > ANSWER_MAX)
            return -EIO;
    }
}

int bounded_run(bounded_fn *work, const void *context, uint32_t timeout_ms, struct buffer *ret)
{
    int fds[2];
    _cleanup_buffer_ struct buffer answer = {0};
    uint64_t deadline = clock_monotonic_ns() + timeout_ms * NSEC_PER_MSEC;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    _cleanup_close_ int reader = fds[0];
    _cleanup_close_ int writer = fds[1];
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        run_child(work, context, writer);
    close_fd(&writer);
    int r = collect(reader, deadline, &answer);
    if (r < 0) {
        /* Not waited for: it may be in the driver's hands. init reaps it when we have ended. */
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, WNOHANG);
        return r;
    }
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    int result;
    if (answer.len < sizeof result)
        return -EIO;
    memcpy(&result, answer.data, sizeof result);
    if (result < 0)
        return result;
    buffer_consume(&answer, sizeof result);
    *ret = answer;
    answer = (struct buffer){0};
    return 0;
}
