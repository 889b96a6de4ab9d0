/* Processes that are not the command's. Each is told a PID. */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "attack.h"

static int trace(char **args)
{
    return result_of(ptrace(PTRACE_SEIZE, atoi(args[0]), NULL, NULL));
}

/* Where nothing is mapped: who may not is told so first. */
static int read_memory(char **args)
{
    char byte;
    struct iovec here = {.iov_base = &byte, .iov_len = 1};
    struct iovec there = {.iov_base = (void *)(uintptr_t)16, .iov_len = 1};
    return result_or(process_vm_readv(atoi(args[0]), &here, 1, &there, 1, 0), EFAULT);
}

static int open_proc(const char *pid, const char *name, int flags)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%s/%s", pid, name);
    _cleanup_close_ int fd = open(path, flags | O_CLOEXEC);
    return fd < 0 ? -errno : 0;
}

static int open_memory(char **args)
{
    return open_proc(args[0], "mem", O_RDWR);
}

static int read_environment(char **args)
{
    return open_proc(args[0], "environ", O_RDONLY);
}

static int through_root(char **args)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "/proc/%s/root%s", args[0], args[1]);
    return read_secret(path);
}

static int through_directory(char **args)
{
    return open_proc(args[0], "cwd", O_RDONLY | O_DIRECTORY);
}

/* Its likelihood of being killed when memory is short. */
static int blame(char **args)
{
    return open_proc(args[0], "oom_score_adj", O_WRONLY);
}

static int take_descriptor(char **args)
{
    _cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, atoi(args[0]), 0);
    if (pidfd < 0)
        return -errno;
    return result_of(syscall(SYS_pidfd_getfd, pidfd, 0, 0));
}

static int compare(char **args)
{
    return result_of(syscall(SYS_kcmp, atoi(args[0]), getpid(), KCMP_VM, 0, 0));
}

/* A limit of its own on the time of the processor would end it: here, on core files. */
static int limit(char **args)
{
    struct rlimit now;
    if (prlimit(atoi(args[0]), RLIMIT_CORE, NULL, &now) < 0)
        return -errno;
    return result_of(prlimit(atoi(args[0]), RLIMIT_CORE, &now, NULL));
}

static int slow_down(char **args)
{
    return result_of(setpriority(PRIO_PROCESS, (id_t)atoi(args[0]), 19));
}

static int pin_down(char **args)
{
    cpu_set_t set;
    if (sched_getaffinity(atoi(args[0]), sizeof set, &set) < 0)
        return -errno;
    return result_of(sched_setaffinity(atoi(args[0]), sizeof set, &set));
}

/* How many numbers there may be of processes that have come and gone unseen. */
#define AHEAD 8

/* Stops it, if it may be traced, and looks whether it is that command yet. */
static int catch_one(pid_t pid, const char *command)
{
    char path[64], name[32] = "";
    if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) < 0)
        return -errno;
    (void)ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
    (void)waitpid(pid, NULL, __WALL);
    (void)snprintf(path, sizeof path, "/proc/%d/comm", pid);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, name, sizeof name - 1);
    (void)ptrace(PTRACE_DETACH, pid, NULL, NULL);
    return n > 0 && strncmp(name, command, strlen(command)) != 0 ? 0 : -ENODATA;
}

/* SECONDS. Waits for a process of the service's that has joined the workspace and is not its
 * command yet, and traces it: it has the service's memory. -EPERM: none of those that were seen
 * could be. */
static int catch_child(char **args)
{
    time_t end = time(NULL) + atoi(args[0]);
    int r = -ESRCH;
    pid_t next = getpid() + 1;
    for (int ahead = 0; time(NULL) < end; ahead = (ahead + 1) % AHEAD) {
        int caught = catch_one(next + ahead, args[1]);
        if (caught == 0)
            return 0;
        if (caught == -ESRCH)
            continue;
        /* It is tried until it may be traced, or is gone. */
        next += ahead + (caught == -ENODATA);
        ahead = -1;
        r = caught == -EPERM ? -EPERM : r;
    }
    return r;
}

const struct attack attacks_on_processes[] = {
    {"ptrace", trace, 1},
    {"read-memory", read_memory, 1},
    {"open-memory", open_memory, 1},
    {"environment", read_environment, 1},
    {"proc-root", through_root, 2},
    {"proc-cwd", through_directory, 1},
    {"oom-score", blame, 1},
    {"pidfd-getfd", take_descriptor, 1},
    {"kcmp", compare, 1},
    {"limit", limit, 1},
    {"slow-down", slow_down, 1},
    {"pin-down", pin_down, 1},
    {"catch-child", catch_child, 2},
    {NULL},
};
