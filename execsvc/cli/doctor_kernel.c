/* What the service and its commands use where the kernel has it, and the clock. */
#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>

#include "base/buffer.h"
#include "base/cleanup.h"
#include "cli/doctor.h"

/* How far a clock may lie behind the time this program was installed. */
#define CLOCK_TOLERANCE_SECONDS 86400

static bool has_openat2(void)
{
    const struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_BENEATH};
    /* Not the current directory, which this user may perhaps not search. */
    _cleanup_close_ int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int fd = (int)syscall(SYS_openat2, root, ".", &how, sizeof how);
    return fd >= 0;
}

static bool has_pidfd(void)
{
    _cleanup_close_ int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    return fd >= 0;
}

static long landlock_version(void)
{
    return syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
}

/* In a child, which may change its namespaces and ends. */
static bool has_user_namespaces(void)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 ? 0 : 1);
    int status = 1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return pid > 0 && status == 0;
}

void doctor_check_kernel(struct doctor *d)
{
    struct utsname u = {0};
    long landlock = landlock_version();
    const struct {
        const char *name;
        bool there;
        const char *without;
    } features[] = {
        {"openat2", has_openat2(), "a service here walks paths slower, component by component"},
        {"pidfd", has_pidfd(), "a service here needs Linux 5.3 or later to run commands"},
        {"Landlock", landlock > 0, "commands cannot be confined by it"},
        {"user namespaces", has_user_namespaces(), "commands cannot be confined without root"},
    };
    (void)uname(&u);
    _cleanup_buffer_ struct buffer there = {0};
    for (size_t i = 0; i < ARRAY_SIZE(features); i++)
        if (features[i].there)
            (void)buffer_printf(&there, "%s%s", there.len ? ", " : "", features[i].name);
    doctor_ok(d, "Linux %s with %.*s", u.release, (int)there.len,
              there.len ? (const char *)there.data : "");
    for (size_t i = 0; i < ARRAY_SIZE(features); i++)
        if (!features[i].there)
            doctor_warning(d, features[i].without, "the kernel here has or permits no %s",
                           features[i].name);
}

void doctor_check_clock(struct doctor *d)
{
    struct stat st;
    struct timex t = {0};
    char when[64] = "?";
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm))
        (void)strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &tm);
    /* The one time that this machine cannot have been before. */
    if (stat("/proc/self/exe", &st) == 0 && now + CLOCK_TOLERANCE_SECONDS < st.st_mtime)
        doctor_problem(d, "set the clock; with a wrong one, certificates seem not valid yet",
                       "the clock says %s, before this program was installed", when);
    else if (adjtimex(&t) == TIME_ERROR || (t.status & STA_UNSYNC))
        doctor_note(d, NULL,
                    "the clock says %s; nothing synchronises it (or a container cannot tell)",
                    when);
    else
        doctor_ok(d, "the clock says %s, and is synchronised", when);
}
