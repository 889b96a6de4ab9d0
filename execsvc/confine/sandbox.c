#include "confine/sandbox.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"

struct sandbox {
    pid_t init;
    int pidfd;
    int flags; /* CLONE_NEW… of what there is to join */
};

/* From the init: what it could not do (NULL: everything is there), as a pointer into the text that
 * it shares with its parent by having been forked from it. */
struct readiness {
    const char *step;
    int32_t error;
};

/* Mounts that a copy of ours would keep alive after they were unmounted here: file systems whose
 * server waits for its end. Those that lead to what commands need stay. */
struct mounts {
    char **points;
    size_t count;
};

/* --- in the init: async-signal-safe functions only ------------------------------- */

static const char *set_up(const struct mounts *foreign)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        return "cannot part its mounts from ours";
    for (size_t i = 0; i < foreign->count; i++)
        (void)umount2(foreign->points[i], MNT_DETACH);
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        return "cannot mount a /proc of its own";
    return NULL;
}

static _Noreturn void init_run(int channel, const struct mounts *foreign)
{
    char go;
    /* With its parent's thread it ends, and with it everything inside. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NAME, "berth-init");
    (void)setsid();
    /* The parent maps our user first. At its end there is nobody to serve. */
    if (read(channel, &go, 1) != 1)
        _exit(0);
    struct readiness readiness = {.step = set_up(foreign)};
    readiness.error = readiness.step ? -errno : 0;
    (void)chdir("/");
    ssize_t n = write(channel, &readiness, sizeof readiness);
    /* Whoever waits for the end of a pipe must not wait for us, whichever command's it is. */
    if (n != sizeof readiness || readiness.error < 0)
        _exit(0);
    if (syscall(SYS_close_range, 0, ~0U, 0) < 0)
        for (int fd = 0; fd < 65536; fd++)
            (void)close(fd);
    for (;;) {
        siginfo_t info;
        /* Without children there is one soon. */
        if (waitid(P_ALL, 0, &info, WEXITED | __WALL) < 0 && errno == ECHILD) {
            sigset_t child;
            (void)sigemptyset(&child);
            (void)sigaddset(&child, SIGCHLD);
            (void)sigtimedwait(&child, &info, &(struct timespec){.tv_sec = 1});
        }
    }
}

/* --- in the service -------------------------------------------------------------- */

static void mounts_release(struct mounts *m)
{
    for (size_t i = 0; i < m->count; i++)
        free(m->points[i]);
    free(m->points);
}

/* ID PARENT DEV ROOT POINT … - TYPE …; spaces and the like are written as \ooo. */
static bool parse_mount(const char *line, char point[PATH_MAX])
{
    const char *type = strstr(line, " - ");
    char escaped[PATH_MAX];
    if (!type || strncmp(type, " - fuse", 7) != 0 || strncmp(type, " - fusectl", 10) == 0 ||
        sscanf(line, "%*d %*d %*s %*s %4095s", escaped) != 1)
        return false;
    char *to = point;
    for (const char *from = escaped; *from;) {
        int byte;
        if (from[0] == '\\' && sscanf(from + 1, "%3o", &byte) == 1) {
            *to++ = (char)byte;
            from += 4;
        } else {
            *to++ = *from++;
        }
    }
    *to = 0;
    return true;
}

/* True for mounts that what we run from, or keep our files in, is on. */
static bool leads_to(const char *point)
{
    return strcmp(point, "/") == 0 || strcmp(point, "/usr") == 0 || strcmp(point, "/bin") == 0 ||
           strcmp(point, "/lib") == 0 || strcmp(point, "/home") == 0 || strcmp(point, "/nix") == 0;
}

static int mounts_find_foreign(struct mounts *ret)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f)
        return -errno;
    _cleanup_free_ char *line = NULL;
    size_t allocated = 0;
    char point[PATH_MAX];
    int r = 0;
    while (r == 0 && getline(&line, &allocated, f) > 0) {
        if (!parse_mount(line, point) || leads_to(point))
            continue;
        char **larger = reallocarray(ret->points, ret->count + 1, sizeof *larger);
        if (larger)
            ret->points = larger;
        char *copy = larger ? strdup(point) : NULL;
        if (copy)
            ret->points[ret->count++] = copy;
        r = copy ? 0 : -ENOMEM;
    }
    (void)fclose(f);
    return r;
}

static int write_proc(pid_t pid, const char *name, const char *text)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

/* Our user is the same inside: files that commands make are ours. */
static int map_user(pid_t pid)
{
    char text[64];
    int r = write_proc(pid, "setgroups", "deny");
    if (r < 0 && r != -ENOENT)
        return r;
    (void)snprintf(text, sizeof text, "%u %u 1", geteuid(), geteuid());
    r = write_proc(pid, "uid_map", text);
    (void)snprintf(text, sizeof text, "%u %u 1", getegid(), getegid());
    return r < 0 ? r : write_proc(pid, "gid_map", text);
}

static int wait_until_ready(const struct sandbox *s, int channel, struct failure *ret_failure)
{
    struct readiness readiness = {.error = -ECHILD};
    int r = s->flags & CLONE_NEWUSER ? map_user(s->init) : 0;
    if (r < 0)
        return failure_set(ret_failure, r, "cannot map the user: %s", strerror(-r));
    ssize_t n = write(channel, "", 1);
    if (n == 1)
        n = read(channel, &readiness, sizeof readiness);
    if (n != sizeof readiness)
        return failure_set(ret_failure, -ECHILD, "the init of a pid namespace ended at once");
    if (readiness.error < 0)
        return failure_set(ret_failure, readiness.error, "%s: %s", readiness.step,
                           strerror(-readiness.error));
    return 0;
}

int sandbox_new(struct sandbox **ret, struct failure *ret_failure)
{
    _cleanup_(mounts_release) struct mounts foreign = {0};
    int ends[2];
    int r = mounts_find_foreign(&foreign);
    if (r == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        r = -errno;
    if (r < 0)
        return failure_set(ret_failure, r, "%s", strerror(-r));
    _cleanup_close_ int ours = ends[0];
    _cleanup_close_ int theirs = ends[1];
    struct sandbox *s = calloc(1, sizeof *s);
    if (!s)
        return failure_set(ret_failure, -ENOMEM, "%s", strerror(ENOMEM));
    s->pidfd = -1;
    s->flags = CLONE_NEWPID | CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER);
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &old);
    s->init = (pid_t)syscall(SYS_clone, (long)s->flags | CLONE_PIDFD | SIGCHLD, 0, &s->pidfd, 0, 0);
    if (s->init == 0) {
        close_fd(&ours);
        init_run(theirs, &foreign);
    }
    int error = errno;
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    if (s->init < 0) {
        free(s);
        return failure_set(ret_failure, -error, "cannot make a %s namespace: %s",
                           geteuid() == 0 ? "pid" : "user and pid", strerror(error));
    }
    close_fd(&theirs);
    r = wait_until_ready(s, ours, ret_failure);
    if (r < 0) {
        _cleanup_close_ int pidfd = -1;
        sandbox_end(s, &pidfd);
        siginfo_t info;
        (void)waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED);
        return r;
    }
    *ret = s;
    return 0;
}

void sandbox_end(struct sandbox *s, int *ret_pidfd)
{
    (void)syscall(SYS_pidfd_send_signal, s->pidfd, SIGKILL, NULL, 0);
    *ret_pidfd = s->pidfd;
    free(s);
}

bool sandbox_works(const struct sandbox *s)
{
    siginfo_t info = {0};
    return waitid(P_PIDFD, (id_t)s->pidfd, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
}

int sandbox_join(const struct sandbox *s)
{
    return setns(s->pidfd, s->flags) < 0 ? -errno : 0;
}
