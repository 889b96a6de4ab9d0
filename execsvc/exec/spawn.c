#include "exec/spawn.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "confine/cgroup.h"
#include "confine/restraint.h"
#include "confine/sandbox.h"
#include "exec/beneath.h"

/* Numbers of descriptors in the child. Everything from FIRST_CLOSED on is closed. */
enum child_fd { CHILD_REPORT = 3, CHILD_ROOT = 4, CHILD_LANDLOCK = 5, CHILD_FIRST_CLOSED = 6 };

/* Above all numbers of child_fd: where sources are moved to before they are put in place, so
 * that putting one in place never overwrites another. */
#define CHILD_SCRATCH 16

#define SIGNAL_COUNT 64

/* Nicer to ourselves than a command can be, and less so than what keeps a machine alive. */
#define SERVICE_NICE (-11)

/* How long a monitor may take to fork the leader; far above what it needs on a machine
 * that is busy. */
#define HANDOFF_MS 10000

struct child_report {
    int32_t stage;
    int32_t error;
    uint32_t program;
    uint32_t exists;
};

/* From the monitor, with the pidfd of the leader. */
struct handoff {
    int32_t stage; /* and error: why there is none */
    int32_t error;
};

/* The kernel's own sigaction: glibc hides two signals that it uses itself, and an ignored
 * one would stay ignored in the command. */
struct kernel_sigaction {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

static bool oom_score_is_negative(void)
{
    _cleanup_close_ int fd = open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC);
    char first = 0;
    return fd >= 0 && read(fd, &first, 1) == 1 && first == '-';
}

void spawn_limits_read(struct spawn_limits *ret)
{
    *ret = (struct spawn_limits){.nice = getpriority(PRIO_PROCESS, 0),
                                 .reset_oom_score = oom_score_is_negative()};
    (void)getrlimit(RLIMIT_NOFILE, &ret->nofile);
    (void)getrlimit(RLIMIT_CORE, &ret->core);
}

_Noreturn void spawn_self(const struct spawn_limits *limits, char *const argv[])
{
    sigset_t none;
    (void)setrlimit(RLIMIT_NOFILE, &limits->nofile);
    (void)setrlimit(RLIMIT_CORE, &limits->core);
    (void)setpriority(PRIO_PROCESS, 0, limits->nice);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)execv("/proc/self/exe", argv);
    _exit(127);
}

void spawn_raise_priority(void)
{
    if (getpriority(PRIO_PROCESS, 0) <= SERVICE_NICE ||
        setpriority(PRIO_PROCESS, 0, SERVICE_NICE) < 0)
        return;
    /* Where the kernel groups processes by session, niceness counts within the session alone; the
     * session has its own. Not when it is somebody else's, a shell's for example. */
    _cleanup_close_ int fd = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
    char text[16];
    int len = snprintf(text, sizeof text, "%d", SERVICE_NICE);
    if (fd >= 0 && getsid(0) == getpid()) {
        ssize_t n = write(fd, text, (size_t)len);
        (void)n;
    }
}

void spawn_raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static void signal_mask_set(const uint64_t *set, uint64_t *ret_old)
{
    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, set, ret_old, sizeof *set);
}

/* --- in the child: async-signal-safe functions only ------------------------------ */

static _Noreturn void child_fail(int report, enum wire_exec_stage stage, int error,
                                 uint32_t program, bool exists)
{
    struct child_report message = {
        .stage = stage, .error = error, .program = program, .exists = exists};
    /* Smaller than PIPE_BUF, so whole or not at all; if nobody reads there is nobody to tell. */
    ssize_t n = write(report, &message, sizeof message);
    (void)n;
    _exit(127);
}

static void child_reset_signals(void)
{
    const struct kernel_sigaction action = {.handler = SIG_DFL};
    for (int signal = 1; signal <= SIGNAL_COUNT; signal++)
        (void)syscall(SYS_rt_sigaction, signal, &action, NULL, sizeof action.mask);
}

/* Where close_range is missing. Everything of ours is close-on-exec, so this catches only
 * what a library or our own parent leaked. */
static void child_close_by_steps(unsigned int first)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    for (unsigned int fd = first; fd < limit.rlim_cur; fd++)
        (void)close((int)fd);
}

static int child_place_descriptors(const struct spawn_options *options, int *report)
{
    const struct restraint *restraint = options->place ? options->place->restraint : NULL;
    int source[CHILD_FIRST_CLOSED] = {options->streams[0], options->streams[1],
                                      options->streams[2], *report,
                                      options->root,       restraint ? restraint->landlock : -1};
    for (size_t i = 0; i < ARRAY_SIZE(source); i++) {
        if (source[i] < 0)
            continue;
        source[i] = fcntl(source[i], F_DUPFD_CLOEXEC, CHILD_SCRATCH);
        if (source[i] < 0)
            return -errno;
    }
    /* From here on a failure is reported through the copy, whatever dup3 overwrites. */
    *report = source[CHILD_REPORT];
    for (int i = 0; i < CHILD_FIRST_CLOSED; i++) {
        if (source[i] < 0)
            (void)close(i);
        else if (dup3(source[i], i, i < CHILD_REPORT ? 0 : O_CLOEXEC) < 0)
            return -errno;
    }
    *report = CHILD_REPORT;
    if (syscall(SYS_close_range, CHILD_FIRST_CLOSED, ~0U, 0) < 0)
        child_close_by_steps(CHILD_FIRST_CLOSED);
    return 0;
}

static void child_reset_oom_score(void)
{
    /* Without /proc there is nothing to write to, and no reason to refuse the command. */
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = write(fd, "0", 1);
    (void)n;
    (void)close(fd);
}

static int child_set_up(const struct spawn_options *options, int *report)
{
    child_reset_signals();
    if (setsid() < 0)
        return -errno;
    /* Lower than ours is always permitted. */
    if (getpriority(PRIO_PROCESS, 0) < options->limits->nice)
        (void)setpriority(PRIO_PROCESS, 0, options->limits->nice);
    int r = child_place_descriptors(options, report);
    if (r < 0)
        return r;
    /* After setsid: only a session leader without a terminal can take one. */
    if (options->terminal && ioctl(STDIN_FILENO, TIOCSCTTY, 0) < 0)
        return -errno;
    (void)umask(022);
    /* After close_range: a lower limit does not close what is above it. */
    if (setrlimit(RLIMIT_NOFILE, &options->limits->nofile) < 0 ||
        setrlimit(RLIMIT_CORE, &options->limits->core) < 0)
        return -errno;
    if (options->limits->reset_oom_score)
        child_reset_oom_score();
    return 0;
}

/* In a sandbox the workspace is reached through a mount of the sandbox's own, or a path from there
 * would lead nowhere: found by its name, and the same by its identity. */
static int child_enter_root(const char *path)
{
    struct stat outside, inside;
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(CHILD_ROOT, &outside) < 0 || fstat(fd, &inside) < 0)
        return -errno;
    if (outside.st_dev != inside.st_dev || outside.st_ino != inside.st_ino)
        return -ESTALE;
    if (dup3(fd, CHILD_ROOT, O_CLOEXEC) < 0)
        return -errno;
    (void)close(fd);
    return 0;
}

static int child_change_directory(const struct spawn_options *options, const char *root_path)
{
    if (root_path[0]) {
        int r = child_enter_root(root_path);
        if (r < 0)
            return r;
    }

    int fd = beneath_open_directory(CHILD_ROOT, options->cwd);
    if (fd < 0)
        return fd;
    if (fchdir(fd) < 0)
        return -errno;
    (void)close(fd);
    return 0;
}

/* True for errors that mean "not here, try the next element of PATH". */
static bool search_goes_on(int error)
{
    return error == ENOENT || error == ENOTDIR || error == EACCES || error == ELOOP ||
           error == ENAMETOOLONG || error == ESTALE || error == ENODEV || error == ETIMEDOUT;
}

static _Noreturn void child_execute(const struct spawn_options *options, int report)
{
    int error = ENOENT;
    uint32_t failed = 0;
    for (uint32_t i = 0; options->programs && options->programs[i]; i++) {
        (void)execve(options->programs[i], options->argv, options->envp);
        int e = errno;
        if (e == ENOENT && faccessat(AT_FDCWD, options->programs[i], F_OK, 0) == 0)
            child_fail(report, WIRE_STAGE_EXECVE, -ENOENT, i, true);
        if (!search_goes_on(e))
            child_fail(report, WIRE_STAGE_EXECVE, -e, i, false);
        /* A program that is there but may not be run is the better answer than a later
         * element that has none. */
        if (i == 0 || (e == EACCES && error != EACCES)) {
            error = e;
            failed = i;
        }
    }
    child_fail(report, WIRE_STAGE_EXECVE, -error, failed, false);
}

static _Noreturn void child_run(const struct spawn_options *options, const char *root_path,
                                int report)
{
    int r = child_set_up(options, &report);
    if (r < 0)
        child_fail(report, WIRE_STAGE_SETUP, r, 0, false);
    r = child_change_directory(options, root_path);
    if (r < 0)
        child_fail(report, WIRE_STAGE_CWD, r, 0, false);
    const struct spawn_place *place = options->place;
    uint32_t step = 0;
    if (place && place->restraint)
        r = restraint_enter(place->restraint, place->restraint->landlock < 0 ? -1 : CHILD_LANDLOCK,
                            &step);
    if (r < 0)
        child_fail(report, step < RESTRAINT_MEASURE ? WIRE_STAGE_CONFINE : WIRE_STAGE_ATTEST, r,
                   step, true);
    /* Last: a signal that came meanwhile now finds its default action. */
    const uint64_t none = 0;
    signal_mask_set(&none, NULL);
    child_execute(options, report);
}

/* --- forking --------------------------------------------------------------------- */

/* What is forked for, and from what. */
struct birth {
    const struct spawn_options *options;
    char root_path[PATH_MAX]; /* of the workspace, when there is a sandbox; else "" */
    int report;
    int channel; /* to a monitor: its end */
    int gate[2]; /* a monitored leader begins when something is written here: we know it by then */
    pid_t born;  /* by an usher, or a negative errno */
    int pidfd;   /* likewise */
    enum wire_exec_stage stage; /* at which it has failed */
};

/* Without clone3 (before Linux 5.3, or behind a seccomp filter), or without its flag for cgroups.
 */
static pid_t clone_the_old_way(uint64_t flags, int cgroup, int *ret_pidfd)
{
    long signal = flags & CLONE_PARENT ? 0 : SIGCHLD;
    pid_t pid = (pid_t)syscall(SYS_clone, (long)flags | CLONE_PIDFD | signal, 0, ret_pidfd, 0, 0);
    /* So that it is there when we return. */
    if (pid > 0 && cgroup >= 0)
        (void)cgroup_join(cgroup, pid);
    return pid < 0 ? -errno : pid;
}

/* flags: 0 or CLONE_PARENT. *ret_joins: the child is not in its cgroup, and must join it before it
 * does anything else. */
static pid_t clone_with_pidfd(uint64_t flags, int cgroup, int *ret_pidfd, bool *ret_joins)
{
    struct clone_args args = {
        .flags = flags | CLONE_PIDFD | CLONE_CLEAR_SIGHAND | (cgroup >= 0 ? CLONE_INTO_CGROUP : 0),
        .pidfd = (uint64_t)(uintptr_t)ret_pidfd,
        .exit_signal = flags & CLONE_PARENT ? 0 : SIGCHLD,
        .cgroup = cgroup >= 0 ? (uint64_t)cgroup : 0,
    };
    *ret_joins = false;
    long pid = syscall(SYS_clone3, &args, sizeof args);
    /* EINVAL, E2BIG: a kernel that has clone3 but not the flag or field; EPERM: filters of old
     * container engines. */
    if (pid < 0 && (errno == ENOSYS || errno == EINVAL || errno == E2BIG || errno == EPERM)) {
        *ret_joins = cgroup >= 0;
        return clone_the_old_way(flags, cgroup, ret_pidfd);
    }
    return pid < 0 ? -errno : (pid_t)pid;
}

/* --- monitor and usher: async-signal-safe functions only -------------------------- */

static void handoff_send(int channel, const struct handoff *handoff, int pidfd)
{
    struct iovec data = {.iov_base = (void *)(uintptr_t)handoff, .iov_len = sizeof *handoff};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};
    if (pidfd >= 0) {
        m.msg_control = control.space;
        m.msg_controllen = sizeof control.space;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pidfd, sizeof pidfd);
    }
    (void)sendmsg(channel, &m, MSG_NOSIGNAL);
}

static _Noreturn void handoff_fail(const struct birth *b, enum wire_exec_stage stage, int error)
{
    const struct handoff failed = {.stage = stage, .error = error};
    handoff_send(b->channel, &failed, -1);
    _exit(0);
}

static _Noreturn void leader_run(const struct birth *b, bool joins)
{
    int r = joins ? cgroup_join(b->options->place->cgroup, 0) : 0;
    if (r < 0)
        child_fail(b->report, WIRE_STAGE_SETUP, r, 0, false);
    child_run(b->options, b->root_path, b->report);
}

/* A command may kill its monitor as the first thing it does, and be reaped by others when it ends:
 * it must not begin before the service knows its number. */
static void gate_pass(const struct birth *b)
{
    char go;
    ssize_t n;
    (void)close(b->gate[1]);
    while ((n = read(b->gate[0], &go, 1)) < 0 && errno == EINTR)
        ;
    if (n != 1)
        _exit(127); /* it has given us up */
}

static _Noreturn void monitor_child(const struct birth *b)
{
    child_reset_signals();
    /* Out of reach of what signals a group. Not of the session: the kernel's scheduler may share
     * the processor out by session, and ours has a raised priority. */
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_NAME, "berth-monitor");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        handoff_fail(b, WIRE_STAGE_FORK, -errno);
    int pidfd = -1;
    bool joins;
    pid_t pid = clone_with_pidfd(0, -1, &pidfd, &joins);
    if (pid == 0) {
        gate_pass(b);
        leader_run(b, joins);
    }
    if (pid < 0)
        handoff_fail(b, WIRE_STAGE_FORK, pid);
    const struct handoff leader = {0};
    handoff_send(b->channel, &leader, pidfd);
    /* Whoever waits for the end of a pipe must not wait for us, whichever command's it is. */
    int fd = dup3(b->channel, 0, O_CLOEXEC);
    if (fd < 0 || syscall(SYS_close_range, 1, ~0U, 0) < 0)
        child_close_by_steps(1);
    monitor_run(0, pid);
}

static _Noreturn void first_run(const struct birth *b, bool joins)
{
    if (b->options->place && b->options->place->monitored)
        monitor_child(b);
    leader_run(b, joins);
}

/* In the sandbox, as its visitor: forks a child of its own parent's. */
static int usher_run(void *context)
{
    struct birth *b = context;
    bool joins;
    b->stage = WIRE_STAGE_FORK;
    b->born = clone_with_pidfd(CLONE_PARENT, b->options->place->cgroup, &b->pidfd, &joins);
    if (b->born == 0)
        first_run(b, joins);
    return b->born < 0 ? b->born : 0;
}

/* --- in the parent --------------------------------------------------------------- */

/* One descriptor, as long as somebody can still send one. */
static int handoff_receive(int channel, struct handoff *ret, int *ret_pidfd)
{
    struct pollfd ready = {.fd = channel, .events = POLLIN};
    int n;
    while ((n = poll(&ready, 1, HANDOFF_MS)) < 0 && errno == EINTR)
        ;
    if (n == 0)
        return -ETIMEDOUT;
    struct iovec data = {.iov_base = ret, .iov_len = sizeof *ret};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr m = {.msg_iov = &data,
                       .msg_iovlen = 1,
                       .msg_control = control.space,
                       .msg_controllen = sizeof control.space};
    ssize_t got = recvmsg(channel, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got != sizeof *ret)
        return got < 0 ? -errno : -ECHILD; /* it was killed */
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *ret_pidfd = -1;
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(ret_pidfd, CMSG_DATA(c), sizeof *ret_pidfd);
    if (ret->error < 0)
        return ret->error;
    return *ret_pidfd < 0 ? -EMFILE : 0;
}

/* The number of a pidfd's process as this process sees it. -ESRCH when it has been reaped. */
static pid_t pidfd_pid(int pidfd)
{
    char path[64], text[512];
    (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n < 0)
        return -errno;
    text[n] = 0;
    const char *line = strstr(text, "\nPid:");
    long pid = line ? strtol(line + 5, NULL, 10) : -1;
    return pid > 0 ? (pid_t)pid : -ESRCH;
}

static void kill_and_reap(int *pidfd)
{
    siginfo_t info;
    if (*pidfd >= 0 && syscall(SYS_pidfd_send_signal, *pidfd, SIGKILL, NULL, 0) == 0)
        while (waitid(P_PIDFD, (id_t)*pidfd, &info, WEXITED | __WALL) < 0 && errno == EINTR)
            ;
    close_fd(pidfd);
}

/* Takes the leader that the monitor hands over. */
static int take_over(int channel, struct spawn_child *child, enum wire_exec_stage *ret_stage)
{
    struct handoff handoff = {.stage = WIRE_STAGE_FORK};
    int r = handoff_receive(channel, &handoff, &child->pidfd);
    *ret_stage = (enum wire_exec_stage)handoff.stage;
    if (r < 0)
        return r;
    *ret_stage = WIRE_STAGE_FORK;
    child->pid = pidfd_pid(child->pidfd);
    return child->pid < 0 ? child->pid : 0;
}

/* The first process of a command: its monitor or, without one, its leader. */
static int first_start(struct birth *b)
{
    const struct spawn_place *place = b->options->place;
    if (place && place->sandbox) {
        b->stage = WIRE_STAGE_CONFINE;
        int r = sandbox_visit(place->sandbox, place->mounts, usher_run, b);
        return b->born > 0 ? 0 : r;
    }
    bool joins;
    b->born = clone_with_pidfd(0, place ? place->cgroup : -1, &b->pidfd, &joins);
    if (b->born == 0)
        first_run(b, joins);
    return b->born < 0 ? b->born : 0;
}

static int start_monitored(struct birth *b, struct spawn_child *child,
                           enum wire_exec_stage *ret_stage)
{
    int ends[2];
    *ret_stage = WIRE_STAGE_PIPES;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    _cleanup_close_ int ours = ends[0];
    _cleanup_close_ int theirs = ends[1];
    if (pipe2(b->gate, O_CLOEXEC) < 0)
        return -errno;
    _cleanup_close_ int gate_read = b->gate[0];
    _cleanup_close_ int gate_write = b->gate[1];
    b->channel = theirs;
    int r = first_start(b);
    *ret_stage = b->stage;
    if (r < 0)
        return r;
    child->monitor = (struct monitor){.pid = b->born, .pidfd = b->pidfd, .channel = -1};
    close_fd(&theirs);
    close_fd(&gate_read);
    r = take_over(ours, child, ret_stage);
    if (r < 0) {
        kill_and_reap(&child->monitor.pidfd);
        close_fd(&child->pidfd);
        return r;
    }
    child->monitor.channel = take_fd(&ours);
    ssize_t n = write(gate_write, "", 1);
    (void)n;
    return 0;
}

static int start_plain(struct birth *b, struct spawn_child *child, enum wire_exec_stage *ret_stage)
{
    int r = first_start(b);
    *ret_stage = b->stage;
    if (r < 0)
        return r;
    child->pid = b->born;
    child->pidfd = b->pidfd;
    return 0;
}

static int read_root_path(struct birth *b)
{
    char link[64];
    const char *seen = b->options->root_path;
    if (seen) {
        if (strlen(seen) >= sizeof b->root_path)
            return -ENAMETOOLONG;
        strcpy(b->root_path, seen);
        return 0;
    }
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", b->options->root);
    ssize_t n = readlink(link, b->root_path, sizeof b->root_path - 1);
    if (n < 0)
        return -errno;
    b->root_path[n] = 0;
    return 0;
}

int spawn_start(const struct spawn_options *options, struct spawn_child *ret,
                enum wire_exec_stage *ret_stage)
{
    const struct spawn_place *place = options->place;
    int report[2];
    *ret_stage = WIRE_STAGE_PIPES;
    if (pipe2(report, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    _cleanup_close_ int report_read = report[0];
    _cleanup_close_ int report_write = report[1];
    struct spawn_child child = SPAWN_CHILD_NONE;
    struct birth b = {.options = options,
                      .report = report_write,
                      .channel = -1,
                      .gate = {-1, -1},
                      .pidfd = -1,
                      .stage = WIRE_STAGE_FORK};
    *ret_stage = WIRE_STAGE_CONFINE;
    int r = place && place->sandbox ? read_root_path(&b) : 0;
    if (r < 0)
        return r;

    /* No handler of ours may run in the child, where its locks and pipes are the parent's. */
    const uint64_t all = ~UINT64_C(0);
    uint64_t old;
    *ret_stage = WIRE_STAGE_FORK;
    signal_mask_set(&all, &old);
    r = place && place->monitored ? start_monitored(&b, &child, ret_stage)
                                  : start_plain(&b, &child, ret_stage);
    signal_mask_set(&old, NULL);
    if (r < 0)
        return r;
    child.report = take_fd(&report_read);
    *ret = child;
    return 0;
}

int spawn_report_read(int report, struct spawn_report *ret)
{
    struct child_report message;
    ssize_t n;
    do
        n = read(report, &message, sizeof message);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return -EAGAIN;
    *ret = (struct spawn_report){.stage = WIRE_STAGE_NONE};
    if (n == sizeof message) {
        ret->stage = (enum wire_exec_stage)message.stage;
        ret->error = message.error;
        ret->program = message.program;
        ret->exists = message.exists != 0;
    }
    return 0;
}
