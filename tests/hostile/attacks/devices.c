/* Devices, made or found. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/cleanup.h"
#include "attack.h"

/* MAJOR MINOR of a character device, to be read. */
static int make_device(char **args)
{
    (void)unlink("attack-device");
    if (mknod("attack-device", S_IFCHR | 0600,
              makedev((unsigned)atoi(args[0]), (unsigned)atoi(args[1]))) < 0)
        return -errno;
    _cleanup_close_ int fd = open("attack-device", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int r = fd < 0 ? -errno : 0;
    (void)unlink("attack-device");
    return r;
}

/* PATH of one that somebody else has left in the workspace. */
static int open_device(char **args)
{
    _cleanup_close_ int fd = open(args[0], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return fd < 0 ? -errno : 0;
}

const struct attack attacks_on_devices[] = {
    {"make-device", make_device, 2},
    {"open-device", open_device, 1},
    {NULL},
};
