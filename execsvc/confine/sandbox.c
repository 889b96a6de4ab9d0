#include "confine/sandbox.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/sanitizers.h"
#include "confine/network.h"
#include "confine/privileges.h"

/* What the init makes and hands over. */
enum gift { GIFT_TERMINALS, GIFT_LANDLOCK, GIFT_LISTENER, GIFT_TREE, GIFT_COUNT };

/* Of a visitor. What it forks goes on with a copy, and reads files and paths there. */
#define VISIT_STACK ((size_t)512 << 10)

struct sandbox {
    pid_t init;
    int pidfd;
    int flags; /* CLONE_NEW… of what there is to join */
    int gifts[GIFT_COUNT];
};

/* From the init: what it could not do (NULL: everything is there), as a pointer into memory that it
 * shares with its parent by having been forked from it. */
struct readiness {
    const char *step;
    int32_t error;
    uint32_t
        given; /* of enum gift, a bit each, in the order of the descriptors that come with it */
};

union gifts_space {
    struct cmsghdr header;
    char space[CMSG_SPACE(GIFT_COUNT * sizeof(int))];
};

/* Mounts that a copy of ours would keep alive after they were unmounted here: file systems whose
 * server waits for its end. Those that lead to what commands need stay. */
struct mounts {
    char **points;
    size_t count;
};

/* --- in the init: async-signal-safe functions only ------------------------------- */

static int share_root(const struct sandbox_options *o, const struct mounts *foreign,
                      const char **ret_step)
{
    *ret_step = "parting its mounts from ours";
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        return -errno;
    for (size_t i = 0; i < foreign->count; i++)
        (void)umount2(foreign->points[i], MNT_DETACH);
    *ret_step = "a /proc of its own";
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        return -errno;
    return o->landlock_outside < 0 ? 0
                                   : landlock_allow(o->landlock_outside, "/proc", LANDLOCK_READ);
}

static int own_root(const struct sandbox_options *o, const struct mounts *foreign,
                    int gifts[GIFT_COUNT], const char **ret_step)
{
    /* First: what is shared would be unmounted on the machine too. */
    *ret_step = "parting its mounts from ours";
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return -errno;
    for (size_t i = 0; i < foreign->count; i++)
        (void)umount2(foreign->points[i], MNT_DETACH);
    int r = root_build(o->root, ret_step);
    if (r < 0)
        return r;
    *ret_step = "/dev/pts";
    gifts[GIFT_TERMINALS] = open("/dev/pts", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (gifts[GIFT_TERMINALS] < 0)
        return -errno;
    *ret_step = "its tree";
    r = root_copy(&gifts[GIFT_TREE]);
    if (r < 0)
        return r;
    *ret_step = "Landlock";
    if (o->landlock)
        r = landlock_new(o->landlock, &gifts[GIFT_LANDLOCK]);
    return r == 0 && o->landlock ? root_allow(o->root, gifts[GIFT_LANDLOCK], ret_step) : r;
}

static int set_up(const struct sandbox_options *o, const struct mounts *foreign,
                  int gifts[GIFT_COUNT], const char **ret_step)
{
    int r = o->root ? own_root(o, foreign, gifts, ret_step) : share_root(o, foreign, ret_step);
    if (r == 0 && (o->namespaces & CLONE_NEWNET)) {
        *ret_step = "the network";
        r = network_set_up(o->port, &gifts[GIFT_LISTENER]);
    }
    if (r == 0 && (o->namespaces & CLONE_NEWUTS))
        (void)sethostname("berth", 5);
    return r;
}

/* What there is of descriptors goes with the message. */
static ssize_t send_readiness(int channel, struct readiness *readiness, const int gifts[GIFT_COUNT])
{
    int given[GIFT_COUNT];
    size_t count = 0;
    for (size_t i = 0; i < GIFT_COUNT; i++) {
        if (gifts[i] < 0)
            continue;
        given[count++] = gifts[i];
        readiness->given |= 1U << i;
    }
    struct iovec data = {.iov_base = readiness, .iov_len = sizeof *readiness};
    struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};
    union gifts_space control = {0};
    if (count > 0) {
        m.msg_control = control.space;
        m.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), given, count * sizeof(int));
    }
    return sendmsg(channel, &m, MSG_NOSIGNAL);
}

static _Noreturn void init_run(int channel, const struct sandbox_options *o,
                               const struct mounts *foreign)
{
    char go;
    /* With its parent's thread it ends, and with it everything inside. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NAME, "berth-init");
    (void)setsid();
    (void)umask(0);
    /* The parent maps our user first. At its end there is nobody to serve. */
    if (read(channel, &go, 1) != 1)
        _exit(0);
    int gifts[GIFT_COUNT] = {-1, -1, -1, -1};
    struct readiness readiness = {0};
    readiness.error = set_up(o, foreign, gifts, &readiness.step);
    (void)chdir("/");
    ssize_t n = send_readiness(channel, &readiness, gifts);
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

static int receive_readiness(struct sandbox *s, int channel, struct readiness *ret)
{
    struct iovec data = {.iov_base = ret, .iov_len = sizeof *ret};
    union gifts_space control = {0};
    struct msghdr m = {.msg_iov = &data,
                       .msg_iovlen = 1,
                       .msg_control = control.space,
                       .msg_controllen = sizeof control.space};
    ssize_t n;
    while ((n = recvmsg(channel, &m, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    if (n != sizeof *ret)
        return -ECHILD;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    size_t count = c && c->cmsg_type == SCM_RIGHTS ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
    size_t taken = 0;
    for (size_t i = 0; i < GIFT_COUNT && taken < count; i++)
        if (ret->given & 1U << i)
            memcpy(&s->gifts[i], CMSG_DATA(c) + taken++ * sizeof(int), sizeof(int));
    return taken == (size_t)__builtin_popcount(ret->given) ? 0 : -EMFILE;
}

static int wait_until_ready(struct sandbox *s, int channel, struct failure *ret_failure)
{
    struct readiness readiness = {0};
    int r = s->flags & CLONE_NEWUSER ? map_user(s->init) : 0;
    if (r < 0)
        return failure_set(ret_failure, r, "cannot map the user: %s", strerror(-r));
    r = write(channel, "", 1) == 1 ? receive_readiness(s, channel, &readiness) : -ECHILD;
    if (r < 0)
        return failure_set(ret_failure, r, "the init of a pid namespace ended at once");
    if (readiness.error < 0)
        return failure_set(ret_failure, readiness.error, "%s: %s", readiness.step,
                           strerror(-readiness.error));
    return 0;
}

int sandbox_new(const struct sandbox_options *options, struct sandbox **ret,
                struct failure *ret_failure)
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
    bool own_user = !privileges_have_admin();
    *s = (struct sandbox){.pidfd = -1,
                          .flags = CLONE_NEWPID | CLONE_NEWNS | options->namespaces |
                                   (own_user ? CLONE_NEWUSER : 0),
                          .gifts = {-1, -1, -1, -1}};
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &old);
    s->init = (pid_t)syscall(SYS_clone, (long)s->flags | CLONE_PIDFD | SIGCHLD, 0, &s->pidfd, 0, 0);
    if (s->init == 0) {
        close_fd(&ours);
        init_run(theirs, options, &foreign);
    }
    int error = errno;
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    if (s->init < 0) {
        free(s);
        return failure_set(ret_failure, -error, "namespaces%s cannot be made: %s",
                           own_user ? " in a user namespace" : "", strerror(error));
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
    for (size_t i = 0; i < GIFT_COUNT; i++)
        close_fd(&s->gifts[i]);
    free(s);
}

bool sandbox_works(const struct sandbox *s)
{
    siginfo_t info = {0};
    return waitid(P_PIDFD, (id_t)s->pidfd, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
}

int sandbox_terminals(const struct sandbox *s)
{
    return s->gifts[GIFT_TERMINALS];
}

int sandbox_landlock(const struct sandbox *s)
{
    return s->gifts[GIFT_LANDLOCK];
}

int sandbox_tree(const struct sandbox *s)
{
    return s->gifts[GIFT_TREE];
}

int sandbox_take_listener(struct sandbox *s)
{
    return take_fd(&s->gifts[GIFT_LISTENER]);
}

int sandbox_join(const struct sandbox *s, int mounts)
{
    if (mounts < 0)
        return setns(s->pidfd, s->flags) < 0 ? -errno : 0;
    /* Before its mounts: the right to enter those comes with the user namespace. */
    if (setns(s->pidfd, s->flags & ~CLONE_NEWNS) < 0 || setns(mounts, CLONE_NEWNS) < 0)
        return -errno;
    return 0;
}

/* ThreadSanitizer's own clone() takes it that a child has memory of its own. */
#if THREAD_SANITIZED
extern int __clone(int (*run)(void *), void *stack, int flags, void *context, ...);
#define clone __clone
#endif

struct visitor {
    const struct sandbox *sandbox;
    int mounts;
    int (*visit)(void *context);
    void *context;
    int result;
};

static int visitor_run(void *context)
{
    struct visitor *v = context;
    v->result = sandbox_join(v->sandbox, v->mounts);
    if (v->result == 0)
        v->result = v->visit(v->context);
    return 0;
}

int sandbox_visit(const struct sandbox *s, int mounts, int (*visit)(void *context), void *context)
{
    struct visitor v = {
        .sandbox = s, .mounts = mounts, .visit = visit, .context = context, .result = -ECHILD};
    void *stack = mmap(NULL, VISIT_STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED)
        return -errno;
    /* To join a user namespace takes it from the memory, which is ours, and with it /proc/self from
     * those who are not root. */
    int dumpable = prctl(PR_GET_DUMPABLE);
    pid_t pid = clone(visitor_run, (char *)stack + VISIT_STACK,
                      CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, &v);
    int r = pid < 0 ? -errno : 0;
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    if (dumpable == 1 && prctl(PR_GET_DUMPABLE) != 1)
        (void)prctl(PR_SET_DUMPABLE, 1);
    (void)munmap(stack, VISIT_STACK);
    return r < 0 ? r : v.result;
}
