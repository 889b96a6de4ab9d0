/* Typing for whoever looks on. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "attack.h"

/* Into a terminal of its own, which is what it could do to the one it was started on. */
static int type_into(char **args)
{
    _cleanup_close_ int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
        return -errno;
    char name[64];
    if (ptsname_r(master, name, sizeof name) != 0)
        return -ENOTTY;
    /* Its end is ours, else. */
    (void)signal(SIGHUP, SIG_IGN);
    (void)setsid();
    _cleanup_close_ int slave = open(name, O_RDWR | O_CLOEXEC);
    if (slave < 0 || ioctl(slave, TIOCSCTTY, 0) < 0)
        return -errno;
    return result_of(ioctl(slave, TIOCSTI, "x"));
}

/* PATH of a console: what its shift keys are at. */
static int console(char **args)
{
    char question = 6;
    _cleanup_close_ int fd = open(args[0], O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return result_of(ioctl(fd, TIOCLINUX, &question));
}

/* PATH of a terminal of the machine's. */
static int write_to(char **args)
{
    _cleanup_close_ int fd = open(args[0], O_WRONLY | O_NOCTTY | O_CLOEXEC);
    return fd < 0 ? -errno : 0;
}

const struct attack attacks_on_terminals[] = {
    {"type-into", type_into, 0},
    {"console", console, 1},
    {"terminal", write_to, 1},
    {NULL},
};
