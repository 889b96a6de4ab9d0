#include "server/gateway_link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "gateway/process.h"
#include "server/errand.h"
#include "server/starter.h"

/* One that lived for longer ended for another reason than the one before it. */
#define LIVED_S 10

/* It has this long to end when it is asked to. */
#define END_TRIES 100 /* of 10 ms */

#define SCRATCH_FD 16

static _Noreturn void become_gateway(const struct gateway_link *g, int control, pid_t starter)
{
    const char *const argv[] = {"berthd",      "--gateway",
                                "--root",      g->root,
                                "--log-level", log_level_name(g->settings->log_level),
                                "--confine",   config_confine_word(g->settings->confine),
                                NULL};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != starter || (control = fcntl(control, F_DUPFD_CLOEXEC, SCRATCH_FD)) < 0 ||
        dup2(control, GATEWAY_FD) < 0)
        _exit(127);
    spawn_self(g->limits, (char **)(uintptr_t)argv);
}

static int start(struct gateway_link *g, struct failure *f)
{
    int ends[2];
    pid_t self = getpid();
    uint64_t now = clock_monotonic_ns();
    if (g->ended_ns > 0 && now - g->ended_ns < g->delay_ms * NSEC_PER_MSEC)
        return failure_set(f, -EBUSY, "what answers HTTP has crashed, and is started again soon");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return failure_set(f, -errno, "a socket: %s", strerror(errno));
    close_fd(&g->control);
    _cleanup_close_ int theirs = ends[1];
    g->control = ends[0];
    (void)fcntl(g->control, F_SETFL, O_NONBLOCK); /* it is not waited for */
    pid_t pid = fork();
    if (pid == 0)
        become_gateway(g, theirs, self);
    if (pid < 0)
        return failure_set(f, -errno, "what answers HTTP cannot be started: %s", strerror(errno));
    g->pid = pid;
    g->started_ns = now;
    return 0;
}

int gateway_link_open(struct gateway_link *g, const char *ticket, int *ret_fd, struct failure *f)
{
    int ends[2];
    struct errand e = {.kind = ERRAND_CONNECTION};
    int r = g->pid > 0 ? 0 : start(g, f);
    if (r < 0)
        return r;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
        return failure_set(f, -errno, "a socket: %s", strerror(errno));
    _cleanup_close_ int ours = ends[0];
    _cleanup_close_ int theirs = ends[1];
    (void)snprintf(e.text, sizeof e.text, "%s", ticket);
    r = errand_send(g->control, &e, theirs);
    if (r < 0)
        return failure_set(f, r == -EAGAIN ? -EBUSY : r, "what answers HTTP takes nothing: %s",
                           strerror(-r));
    *ret_fd = take_fd(&ours);
    return 0;
}

bool gateway_link_reaped(struct gateway_link *g, pid_t pid, int status)
{
    if (pid != g->pid)
        return false;
    g->pid = 0;
    g->ended_ns = clock_monotonic_ns();
    close_fd(&g->control);
    if (WIFSIGNALED(status))
        log_error("what answers HTTP was ended by signal %d (%s)", WTERMSIG(status),
                  sigdescr_np(WTERMSIG(status)));
    else
        log_error("what answers HTTP ended with status %d", WEXITSTATUS(status));
    if (g->ended_ns - g->started_ns > LIVED_S * NSEC_PER_SEC)
        g->delay_ms = 0;
    else
        g->delay_ms = g->delay_ms == 0                         ? STARTER_DELAY_MS
                      : 2 * g->delay_ms < STARTER_DELAY_MAX_MS ? 2 * g->delay_ms
                                                               : STARTER_DELAY_MAX_MS;
    return true;
}

void gateway_link_close(struct gateway_link *g)
{
    int status;
    close_fd(&g->control);
    for (int i = 0; g->pid > 0 && i < END_TRIES; i++) {
        if (waitpid(g->pid, &status, WNOHANG) != 0)
            g->pid = 0;
        else
            (void)poll(NULL, 0, 10);
    }
    if (g->pid > 0)
        (void)kill(g->pid, SIGKILL);
    while (g->pid > 0 && waitpid(g->pid, &status, 0) < 0 && errno == EINTR)
        ;
    g->pid = 0;
}

void gateway_link_forget(struct gateway_link *g)
{
    close_fd(&g->control);
    g->pid = 0;
}
