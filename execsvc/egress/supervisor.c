#include "egress/supervisor.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/clock.h"
#include "egress/control.h"
#include "egress/counts.h"
#include "egress/process.h"

/* A process that lived for longer ended for another reason than the one before it. */
#define LIVED_S 10

/* Descriptors of the process that is being started are moved to from here on before they are put in
 * place, so that putting one in place never overwrites another. */
#define SCRATCH_FD 16

/* What the process has not been told yet. */
enum news { NEWS_NONE, NEWS_OPEN, NEWS_CHANGE, NEWS_CLOSE };

/* A workspace. */
struct ward {
    TAILQ_ENTRY(ward) entry;
    uint64_t id;
    enum news news;
    char *name;
    struct allow_list *list;
    int listener;
};

struct supervisor {
    struct event_base *base;
    int directory;
    const struct spawn_limits *limits;
    TAILQ_HEAD(, ward) wards;
    uint64_t last_id;
    int pidfd; /* -1: there is no process */
    int control;
    struct event *ended;
    struct event *writable;
    struct event *again;
    uint64_t delay_ms;
    uint64_t started_ns;
};

static void sync_wards(struct supervisor *s);

static void ward_free(struct supervisor *s, struct ward *w)
{
    TAILQ_REMOVE(&s->wards, w, entry);
    close_fd(&w->listener);
    allow_list_free(w->list);
    free(w->name);
    free(w);
}

/* --- the process ----------------------------------------------------------------------------- */

static int open_file(const struct supervisor *s, const char *name, int flags)
{
    int fd = openat(s->directory, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    return fd < 0 ? -errno : fd;
}

/* In the child: async-signal-safe functions only. */
static _Noreturn void become_process(const struct spawn_limits *limits, int control, int log_fd,
                                     int old_log, int counts, char **argv)
{
    int null_fd = file_open_null();
    control = fcntl(control, F_DUPFD_CLOEXEC, SCRATCH_FD);
    log_fd = fcntl(log_fd, F_DUPFD_CLOEXEC, SCRATCH_FD);
    old_log = fcntl(old_log, F_DUPFD_CLOEXEC, SCRATCH_FD);
    counts = fcntl(counts, F_DUPFD_CLOEXEC, SCRATCH_FD);
    if (null_fd < 0 || control < 0 || log_fd < 0 || old_log < 0 || counts < 0 ||
        dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 || dup2(log_fd, 2) < 0 ||
        dup2(control, EGRESS_CONTROL_FD) < 0 || dup2(old_log, EGRESS_OLD_LOG_FD) < 0 ||
        dup2(counts, EGRESS_COUNTS_FD) < 0 || chdir("/") < 0 ||
        close_range(EGRESS_COUNTS_FD + 1, ~0U, 0) < 0)
        _exit(127);
    spawn_self(limits, argv);
}

static void on_ended(evutil_socket_t fd, short what, void *context);

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    sync_wards(context);
}

static int watch(struct supervisor *s)
{
    s->ended = event_new(s->base, s->pidfd, EV_READ, on_ended, s);
    s->writable = event_new(s->base, s->control, EV_WRITE, on_writable, s);
    return s->ended && s->writable && event_add(s->ended, NULL) == 0 ? 0 : -ENOMEM;
}

/* It ends by itself without its control socket. */
static void forget_process(struct supervisor *s)
{
    if (s->ended)
        event_free(take_ptr(s->ended));
    if (s->writable)
        event_free(take_ptr(s->writable));
    close_fd(&s->control);
    close_fd(&s->pidfd);
}

static int fork_process(struct supervisor *s)
{
    char level[16];
    int ends[2];
    char *argv[] = {(char *)(uintptr_t) "berthd",
                    (char *)(uintptr_t) "--egress",
                    (char *)(uintptr_t) "",
                    (char *)(uintptr_t) "--log-level",
                    (char *)(uintptr_t)strcpy(level, log_level_name(log_level_get())),
                    NULL};
    _cleanup_close_ int log_fd = open_file(s, SUPERVISOR_LOG, O_APPEND);
    _cleanup_close_ int old_log = open_file(s, SUPERVISOR_OLD_LOG, 0);
    _cleanup_close_ int counts = open_file(s, COUNTS_FILE, 0);
    if (log_fd < 0 || old_log < 0 || counts < 0)
        return log_fd < 0 ? log_fd : old_log < 0 ? old_log : counts;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    s->control = ends[0];
    _cleanup_close_ int theirs = ends[1];
    pid_t pid = _Fork();
    if (pid == 0)
        become_process(s->limits, theirs, log_fd, old_log, counts, argv);
    if (pid < 0)
        return -errno;
    /* Nobody else waits for it, so the number is still its own. */
    s->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (s->pidfd >= 0)
        return 0;
    int error = errno;
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    return -error;
}

static void start_later(struct supervisor *s)
{
    const struct timeval time = {.tv_sec = (time_t)(s->delay_ms / 1000),
                                 .tv_usec = (suseconds_t)(s->delay_ms % 1000 * 1000)};
    (void)event_add(s->again, &time);
    s->delay_ms =
        2 * s->delay_ms < SUPERVISOR_DELAY_MAX_MS ? 2 * s->delay_ms : SUPERVISOR_DELAY_MAX_MS;
}

static void kill_process(struct supervisor *s)
{
    (void)syscall(SYS_pidfd_send_signal, s->pidfd, SIGKILL, NULL, 0);
}

static void start(struct supervisor *s)
{
    int r = fork_process(s);
    if (r == 0)
        r = watch(s);
    if (r < 0) {
        log_error("the proxy of commands cannot be started: %s", strerror(-r));
        if (s->pidfd >= 0) {
            siginfo_t info;
            kill_process(s);
            (void)waitid(P_PIDFD, (id_t)s->pidfd, &info, WEXITED);
        }
        forget_process(s);
        start_later(s);
        return;
    }
    s->started_ns = clock_monotonic_ns();
    sync_wards(s);
}

static void on_again(evutil_socket_t fd, short what, void *context)
{
    struct supervisor *s = context;
    if (s->pidfd < 0 && !TAILQ_EMPTY(&s->wards))
        start(s);
}

/* The next one is told everything anew. */
static void on_ended(evutil_socket_t fd, short what, void *context)
{
    struct supervisor *s = context;
    struct ward *next;
    siginfo_t info = {0};
    (void)waitid(P_PIDFD, (id_t)s->pidfd, &info, WEXITED | WNOHANG);
    bool let_gone = s->control < 0;
    if (!let_gone)
        log_warning("the proxy of commands has ended: %s %d",
                    info.si_code == CLD_EXITED ? "status" : "signal", info.si_status);
    forget_process(s);
    for (struct ward *w = TAILQ_FIRST(&s->wards); w; w = next) {
        next = TAILQ_NEXT(w, entry);
        if (w->news == NEWS_CLOSE)
            ward_free(s, w);
        else
            w->news = NEWS_OPEN;
    }
    if (TAILQ_EMPTY(&s->wards))
        return;
    if (let_gone || clock_monotonic_ns() - s->started_ns > LIVED_S * NSEC_PER_SEC)
        s->delay_ms = SUPERVISOR_DELAY_MS;
    start_later(s);
}

/* It does what it was told before, and then ends, since there is nobody to tell it more. */
static void let_go(struct supervisor *s)
{
    if (s->writable)
        event_free(take_ptr(s->writable));
    close_fd(&s->control);
}

/* --- what it is told ------------------------------------------------------------------------- */

static int tell(const struct supervisor *s, const struct ward *w)
{
    struct control_message m = {
        .id = w->id, .name = w->name, .list = w->list, .listener = w->listener};
    switch (w->news) {
    case NEWS_NONE:
        return 0;
    case NEWS_OPEN:
        m.kind = CONTROL_OPEN;
        break;
    case NEWS_CHANGE:
        m.kind = CONTROL_CHANGE;
        break;
    case NEWS_CLOSE:
        m.kind = CONTROL_CLOSE;
        break;
    }
    return control_send(s->control, &m);
}

static void sync_wards(struct supervisor *s)
{
    struct ward *next;
    for (struct ward *w = TAILQ_FIRST(&s->wards); w; w = next) {
        next = TAILQ_NEXT(w, entry);
        int r = tell(s, w);
        if (r == -EAGAIN) {
            (void)event_add(s->writable, NULL);
            return;
        }
        if (r < 0) { /* it has ended, or is of no more use: another one is told */
            kill_process(s);
            return;
        }
        if (w->news == NEWS_CLOSE)
            ward_free(s, w);
        else
            w->news = NEWS_NONE;
    }
    if (TAILQ_EMPTY(&s->wards))
        let_go(s);
}

int supervisor_begin(struct supervisor *s, int *listener, const char *name,
                     const struct allow_list *list, struct ward **ret)
{
    struct ward *w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    *w = (struct ward){.id = ++s->last_id, .news = NEWS_OPEN, .name = strdup(name), .listener = -1};
    int r = w->name ? allow_list_copy(list, &w->list) : -ENOMEM;
    TAILQ_INSERT_TAIL(&s->wards, w, entry);
    if (r < 0) {
        ward_free(s, w);
        return r;
    }
    w->listener = take_fd(listener);
    if (s->control >= 0)
        sync_wards(s);
    else if (s->pidfd < 0 && !event_pending(s->again, EV_TIMEOUT, NULL))
        start(s);
    *ret = w;
    return 0;
}

int supervisor_change(struct supervisor *s, struct ward *w, const struct allow_list *list)
{
    struct allow_list *copy;
    int r = allow_list_copy(list, &copy);
    if (r < 0)
        return r;
    allow_list_free(w->list);
    w->list = copy;
    if (w->news == NEWS_NONE)
        w->news = NEWS_CHANGE;
    if (s->control >= 0)
        sync_wards(s);
    return 0;
}

void supervisor_end(struct supervisor *s, struct ward *w)
{
    /* Nobody can connect any more once the process has closed its own. */
    close_fd(&w->listener);
    if (w->news == NEWS_OPEN)
        ward_free(s, w);
    else
        w->news = NEWS_CLOSE;
    if (s->control >= 0)
        sync_wards(s);
}

/* --- birth and death ------------------------------------------------------------------------- */

int supervisor_new(struct event_base *base, int directory, const struct spawn_limits *limits,
                   struct supervisor **ret)
{
    struct supervisor *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    *s = (struct supervisor){.base = base,
                             .directory = directory,
                             .limits = limits,
                             .pidfd = -1,
                             .control = -1,
                             .delay_ms = SUPERVISOR_DELAY_MS};
    TAILQ_INIT(&s->wards);
    s->again = evtimer_new(base, on_again, s);
    if (!s->again) {
        free(s);
        return -ENOMEM;
    }
    *ret = s;
    return 0;
}

void supervisor_free(struct supervisor *s)
{
    struct ward *w;
    if (!s)
        return;
    while ((w = TAILQ_FIRST(&s->wards)))
        ward_free(s, w);
    forget_process(s);
    event_free(s->again);
    free(s);
}
