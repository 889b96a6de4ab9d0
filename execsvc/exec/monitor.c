#include "exec/monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"

/* From the monitor: how the leader ended. To it: the leader may be reaped. */
struct monitor_message {
    int32_t code;
    int32_t status;
};

/* How often a monitor whose service is gone looks for what has come back to it. */
#define ORPHAN_SWEEP_MS 20

/* --- the service's side ---------------------------------------------------------- */

int monitor_wait(struct monitor *m, siginfo_t *ret)
{
    struct monitor_message message;
    ssize_t n;
    do
        n = recv(m->channel, &message, sizeof message, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return -EAGAIN;
    if (n != sizeof message)
        return -EPIPE;
    *ret = (siginfo_t){.si_code = message.code};
    ret->si_status = message.status;
    (void)send(m->channel, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return 0;
}

bool monitor_ended(const struct monitor *m, bool *ret_killed)
{
    siginfo_t info = {0};
    if (waitid(P_PIDFD, (id_t)m->pidfd, &info, WEXITED | WNOHANG | WNOWAIT) < 0) {
        *ret_killed = true;
        return true;
    }
    *ret_killed = info.si_code != CLD_EXITED;
    return info.si_pid != 0;
}

void monitor_wake(const struct monitor *m)
{
    (void)syscall(SYS_pidfd_send_signal, m->pidfd, SIGCONT, NULL, 0);
}

/* --- the monitor: async-signal-safe functions only ------------------------------- */

struct state {
    int channel; /* -1: the service is gone */
    int signals;
    pid_t leader;
    bool reported;
    bool released;
};

/* The leader stays a zombie, and its number its own, until the service has taken the message. */
static void report_leader(struct state *s, const siginfo_t *info)
{
    const struct monitor_message message = {.code = info->si_code, .status = info->si_status};
    if (!s->reported && s->channel >= 0)
        (void)send(s->channel, &message, sizeof message, MSG_NOSIGNAL);
    s->reported = true;
}

/* True when nothing is left. */
static bool reap(struct state *s)
{
    for (;;) {
        siginfo_t info = {0};
        /* Looked at first: if we are killed in between, whoever inherits the leader can still say
         * how it ended. */
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) < 0) {
            if (errno == EINTR)
                continue;
            return errno == ECHILD;
        }
        if (info.si_pid == 0)
            return false;
        if (info.si_pid == s->leader) {
            report_leader(s, &info);
            if (!s->released && s->channel >= 0)
                return false;
        }
        (void)waitid(P_PID, (id_t)info.si_pid, &info, WEXITED | __WALL);
    }
}

/* Those that are children now; theirs come to us when they are dead. Only we can reap them, so
 * their numbers are theirs while we look. */
static void kill_children(const struct state *s)
{
    if (!s->reported)
        (void)kill(-s->leader, SIGKILL);
    _cleanup_close_ int fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    char text[4096];
    pid_t pid = 0;
    ssize_t n;
    while ((n = read(fd, text, sizeof text)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            if (pid > 1)
                (void)kill(pid, SIGKILL);
            pid = 0;
        }
    }
}

static void on_channel(struct state *s)
{
    struct monitor_message message;
    ssize_t n = recv(s->channel, &message, sizeof message, MSG_DONTWAIT);
    if (n == sizeof message)
        s->released = true;
    else if (n >= 0 || (errno != EAGAIN && errno != EINTR))
        close_fd(&s->channel);
}

_Noreturn void monitor_run(int channel, pid_t leader)
{
    struct state s = {.channel = channel, .signals = -1, .leader = leader};
    sigset_t child;
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    s.signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    while (!reap(&s)) {
        struct pollfd fds[] = {{.fd = s.signals, .events = POLLIN},
                               {.fd = s.channel, .events = POLLIN}};
        /* Without a signal descriptor there is nothing but to look now and then. */
        int timeout = s.channel < 0 || s.signals < 0 ? ORPHAN_SWEEP_MS : -1;
        (void)poll(fds, ARRAY_SIZE(fds), timeout);
        struct signalfd_siginfo ignored;
        while (s.signals >= 0 && read(s.signals, &ignored, sizeof ignored) > 0)
            ;
        if (s.channel >= 0 && fds[1].revents)
            on_channel(&s);
        if (s.channel < 0)
            kill_children(&s);
    }
    _exit(0);
}
