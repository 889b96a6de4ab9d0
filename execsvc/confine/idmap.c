#include "confine/idmap.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>

#include "base/cleanup.h"

/* The number that stands for nobody is still itself: a map must have something. */
#define NOBODY "65534 65534 1"

static int open_of(pid_t pid, const char *name, int flags)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, flags | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int write_map(pid_t pid, const char *name)
{
    _cleanup_close_ int fd = open_of(pid, name, O_WRONLY);
    if (fd < 0)
        return fd;
    return write(fd, NOBODY, strlen(NOBODY)) < 0 ? -errno : 0;
}

static int take_namespace(pid_t pid, int ready, int *ret)
{
    char byte;
    if (read(ready, &byte, 1) != 1)
        return -EPERM;
    int r = write_map(pid, "uid_map");
    if (r == 0)
        r = write_map(pid, "gid_map");
    int fd = r < 0 ? r : open_of(pid, "ns/user", O_RDONLY);
    if (fd < 0)
        return fd;
    *ret = fd;
    return 0;
}

int idmap_new(int *ret)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    _cleanup_close_ int ready = ends[0];
    _cleanup_close_ int tell = ends[1];
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWUSER) < 0 || write(tell, "", 1) != 1)
            _exit(1);
        for (;;)
            (void)pause();
    }
    if (pid < 0)
        return -errno;
    close_fd(&tell);
    int r = take_namespace(pid, ready, ret);
    (void)kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return r;
}

int idmap_apply(int idmap, int mount)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)idmap};
    return syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr) <
                   0
               ? -errno
               : 0;
}
