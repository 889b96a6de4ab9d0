#include "confine/syscalls.h"

#include <linux/fs.h>
#include <linux/net.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cleanup.h"

#define NAMESPACES_COUNT ARRAY_SIZE(namespaces)

/* Of socket's and socketpair's type; above it are flags. */
#define SOCK_TYPE 0xf

/* Of ioprio_set, which the C library does not have. */
#define IOPRIO_USER 3

static const uint64_t namespaces[] = {
    CLONE_NEWNS,   CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC,
    CLONE_NEWUSER, CLONE_NEWPID,    CLONE_NEWNET, 0x80 /* time */};

/* By name: libseccomp may be older than the call, and a call may not be this machine's. */
static const char *const refused[] = {
    /* mounts, and names from beyond them */
    "mount", "umount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr",
    "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "open_by_handle_at",
    "swapon", "swapoff", "quotactl", "quotactl_fd", "acct",
    /* namespaces of others */
    "setns",
    /* the kernel itself */
    "init_module", "finit_module", "delete_module", "create_module", "kexec_load",
    "kexec_file_load", "reboot", "bpf", "perf_event_open", "lookup_dcookie", "syslog", "iopl",
    "ioperm", "vm86", "vm86old", "nfsservctl", "uselib", "sysfs", "_sysctl", "vhangup",
    "fanotify_init",
    /* what faults can be held up with: half of most attacks on the kernel */
    "userfaultfd",
    /* the clock */
    "settimeofday", "clock_settime", "clock_settime64", "clock_adjtime", "clock_adjtime64",
    "adjtimex", "stime",
    /* keys are the user's, not the namespace's */
    "add_key", "request_key", "keyctl"};

/* Programs do without these where a kernel does not have them: io_uring goes past this filter, and
 * clone3 has its flags where a filter cannot see them. */
static const char *const absent[] = {"io_uring_setup", "io_uring_enter", "io_uring_register",
                                     "clone3"};

/* Calls that libseccomp has no names for yet, and whose number is the same for all architectures:
 * file_setattr, which sets what some ioctls set. */
static const struct sock_filter too_new[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 469, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
};

static const char *const tracing[] = {"ptrace",      "process_vm_readv", "process_vm_writev",
                                      "pidfd_getfd", "process_madvise",  "kcmp"};

/* Of System V, and queues of POSIX: by numbers and names that are the machine's. */
static const char *const ipc[] = {
    "shmget",  "shmat",    "shmdt", "shmctl", "msgget", "msgsnd",     "msgrcv",
    "msgctl",  "semget",   "semop", "semctl", "ipc",    "semtimedop", "semtimedop_time64",
    "mq_open", "mq_unlink"};

/* Each has a process's number, and 0 for the caller, as its first argument. A limit on the time of
 * the processor ends whom it is set for. */
static const char *const of_others[] = {"prlimit64",          "sched_setaffinity", "sched_setattr",
                                        "sched_setscheduler", "sched_setparam",    "migrate_pages",
                                        "move_pages"};

static int refuse(scmp_filter_ctx ctx, const char *const *names, size_t count, int error)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < count; i++) {
        int number = seccomp_syscall_resolve_name(names[i]);
        /* A negative one stands for a call that only the other architecture has. */
        if (number != __NR_SCMP_ERROR)
            r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO((unsigned)error), number, 0);
    }
    return r;
}

static int refuse_namespaces(scmp_filter_ctx ctx)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < NAMESPACES_COUNT; i++) {
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(unshare), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, namespaces[i], namespaces[i]));
        /* The signal to send at the end is in the lowest byte of clone's flags. */
        if (r == 0 && namespaces[i] > 0xff)
            r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                                 SCMP_A0(SCMP_CMP_MASKED_EQ, namespaces[i], namespaces[i]));
    }
    return r;
}

static int refuse_others(scmp_filter_ctx ctx)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(of_others); i++) {
        int number = seccomp_syscall_resolve_name(of_others[i]);
        if (number >= 0)
            r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), number, 1, SCMP_A0(SCMP_CMP_NE, 0));
    }
    /* Here the first says of what kind the second is; a user's are all of the service's. */
    const struct {
        int number;
        unsigned user;
    } kinds[] = {{SCMP_SYS(setpriority), PRIO_USER}, {SCMP_SYS(ioprio_set), IOPRIO_USER}};
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(kinds); i++) {
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), kinds[i].number, 1,
                             SCMP_A1(SCMP_CMP_NE, 0));
        if (r == 0)
            r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), kinds[i].number, 1,
                                 SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffff, kinds[i].user));
    }
    return r;
}

/* A path may lead to any file of the service's user, which others could then run as that user. */
static int refuse_setid(scmp_filter_ctx ctx)
{
    static const struct {
        const char *name;
        unsigned mode; /* which argument */
    } calls[] = {{"chmod", 1}, {"fchmodat", 2}, {"fchmodat2", 2}};
    static const scmp_datum_t bits[] = {S_ISUID, S_ISGID};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(calls) * ARRAY_SIZE(bits); i++) {
        int number = seccomp_syscall_resolve_name(calls[i / ARRAY_SIZE(bits)].name);
        scmp_datum_t bit = bits[i % ARRAY_SIZE(bits)];
        if (number != __NR_SCMP_ERROR)
            r = seccomp_rule_add(
                ctx, SCMP_ACT_ERRNO(EPERM), number, 1,
                SCMP_CMP(calls[i / ARRAY_SIZE(bits)].mode, SCMP_CMP_MASKED_EQ, bit, bit));
    }
    return r;
}

/* Typing into the terminal of whoever looks on. The kernel compares 32 bits. */
static int refuse_terminals(scmp_filter_ctx ctx)
{
    int r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                             SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffff, TIOCSTI));
    return r < 0 ? r
                 : seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                                    SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffff, TIOCLINUX));
}

/* One half of such a pair can send to whatever has a path; those of streams cannot. The kernel
 * takes a raw one for the same. */
static int refuse_pairs(scmp_filter_ctx ctx)
{
    static const int types[] = {SOCK_DGRAM, SOCK_RAW};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(types); i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(socketpair), 1,
                             SCMP_A1(SCMP_CMP_MASKED_EQ, SOCK_TYPE, (scmp_datum_t)types[i]));
    return r;
}

/* With a network namespace there are those that stay in it. */
static int refuse_sockets(scmp_filter_ctx ctx, unsigned flags)
{
    int r = flags & SYSCALLS_NO_UNIX ? refuse_pairs(ctx) : 0;
    for (int family = 0; r == 0 && family < AF_MAX; family++) {
        bool network = family == AF_INET || family == AF_INET6 || family == AF_NETLINK;
        if ((network && !(flags & SYSCALLS_NO_SOCKETS)) ||
            (family == AF_UNIX && !(flags & SYSCALLS_NO_UNIX)))
            continue;
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(socket), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffff, (scmp_datum_t)family));
    }
    return r == 0 ? seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(socket), 1,
                                     SCMP_A0(SCMP_CMP_GE, AF_MAX))
                  : r;
}

/* Programs of 32 bits can make sockets by a call that has what is asked for in memory, where a
 * filter does not see it; there is another one, for those who do without. */
static int refuse_multiplexed(scmp_filter_ctx ctx, unsigned flags)
{
    int r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(socketcall), 1,
                             SCMP_A0(SCMP_CMP_EQ, SYS_SOCKET));
    if (r == 0 && (flags & SYSCALLS_NO_UNIX))
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(socketcall), 1,
                             SCMP_A0(SCMP_CMP_EQ, SYS_SOCKETPAIR));
    return r;
}

/* A project is changed by these, and so is that what is made in a directory is of its project. */
static int refuse_projects(scmp_filter_ctx ctx)
{
    static const scmp_datum_t requests[] = {FS_IOC_FSSETXATTR, FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(requests); i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                             SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffff, requests[i]));
    return r;
}

static int export(scmp_filter_ctx ctx, struct sock_fprog *ret)
{
    struct stat st;
    _cleanup_close_ int fd = memfd_create("berth-filter", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = seccomp_export_bpf(ctx, fd);
    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0)
        return -errno;
    size_t count = (size_t)st.st_size / sizeof(struct sock_filter);
    size_t before = ARRAY_SIZE(too_new);
    struct sock_filter *filter = calloc(before + count + 1, sizeof *filter);
    if (!filter)
        return -ENOMEM;
    memcpy(filter, too_new, sizeof too_new);
    if (before + count > BPF_MAXINSNS ||
        pread(fd, filter + before, (size_t)st.st_size, 0) != st.st_size) {
        free(filter);
        return -EIO;
    }
    *ret = (struct sock_fprog){.len = (unsigned short)(before + count), .filter = filter};
    return 0;
}

int syscalls_filter_new(unsigned flags, struct sock_fprog *ret, struct failure *ret_failure)
{
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
    if (!ctx)
        return failure_set(ret_failure, -ENOMEM, "libseccomp cannot make a filter");
    /* Programs of another architecture have other numbers: none of their calls work, but for those
     * of 32 bits, for which the same rules are made. */
    int r = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
    if (r == 0 && seccomp_arch_native() == SCMP_ARCH_X86_64)
        r = seccomp_arch_add(ctx, SCMP_ARCH_X86);
    /* A tree instead of a list; not there before libseccomp 2.5. */
    (void)seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (r == 0)
        r = refuse(ctx, refused, ARRAY_SIZE(refused), EPERM);
    if (r == 0)
        r = refuse(ctx, absent, ARRAY_SIZE(absent), ENOSYS);
    if (r == 0 && (flags & SYSCALLS_NO_TRACING))
        r = refuse(ctx, tracing, ARRAY_SIZE(tracing), EPERM);
    if (r == 0)
        r = refuse_namespaces(ctx);
    if (r == 0)
        r = refuse_terminals(ctx);
    if (r == 0 && (flags & SYSCALLS_NO_OTHERS))
        r = refuse_others(ctx);
    if (r == 0 && (flags & SYSCALLS_NO_IPC))
        r = refuse(ctx, ipc, ARRAY_SIZE(ipc), ENOSYS);
    if (r == 0 && (flags & SYSCALLS_NO_SETID))
        r = refuse_setid(ctx);
    /* Before what says less of the same: libseccomp loses memory the other way round. */
    if (r == 0)
        r = refuse_multiplexed(ctx, flags);
    if (r == 0 && (flags & SYSCALLS_NO_PROJECTS))
        r = refuse_projects(ctx);
    if (r == 0)
        r = refuse_sockets(ctx, flags);
    if (r == 0)
        r = export(ctx, ret);
    seccomp_release(ctx);
    return r < 0 ? failure_set(ret_failure, r, "no filter of system calls: %s", strerror(-r)) : 0;
}

void syscalls_filter_release(struct sock_fprog *filter)
{
    free(filter->filter);
    *filter = (struct sock_fprog){0};
}

int syscalls_filter_enter(const struct sock_fprog *filter)
{
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter) < 0 ? -errno : 0;
}
