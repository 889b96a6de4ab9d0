#include "keeper/process.h"

#include <event2/event.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "confine/cgroup.h"
#include "keeper/keeper.h"
#include "store/json_file.h"
#include "stream/unix_path.h"

/* The log of a keeper is begun anew when it is larger than this. */
#define LOG_MAX (1 << 20)

/* Where the descriptors of a keeper that is being started are moved to before they are put in
 * place, so that putting one in place never overwrites another. */
#define SCRATCH_FD 16

/* What a service calls itself: this, and 16 bytes in hexadecimal. */
#define NAME_PREFIX "berth-"
#define NAME_DIGITS 32

/* Names in ROOT/exec that begin with a dot are the keeper's own: no workspace's does. */
static int exec_path(const char *root, const char *name, char **ret)
{
    return asprintf(ret, "%s/exec/%s", root, name) < 0 ? -ENOMEM : 0;
}

bool keeper_name_is_valid(const char *name)
{
    size_t prefix = strlen(NAME_PREFIX);
    return strlen(name) == prefix + NAME_DIGITS && strncmp(name, NAME_PREFIX, prefix) == 0 &&
           strspn(name + prefix, "0123456789abcdef") == NAME_DIGITS;
}

/* --- the keeper's side ----------------------------------------------------------------------- */

struct process {
    struct event_base *base;
    struct keeper *keeper;
    int root;
    int exec;
    int lock;
    int socket;
    char *socket_path;
    struct event *acceptable;
    struct event *on_term;
    struct event *on_int;
    struct event *quit;
    bool stopping; /* a second signal does not wait for anybody */
};

static void on_signal(evutil_socket_t number, short what, void *context)
{
    struct process *p = context;
    log_info("stopping on signal %d", (int)number);
    if (p->stopping || !p->keeper)
        (void)event_base_loopbreak(p->base);
    else
        keeper_stop(p->keeper);
    p->stopping = true;
}

static void on_quit(evutil_socket_t fd, short what, void *context)
{
    struct process *p = context;
    (void)event_base_loopbreak(p->base);
}

static void on_idle(void *context, bool idle)
{
    struct process *p = context;
    const struct timeval time = {.tv_sec = KEEPER_IDLE_S};
    if (idle)
        (void)event_add(p->quit, &time);
    else
        (void)event_del(p->quit);
}

bool keeper_peer_is_ours(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

static void on_acceptable(evutil_socket_t listener, short what, void *context)
{
    struct process *p = context;
    _cleanup_close_ int fd = accept4(p->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    /* Its directory lets nobody else in; this is for a root that was opened to others by mistake.
     */
    if (fd >= 0 && keeper_peer_is_ours(fd) && keeper_accept(p->keeper, &fd) < 0)
        log_error("no memory for a service");
}

static int open_exec(struct process *p, const char *root, struct failure *ret_failure)
{
    p->root = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->root < 0 || (mkdirat(p->root, "exec", 0700) < 0 && errno != EEXIST) ||
        fsync(p->root) < 0)
        return failure_set(ret_failure, -errno, "%s: %s", root, strerror(errno));
    p->exec = openat(p->root, "exec", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (p->exec < 0)
        return failure_set(ret_failure, -errno, "%s/exec: %s", root, strerror(errno));
    p->lock = openat(p->exec, ".lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (p->lock < 0)
        return failure_set(ret_failure, -errno, "%s/exec/.lock: %s", root, strerror(errno));
    if (flock(p->lock, LOCK_EX | LOCK_NB) < 0)
        return failure_set(ret_failure, -EBUSY, "%s has a keeper of commands already", root);
    /* For people. */
    char pid[16];
    int len = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (ftruncate(p->lock, 0) == 0)
        (void)file_write_all(p->lock, pid, (size_t)len);
    return 0;
}

static int new_events(struct process *p)
{
    p->base = event_base_new();
    if (!p->base)
        return -ENOMEM;
    p->acceptable = event_new(p->base, p->socket, EV_READ | EV_PERSIST, on_acceptable, p);
    p->on_term = evsignal_new(p->base, SIGTERM, on_signal, p);
    p->on_int = evsignal_new(p->base, SIGINT, on_signal, p);
    p->quit = evtimer_new(p->base, on_quit, p);
    if (!p->acceptable || !p->on_term || !p->on_int || !p->quit ||
        event_add(p->acceptable, NULL) < 0 || event_add(p->on_term, NULL) < 0 ||
        event_add(p->on_int, NULL) < 0)
        return -ENOMEM;
    return 0;
}

static void process_release(struct process *p)
{
    if (p->keeper)
        keeper_free(p->keeper);
    struct event *events[] = {p->acceptable, p->on_term, p->on_int, p->quit};
    for (size_t i = 0; i < ARRAY_SIZE(events); i++)
        if (events[i])
            event_free(events[i]);
    if (p->base)
        event_base_free(p->base);
    /* While the lock is held nobody else's socket can be there. */
    if (p->socket >= 0)
        (void)unlink(p->socket_path);
    close_fd(&p->socket);
    close_fd(&p->lock);
    close_fd(&p->exec);
    close_fd(&p->root);
    free(p->socket_path);
}
#define _cleanup_process_ _cleanup_(process_release)

static int process_begin(struct process *p, const struct keeper_settings *settings, int *first,
                         struct failure *ret_failure)
{
    struct stat st;
    struct spawn_limits limits;
    int r = open_exec(p, settings->root, ret_failure);
    if (r < 0)
        return r;
    r = exec_path(settings->root, ".socket", &p->socket_path);
    if (r == 0)
        r = unix_path_listen(p->socket_path, &p->socket, &st, ret_failure);
    else
        r = failure_set(ret_failure, r, "out of memory");
    if (r < 0)
        return r;
    r = new_events(p);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot start: %s", strerror(-r));
    spawn_limits_read(&limits);
    spawn_raise_priority();
    spawn_raise_descriptors();
    const struct keeper_options options = {
        .root = p->root,
        .exec = p->exec,
        .name = settings->name,
        .cgroup_parent = settings->cgroup_parent,
        .keep_s = settings->keep_s,
        .limits = &limits,
        .idle = on_idle,
        .context = p,
    };
    r = keeper_new(p->base, &options, &p->keeper, ret_failure);
    if (r < 0)
        return r;
    on_idle(p, true);
    if (keeper_accept(p->keeper, first) < 0)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    return 0;
}

int keeper_process_run(const struct keeper_settings *settings, struct failure *ret_failure)
{
    _cleanup_process_ struct process p = {.root = -1, .exec = -1, .lock = -1, .socket = -1};
    _cleanup_close_ int first = KEEPER_FD;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of that write alone */
    (void)umask(0077);
    (void)prctl(PR_SET_NAME, "berthd-keeper"); /* not that of the link it was started by */
    if (fcntl(first, F_SETFD, FD_CLOEXEC) < 0)
        return failure_set(ret_failure, -errno, "berthd starts this by itself");
    int r = process_begin(&p, settings, &first, ret_failure);
    if (r < 0)
        return r;
    if (event_base_dispatch(p.base) < 0)
        return failure_set(ret_failure, -EIO, "the event loop failed");
    return 0;
}

/* --- the service's side ---------------------------------------------------------------------- */

static int open_log(const char *root, int *ret)
{
    _cleanup_free_ char *directory = NULL;
    _cleanup_free_ char *path = NULL;
    struct stat st;
    if (asprintf(&directory, "%s/exec", root) < 0 || exec_path(root, ".log", &path) < 0)
        return -ENOMEM;
    if (mkdir(directory, 0700) < 0 && errno != EEXIST)
        return -errno;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) == 0 && st.st_size > LOG_MAX)
        (void)ftruncate(fd, 0);
    *ret = fd;
    return 0;
}

/* In the grandchild of a process with threads: async-signal-safe functions only. */
static _Noreturn void become_keeper(int stream, int log_fd, const struct spawn_limits *limits,
                                    char **argv)
{
    int null_fd = file_open_null();
    stream = fcntl(stream, F_DUPFD_CLOEXEC, SCRATCH_FD);
    log_fd = fcntl(log_fd, F_DUPFD_CLOEXEC, SCRATCH_FD);
    if (null_fd < 0 || stream < 0 || log_fd < 0 || dup2(null_fd, 0) < 0 || dup2(log_fd, 1) < 0 ||
        dup2(log_fd, 2) < 0 || dup2(stream, KEEPER_FD) < 0 || chdir("/") < 0 ||
        close_range(KEEPER_FD + 1, ~0U, 0) < 0)
        _exit(127);
    spawn_self(limits, argv);
}

/* Double fork: the keeper is nobody's child, and no terminal's. */
static int start(const struct keeper_settings *settings, const struct spawn_limits *limits,
                 int stream)
{
    char keep[128];
    char level[16];
    _cleanup_close_ int log_fd = -1;
    int r = open_log(settings->root, &log_fd);
    if (r < 0)
        return r;
    (void)snprintf(keep, sizeof keep, "%llu,%s", (unsigned long long)settings->keep_s,
                   settings->name);
    (void)snprintf(level, sizeof level, "%s", log_level_name(settings->log_level));
    char *argv[] = {(char *)(uintptr_t) "berthd",
                    (char *)(uintptr_t) "--keep-commands",
                    keep,
                    (char *)(uintptr_t) "--root",
                    (char *)(uintptr_t)settings->root,
                    (char *)(uintptr_t) "--log-level",
                    level,
                    NULL};
    pid_t child = fork();
    if (child < 0)
        return -errno;
    if (child == 0) {
        (void)setsid();
        pid_t grandchild = _Fork();
        if (grandchild == 0)
            become_keeper(stream, log_fd, limits, argv);
        _exit(grandchild < 0 ? 1 : 0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return status == 0 ? 0 : -EAGAIN;
}

void keeper_sweep(const char *root, const char *name)
{
    _cleanup_free_ char *path = NULL;
    if (asprintf(&path, "%s/exec", root) < 0)
        return;
    _cleanup_close_ int exec = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_close_ int lock =
        exec < 0 ? -1 : openat(exec, ".lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    json_t *told = NULL;
    const char *where = NULL;
    /* Held until it is done: one that starts meanwhile is told that there is another, and is tried
     * again. */
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0 ||
        json_file_read(exec, KEEPER_CONFINEMENT, &told) < 0)
        return;
    if (json_unpack(told, "{s:{s:{s:s}}}", "confinement", "cgroup", "text", &where) == 0)
        cgroup_remove_left(where, name);
    json_decref(told);
}

int keeper_find(const char *root, int *ret_fd)
{
    _cleanup_free_ char *path = NULL;
    int r = exec_path(root, ".socket", &path);
    return r < 0 ? r : unix_path_connect(path, ret_fd);
}

int keeper_start(const struct keeper_settings *settings, const struct spawn_limits *limits,
                 int *ret_fd)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    _cleanup_close_ int ours = pair[0];
    _cleanup_close_ int theirs = pair[1];
    int r = start(settings, limits, theirs);
    if (r == 0)
        *ret_fd = take_fd(&ours);
    return r;
}
