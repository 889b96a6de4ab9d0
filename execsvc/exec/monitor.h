/* A subreaper between the service and a command's leader: a forked process that runs no program.
 * Everything below it that loses its parent becomes its child, so it has no children exactly when
 * nothing of the command is left; then it ends. It takes no signals but those nobody can refuse.
 *
 * When its other end closes, because the service was killed, it kills everything below it. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

struct monitor {
    pid_t pid;   /* in our pid namespace; 0: there is none */
    int pidfd;   /* owned */
    int channel; /* owned; readable when monitor_wait may have an answer */
};

#define MONITOR_NONE ((struct monitor){.pid = 0, .pidfd = -1, .channel = -1})

/* How the leader ended (si_code and si_status). -EAGAIN: it runs; -EPIPE: the monitor was killed.
 * After 0 the leader's number may become another process's. */
int monitor_wait(struct monitor *m, siginfo_t *ret);

/* True when it has ended; *ret_killed then tells whether by a signal rather than because nothing
 * was left. Does not reap. */
bool monitor_ended(const struct monitor *m, bool *ret_killed);

/* Lets it go on if somebody has stopped it. */
void monitor_wake(const struct monitor *m);

/* In the forked child, which it never leaves: leader is a child of the caller. Uses
 * async-signal-safe functions alone. */
_Noreturn void monitor_run(int channel, pid_t leader);
