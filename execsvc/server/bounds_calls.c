#include "server/bounds_calls.h"

#include <linux/fs.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/sanitizers.h"

/* By name: libseccomp may be older than the call, and a call may not be this machine's. */
static const char *const allowed[] = {
    /* streams */
    "accept4", "recvfrom", "recvmsg", "sendto", "sendmsg", "shutdown", "getsockname", "getpeername",
    "getsockopt", "setsockopt", "read", "write", "readv", "writev", "sendfile",
    /* the loop */
    "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll",
    "eventfd2", "pipe2", "timerfd_create", "timerfd_settime", "timerfd_gettime",
    /* files */
    "open", "openat", "openat2", "creat", "close", "close_range", "dup", "dup2", "dup3", "fcntl",
    "flock", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2", "copy_file_range",
    "lseek", "truncate", "ftruncate", "fallocate", "fadvise64", "readahead", "fsync", "fdatasync",
    "sync_file_range", "syncfs", "stat", "fstat", "lstat", "newfstatat", "statx", "statfs",
    "fstatfs", "access", "faccessat", "faccessat2", "readlink", "readlinkat", "getdents64", "mkdir",
    "mkdirat", "mknod", "mknodat", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2",
    "link", "linkat", "symlink", "symlinkat", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown",
    "fchown", "lchown", "fchownat", "utimensat", "futimesat", "umask", "getxattr", "lgetxattr",
    "fgetxattr", "listxattr", "llistxattr", "flistxattr", "setxattr", "lsetxattr", "fsetxattr",
    "removexattr", "lremovexattr", "fremovexattr", "setxattrat", "getxattrat", "listxattrat",
    "removexattrat", "name_to_handle_at", "inotify_add_watch", "inotify_rm_watch", "chdir",
    "fchdir", "getcwd",
    /* in somebody's name (store/creator.h) */
    "setfsuid", "setfsgid", "capget", "capset",
    /* threads */
    "futex", "futex_waitv", "set_robust_list", "rseq", "sched_yield", "sched_getaffinity",
    "set_tid_address", "exit", "exit_group", "membarrier", "restart_syscall",
    /* memory, which is never made executable */
    "brk", "munmap", "mremap", "madvise",
    /* signals: to itself alone */
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "sigaltstack",
    /* time, and what it is */
    "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time",
    "times", "getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getgroups",
    "getresuid", "getresgid", "getrusage", "getrlimit", "getpriority", "sysinfo", "uname", "getcpu",
    "getrandom"};

/* What is EPERM: whoever has taken the service over would ask for these, and a test does. */
static const char *const refused[] = {
    /* programs, processes, and other processes */
    "execve", "execveat", "fork", "vfork", "kill", "tkill", "pidfd_open", "pidfd_send_signal",
    "pidfd_getfd", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "setns",
    "unshare", "prlimit64", "setrlimit", "setuid", "setgid", "setreuid", "setregid", "setresuid",
    "setresgid", "setgroups",
#if !ADDRESS_SANITIZED
    "ptrace", "prctl",
#endif
    /* sockets of its own */
    "socket", "socketpair", "connect", "bind", "listen", "accept",
    /* mounts, and names from beyond them */
    "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "open_by_handle_at", "swapon", "swapoff", "quotactl",
    "quotactl_fd", "acct", "fanotify_init", "fanotify_mark",
    /* the kernel */
    "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot",
    "bpf", "perf_event_open", "syslog", "iopl", "ioperm", "userfaultfd", "add_key", "request_key",
    "keyctl", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "io_uring_setup",
    "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret"};

/* Of a leak checker, which stops the threads of its process by tracing them from another. */
static const char *const of_sanitizers[] = {"ptrace", "prctl", "wait4", "getdents", "arch_prctl"};

/* Everything else that would be done by ioctl is for devices, or for the owner of a filesystem. */
static const unsigned long controls[] = {
    FIONREAD, FIONBIO, FS_IOC_GETVERSION, FICLONE, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, TCGETS};

static int add_names(scmp_filter_ctx ctx, uint32_t action, const char *const *calls, size_t count)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < count; i++) {
        int number = seccomp_syscall_resolve_name(calls[i]);
        if (number != __NR_SCMP_ERROR && number >= 0)
            r = seccomp_rule_add(ctx, action, number, 0);
    }
    return r;
}

/* The kernel compares 32 bits. */
static int add_controls(scmp_filter_ctx ctx)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(controls); i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
                             SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffff, controls[i]));
    return r;
}

static int add_memory(scmp_filter_ctx ctx)
{
    static const int calls[] = {SCMP_SYS(mmap), SCMP_SYS(mprotect), SCMP_SYS(pkey_mprotect)};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(calls); i++) {
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, calls[i], 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
        if (r == 0)
            r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), calls[i], 1,
                                 SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC));
    }
    return r;
}

/* clone3, whose flags no filter sees, is not there (ENOSYS): the C library then uses clone. */
static int add_threads(scmp_filter_ctx ctx, int self)
{
    const uint64_t flag = ADDRESS_SANITIZED ? CLONE_VM : CLONE_THREAD;
    int r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, flag, flag));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, flag, 0));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                             SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)self));
    return r;
}

static int fill(scmp_filter_ctx ctx)
{
    /* Programs of another architecture have other numbers: none of their calls work. */
    int r = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
    /* Whether privileges can be gained is the business of another bound. */
    if (r == 0)
        r = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_NNP, 0);
    /* A tree instead of a list; not there before libseccomp 2.5. */
    (void)seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (r == 0)
        r = add_names(ctx, SCMP_ACT_ALLOW, allowed, ARRAY_SIZE(allowed));
    if (r == 0)
        r = add_names(ctx, SCMP_ACT_ERRNO(EPERM), refused, ARRAY_SIZE(refused));
    if (r == 0 && ADDRESS_SANITIZED)
        r = add_names(ctx, SCMP_ACT_ALLOW, of_sanitizers, ARRAY_SIZE(of_sanitizers));
    if (r == 0)
        r = add_controls(ctx);
    if (r == 0)
        r = add_memory(ctx);
    return r < 0 ? r : add_threads(ctx, (int)getpid());
}

int bounds_calls_enter(void)
{
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
    if (!ctx)
        return -ENOMEM;
    int r = fill(ctx);
    if (r == 0)
        r = seccomp_load(ctx);
    seccomp_release(ctx);
    return r;
}

bool bounds_calls_sanitized(void)
{
    return ADDRESS_SANITIZED;
}
