/* Signals to processes that are not the command's: such as are ignored by who does not ask for
 * them. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "attack.h"

/* PID */
static int may_signal(char **args)
{
    return result_of(kill(atoi(args[0]), 0));
}

static int signal_pidfd(char **args)
{
    _cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, atoi(args[0]), 0);
    if (pidfd < 0)
        return -errno;
    return result_of(syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0));
}

/* SIGNAL to everybody. Whether it has reached anybody is not known here. */
static int signal_all(char **args)
{
    (void)signal(atoi(args[0]), SIG_IGN);
    (void)kill(-1, atoi(args[0]));
    return -ENODATA;
}

/* SIGNAL PID: by the kernel, when there is something to read. */
static int signal_by_owner(char **args)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    _cleanup_close_ int one = ends[0];
    _cleanup_close_ int other = ends[1];
    if (fcntl(one, F_SETOWN, atoi(args[1])) < 0 || fcntl(one, F_SETSIG, atoi(args[0])) < 0 ||
        fcntl(one, F_SETFL, O_ASYNC) < 0 || write(other, "x", 1) != 1)
        return -errno;
    return -ENODATA;
}

const struct attack attacks_on_signals[] = {
    {"may-signal", may_signal, 1},
    {"signal-pidfd", signal_pidfd, 1},
    {"signal-all", signal_all, 1},
    {"signal-by-owner", signal_by_owner, 2},
    {NULL},
};
