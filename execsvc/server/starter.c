#include "server/starter.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "access/audit.h"
#include "access/grants_file.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "keeper/process.h"
#include "server/arguments.h"
#include "server/errand.h"
#include "server/gateway_link.h"
#include "server/keeper_unit.h"
#include "server/notify.h"
#include "server/service.h"
#include "server/sockets.h"
#include "store/fault.h"
#include "store/store.h"

/* One that lived for longer ended for another reason than the one before it. */
#define LIVED_S 10

/* Where the service's end of the pair is moved to before it is put in place. */
#define SCRATCH_FD 16

struct starter {
    const struct service_settings *settings;
    struct arguments arguments;
    struct spawn_limits limits;
    sigset_t signals_before;
    int signals;
    int notify; /* -1: nobody wants to know */
    char *root;
    int lock;
    struct sockets sockets;
    pid_t service; /* 0: there is none */
    int control;
    struct gateway_link gateway;
    bool ready; /* one of them has served */
    bool stopping;
    int32_t crashes;
    uint64_t started_ns;
    uint64_t delay_ms; /* before the next one */
    uint64_t again_ns; /* when that is to be started; 0: now is not the time */
};

static void starter_release(struct starter *s)
{
    sockets_close(&s->sockets);
    gateway_link_close(&s->gateway);
    close_fd(&s->control);
    close_fd(&s->lock);
    close_fd(&s->signals);
    close_fd(&s->notify);
    free(s->root);
    /* Whatever came while they were waited for here has been seen to. */
    (void)sigprocmask(SIG_SETMASK, &s->signals_before, NULL);
}
#define _cleanup_starter_ _cleanup_(starter_release)

/* --- the service ----------------------------------------------------------------------------- */

/* In the child, which has nothing of the starter's afterwards but its end of the pair. */
static void leave_starter(struct starter *s, int control, pid_t starter)
{
    /* A service without a starter could start no commands, and nobody would look after it. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != starter || (control = fcntl(control, F_DUPFD_CLOEXEC, SCRATCH_FD)) < 0)
        _exit(127);
    sockets_forget(&s->sockets);
    gateway_link_forget(&s->gateway);
    close_fd(&s->lock);
    close_fd(&s->signals);
    close_fd(&s->notify);
    close_fd(&s->control);
    if (dup2(control, ERRAND_FD) < 0)
        _exit(127);
    (void)close(control);
}

static int send_beginning(struct starter *s)
{
    struct errand e = {.kind = ERRAND_LOCK};
    (void)snprintf(e.text, sizeof e.text, "%s", s->root);
    int r = errand_send(s->control, &e, s->lock);
    for (size_t i = 0; r == 0 && i < s->sockets.count; i++) {
        const struct listening *l = &s->sockets.list[i];
        e = (struct errand){.kind = ERRAND_LISTENER, .number = (int32_t)l->kind};
        (void)snprintf(e.text, sizeof e.text, "%s", l->url);
        r = errand_send(s->control, &e, l->fd);
    }
    e = (struct errand){.kind = ERRAND_BEGIN, .number = s->crashes};
    return r < 0 ? r : errand_send(s->control, &e, -1);
}

/* *ret_child: this is the child, and the first of them, which is the service without an execve:
 * that would take as long again as all else at the start. Later ones are other programs to whoever
 * has crashed one, with addresses of their own. */
static int start_service(struct starter *s, bool *ret_child, struct failure *ret_failure)
{
    int ends[2];
    pid_t self = getpid();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return failure_set(ret_failure, -errno, "a socket: %s", strerror(errno));
    close_fd(&s->control);
    s->control = ends[0];
    s->started_ns = clock_monotonic_ns();
    _cleanup_close_ int theirs = ends[1];
    pid_t pid = fork();
    if (pid == 0) {
        leave_starter(s, take_fd(&theirs), self);
        if (s->crashes > 0)
            spawn_self(&s->limits, (char **)(uintptr_t)s->arguments.argv);
        *ret_child = true;
        return 0;
    }
    if (pid < 0)
        return failure_set(ret_failure, -errno, "cannot start the service: %s", strerror(errno));
    s->service = pid;
    fault_forget();
    /* One that has ended already is noticed by its end. */
    (void)send_beginning(s);
    return 0;
}

/* --- what it asks for ------------------------------------------------------------------------ */

static bool nobody_listens(int r)
{
    return r == -ENOENT || r == -ECONNREFUSED;
}

/* The one that there is; one that somebody else starts; or one that is started here. */
static int connect_keeper(const struct starter *s, const char *name, struct failure *f)
{
    const struct keeper_settings settings = {.root = s->root,
                                             .name = name,
                                             .keep_s = s->settings->keep_verdicts_s,
                                             .log_level = s->settings->log_level};
    int fd;
    if (!keeper_name_is_valid(name))
        return failure_set(f, -EINVAL, "this is no name of a service");
    int r = keeper_find(s->root, &fd);
    if (nobody_listens(r) && s->settings->keeper_socket) {
        r = keeper_unit_ask(s->settings->keeper_socket, &settings, &fd);
        if (r < 0)
            log_warning("no keeper of commands is to be had at %s (%s): one is started here",
                        s->settings->keeper_socket, strerror(-r));
        r = r < 0 ? -ENOENT : 0;
    }
    if (nobody_listens(r))
        r = keeper_start(&settings, &s->limits, &fd);
    if (r < 0)
        return failure_set(f, r, "the keeper of commands cannot be started: %s", strerror(-r));
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static int open_file(int (*open_named)(const char *file), const char *file, struct failure *f)
{
    int fd = file ? open_named(file) : -ENOENT;
    return fd < 0 ? failure_set(f, fd, "%s", strerror(-fd)) : fd;
}

static int open_gateway(struct starter *s, const char *ticket, struct failure *f)
{
    int fd;
    int r = gateway_link_open(&s->gateway, ticket, &fd, f);
    return r < 0 ? r : fd;
}

static void answer(struct starter *s, const struct errand *e)
{
    struct errand reply = {.kind = ERRAND_ANSWER, .serial = e->serial};
    struct failure f = {.text = ""};
    int fd = -EINVAL;
    if (e->kind == ERRAND_KEEPER)
        fd = connect_keeper(s, e->text, &f);
    else if (e->kind == ERRAND_ACCESS_FILE)
        fd = open_file(grants_open, s->settings->access_file, &f);
    else if (e->kind == ERRAND_AUDIT_LOG)
        fd = open_file(audit_file_open, s->settings->audit_log, &f);
    else if (e->kind == ERRAND_GATEWAY)
        fd = open_gateway(s, e->text, &f);
    if (fd < 0) {
        reply.number = fd;
        (void)snprintf(reply.text, sizeof reply.text, "%s", f.text);
    }
    (void)errand_send(s->control, &reply, fd);
    close_fd(&fd);
}

static void on_errand(struct starter *s)
{
    struct errand e;
    _cleanup_close_ int fd = -1;
    int r = errand_receive(s->control, 0, &e, &fd);
    if (r == -ECONNRESET)
        close_fd(&s->control); /* it ends */
    if (r < 0)
        return;
    if (e.kind == ERRAND_READY) {
        s->ready = true;
        notify_send(s->notify, "READY=1");
    } else if (e.kind == ERRAND_STOPPING)
        sockets_close(&s->sockets);
    else
        answer(s, &e);
}

/* --- signals --------------------------------------------------------------------------------- */

/* The second signal does what it does to other programs; the service goes with this process. */
static _Noreturn void end_at_once(const struct starter *s, int number)
{
    sigset_t one;
    if (s->service > 0)
        (void)kill(s->service, SIGKILL);
    while (s->service > 0 && waitpid(s->service, NULL, 0) < 0 && errno == EINTR)
        ;
    (void)signal(number, SIG_DFL);
    (void)raise(number);
    (void)sigemptyset(&one);
    (void)sigaddset(&one, number);
    (void)sigprocmask(SIG_UNBLOCK, &one, NULL);
    _exit(128 + number); /* process 1 of a container has to by itself */
}

static void on_stop(struct starter *s, int number)
{
    if (s->stopping)
        end_at_once(s, number);
    s->stopping = true;
    notify_send(s->notify, "STOPPING=1");
    /* Nobody is to wait in a queue that is not served any more. */
    sockets_close(&s->sockets);
    if (s->control >= 0)
        (void)shutdown(s->control, SHUT_WR);
}

/* Of others too: whoever is process 1 of a container is given those that lost their parent. */
static bool reap(struct starter *s, int *ret_status)
{
    bool ended = false;
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (gateway_link_reaped(&s->gateway, pid, status) || pid != s->service)
            continue;
        s->service = 0;
        *ret_status = status;
        ended = true;
    }
    return ended;
}

/* True: the service has ended, with this status. */
static bool on_signals(struct starter *s, int *ret_status)
{
    struct signalfd_siginfo info;
    if (read(s->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return false;
    if (info.ssi_signo == SIGCHLD)
        return reap(s, ret_status);
    if (info.ssi_signo == SIGHUP && s->service > 0)
        (void)kill(s->service, SIGHUP);
    else if (info.ssi_signo != SIGHUP)
        on_stop(s, (int)info.ssi_signo);
    return false;
}

static int watch_signals(struct starter *s)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    (void)sigaddset(&set, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &set, &s->signals_before) < 0)
        return -errno;
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signals < 0 ? -errno : 0;
}

/* --- the process ----------------------------------------------------------------------------- */

/* One that has served, and was not asked to end, is not the last one. Sockets and lock are still
 * here, so that clients wait instead of being refused. */
static void start_later(struct starter *s, int status)
{
    uint64_t now = clock_monotonic_ns();
    if (WIFSIGNALED(status))
        log_error("the service was ended by signal %d (%s); it is started again", WTERMSIG(status),
                  sigdescr_np(WTERMSIG(status)));
    else
        log_error("the service ended with status %d; it is started again", WEXITSTATUS(status));
    s->crashes += s->crashes < INT32_MAX;
    if (now - s->started_ns > LIVED_S * NSEC_PER_SEC)
        s->delay_ms = 0;
    s->again_ns = now + s->delay_ms * NSEC_PER_MSEC;
    s->delay_ms = s->delay_ms == 0                         ? STARTER_DELAY_MS
                  : 2 * s->delay_ms < STARTER_DELAY_MAX_MS ? 2 * s->delay_ms
                                                           : STARTER_DELAY_MAX_MS;
}

static void start_again(struct starter *s)
{
    struct failure failure;
    bool child;
    s->again_ns = 0;
    if (start_service(s, &child, &failure) == 0)
        return;
    log_error("%s", failure.text);
    s->again_ns = clock_monotonic_ns() + STARTER_DELAY_MAX_MS * NSEC_PER_MSEC;
}

static int wait_ms(const struct starter *s)
{
    uint64_t now = clock_monotonic_ns();
    if (s->again_ns == 0)
        return -1;
    return s->again_ns <= now ? 0 : (int)((s->again_ns - now) / NSEC_PER_MSEC) + 1;
}

/* Until the last service has ended; its status. */
static int serve(struct starter *s)
{
    for (;;) {
        struct pollfd fds[] = {{.fd = s->signals, .events = POLLIN},
                               {.fd = s->control, .events = POLLIN}};
        int status;
        if (s->stopping && s->service == 0)
            return 0;
        int n = poll(fds, ARRAY_SIZE(fds), wait_ms(s));
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n == 0 && wait_ms(s) == 0)
            start_again(s);
        /* What it said last comes before its end. */
        if (n > 0 && fds[1].revents)
            on_errand(s);
        else if (n > 0 && fds[0].revents && on_signals(s, &status)) {
            if (!s->ready || s->stopping || status == 0)
                return status;
            start_later(s, status);
        }
    }
}

/* As the starter, until the service has ended; or as the service (*ret_child). */
static int run(struct starter *s, struct activation *activation, bool *ret_child, int *ret_status,
               struct failure *ret_failure)
{
    spawn_limits_read(&s->limits);
    arguments_set(&s->arguments, "--serve", s->settings);
    int r = watch_signals(s);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot start: %s", strerror(-r));
    r = store_claim(s->settings->root, &s->root, &s->lock, ret_failure);
    if (r == 0)
        r = sockets_open(s->settings, s->root, activation, &s->sockets, ret_failure);
    s->gateway.root = s->root;
    if (r == 0)
        r = start_service(s, ret_child, ret_failure);
    if (r < 0 || *ret_child)
        return r;
    int status = serve(s);
    if (status < 0)
        return failure_set(ret_failure, status, "cannot wait: %s", strerror(-status));
    if (WIFSIGNALED(status))
        log_error("the service was ended by signal %d (%s)", WTERMSIG(status),
                  sigdescr_np(WTERMSIG(status)));
    *ret_status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    return 0;
}

static int run_released(const struct service_settings *settings, struct activation *activation,
                        bool *ret_child, int *ret_status, struct failure *ret_failure)
{
    _cleanup_starter_ struct starter s = {
        .settings = settings,
        .signals = -1,
        .notify = notify_open(),
        .lock = -1,
        .control = -1,
        .gateway = {.settings = settings, .limits = &s.limits, .control = -1}};
    (void)sigprocmask(SIG_SETMASK, NULL, &s.signals_before);
    return run(&s, activation, ret_child, ret_status, ret_failure);
}

int starter_run(const struct service_settings *settings, struct activation *activation,
                int *ret_status, struct failure *ret_failure)
{
    bool child = false;
    int r = run_released(settings, activation, &child, ret_status, ret_failure);
    if (r < 0 || !child)
        return r;
    *ret_status = 0;
    return service_run(settings, ret_failure);
}
