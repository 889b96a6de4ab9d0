/* Parts of the kernel that commands have no use for. */
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <linux/reboot.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "attack.h"

static int make_bpf_map(char **args)
{
    union bpf_attr attr = {0};
    attr.map_type = BPF_MAP_TYPE_ARRAY;
    attr.key_size = 4;
    attr.value_size = 8;
    attr.max_entries = 1;
    return result_of(syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof attr));
}

/* Of everybody on the first processor. */
static int watch_processor(char **args)
{
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE,
                                   .size = sizeof attr,
                                   .config = PERF_COUNT_SW_CPU_CLOCK,
                                   .disabled = 1};
    return result_of(syscall(SYS_perf_event_open, &attr, -1, 0, -1, 0));
}

static int hold_up_faults(char **args)
{
    return result_of(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
}

static int set_up_ring(char **args)
{
    char params[256] = {0};
    return result_of(syscall(SYS_io_uring_setup, 1, params));
}

static int read_keyring(char **args)
{
    return result_of(syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_KEYRING, 1));
}

static int add_key(char **args)
{
    return result_of(
        syscall(SYS_add_key, "user", "berth-attack", "x", 1, KEY_SPEC_PROCESS_KEYRING));
}

static int load_module(char **args)
{
    return result_or(syscall(SYS_init_module, NULL, 0, ""), ENOEXEC);
}

static int load_kernel(char **args)
{
    return result_or(syscall(SYS_kexec_load, 0, 0, NULL, ~0UL), EINVAL);
}

/* With numbers that are not those of a reboot, which are looked at after the privilege. */
static int restart(char **args)
{
    return result_or(syscall(SYS_reboot, 1, 2, LINUX_REBOOT_CMD_CAD_OFF, NULL), EINVAL);
}

static int swap_on(char **args)
{
    return result_or(swapon("attack-no-such-file", 0), ENOENT);
}

static int account(char **args)
{
    return result_or(acct("attack-no-such-file"), ENOENT);
}

static int set_clock(char **args)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return result_of(clock_settime(CLOCK_REALTIME, &now));
}

static int adjust_clock(char **args)
{
    struct timex t = {0};
    if (adjtimex(&t) < 0)
        return -errno;
    t.modes = ADJ_TICK;
    return result_of(adjtimex(&t));
}

static int set_host_name(char **args)
{
    char name[256];
    if (gethostname(name, sizeof name) < 0)
        return -errno;
    return result_of(sethostname(name, strlen(name)));
}

/* How much of the kernel's log is unread. */
static int read_log(char **args)
{
    return result_of(klogctl(9, NULL, 0));
}

static int reach_ports(char **args)
{
    return result_of(syscall(SYS_iopl, 3));
}

static int watch_file_system(char **args)
{
    return result_of(fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_CLOEXEC, O_RDONLY));
}

static sigjmp_buf no_gate;

static void fault(int number)
{
    siglongjmp(no_gate, number);
}

/* keyctl, as programs of 32 bits call it: 288 is its number there. ENOSYS: this kernel does not run
 * such programs, and the instruction faults. */
static int other_architecture(char **args)
{
    volatile long number = 288;
    if (sigsetjmp(no_gate, 1) != 0)
        return -ENOSYS;
    (void)signal(SIGSEGV, fault);
    long r = number;
    __asm__ volatile("int $0x80"
                     : "+a"(r)
                     : "b"(KEYCTL_GET_KEYRING_ID), "c"(KEY_SPEC_USER_KEYRING), "d"(1)
                     : "memory");
    return (int)r < 0 ? (int)r : 0;
}

static int fix_addresses(char **args)
{
    return result_of(personality(ADDR_NO_RANDOMIZE));
}

/* A program that no file has. */
static int run_from_memory(char **args)
{
    _cleanup_close_ int from = open("/bin/true", O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int to = memfd_create("attack", MFD_CLOEXEC);
    char data[4096];
    ssize_t n;
    if (from < 0 || to < 0)
        return -errno;
    while ((n = read(from, data, sizeof data)) > 0)
        if (write(to, data, (size_t)n) != n)
            return -EIO;
    char name[] = "true";
    (void)fexecve(to, (char *[]){name, NULL}, (char *[]){NULL});
    return -errno;
}

const struct attack attacks_on_kernel[] = {
    {"bpf", make_bpf_map, 0},
    {"perf", watch_processor, 0},
    {"userfaultfd", hold_up_faults, 0},
    {"io-uring", set_up_ring, 0},
    {"keyring", read_keyring, 0},
    {"add-key", add_key, 0},
    {"module", load_module, 0},
    {"kexec", load_kernel, 0},
    {"reboot", restart, 0},
    {"swapon", swap_on, 0},
    {"acct", account, 0},
    {"set-clock", set_clock, 0},
    {"adjust-clock", adjust_clock, 0},
    {"host-name", set_host_name, 0},
    {"kernel-log", read_log, 0},
    {"iopl", reach_ports, 0},
    {"fanotify", watch_file_system, 0},
    {"int80", other_architecture, 0},
    {"personality", fix_addresses, 0},
    {"memfd-exec", run_from_memory, 0},
    {NULL},
};
