/* Namespaces: new ones, in which one is root, and those of others. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "attack.h"

static int part(char **args)
{
    return result_of(unshare(CLONE_NEWUSER));
}

/* In the child, which has nothing to do, it does not return. */
static int born(pid_t pid)
{
    if (pid == 0)
        _exit(0);
    if (pid < 0)
        return -errno;
    (void)waitpid(pid, NULL, 0);
    return 0;
}

static int born_apart(char **args)
{
    return born((pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
}

static int born_apart_by_clone3(char **args)
{
    struct clone_args a = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    return born((pid_t)syscall(SYS_clone3, &a, sizeof a));
}

/* PATH. As root of a namespace of its own: what is hidden, uncovered. What hides it is no file. */
static int uncover(char **args)
{
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return -errno;
    (void)umount2(args[0], MNT_DETACH);
    struct stat st;
    _cleanup_close_ int fd = open(args[0], O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    return S_ISREG(st.st_mode) ? 0 : -ENODATA;
}

/* PATH. The same: what is read-only, writable. Where it is no mount, nothing made it read-only. */
static int make_writable(char **args)
{
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return -errno;
    return result_or(mount(NULL, args[0], NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL),
                     EINVAL);
}

/* PID */
static int enter(char **args)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%s/ns/mnt", args[0]);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : result_of(setns(fd, 0));
}

/* A new /proc, in which nothing is hidden. */
static int mount_proc(char **args)
{
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        _exit(mount("proc", "/proc", "proc", 0, NULL) < 0 ? errno : 0);
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return -errno;
    return -WEXITSTATUS(status);
}

const struct attack attacks_on_namespaces[] = {
    {"unshare-user", part, 0},
    {"clone-user", born_apart, 0},
    {"clone3-user", born_apart_by_clone3, 0},
    {"uncover", uncover, 1},
    {"make-writable", make_writable, 1},
    {"setns", enter, 1},
    {"mount-proc", mount_proc, 0},
    {NULL},
};
