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
#include "keeper/process.h"
#include "server/arguments.h"
#include "server/errand.h"
#include "server/sockets.h"
#include "store/store.h"

/* What a service calls itself: this, and 16 bytes in hexadecimal. */
#define NAME_PREFIX "berth-"
#define NAME_DIGITS 32

struct starter {
    const struct service_settings *settings;
    struct arguments arguments;
    struct spawn_limits limits;
    sigset_t signals_before;
    int signals;
    char *root;
    int lock;
    struct sockets sockets;
    pid_t service; /* 0: there is none */
    int control;
    bool ready;
    bool stopping;
};

static void starter_release(struct starter *s)
{
    sockets_close(&s->sockets);
    close_fd(&s->control);
    close_fd(&s->lock);
    close_fd(&s->signals);
    free(s->root);
    /* Whatever came while they were waited for here has been seen to. */
    (void)sigprocmask(SIG_SETMASK, &s->signals_before, NULL);
}
#define _cleanup_starter_ _cleanup_(starter_release)

/* --- the service ----------------------------------------------------------------------------- */

static _Noreturn void become_service(const struct starter *s, int control, pid_t starter)
{
    /* A service without a starter could start no commands, and nobody would look after it. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != starter ||
        (control == ERRAND_FD ? fcntl(control, F_SETFD, 0) : dup2(control, ERRAND_FD)) < 0)
        _exit(127);
    spawn_self(&s->limits, (char **)(uintptr_t)s->arguments.argv);
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
    e = (struct errand){.kind = ERRAND_BEGIN};
    return r < 0 ? r : errand_send(s->control, &e, -1);
}

static int start_service(struct starter *s, struct failure *ret_failure)
{
    int ends[2];
    pid_t self = getpid();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return failure_set(ret_failure, -errno, "a socket: %s", strerror(errno));
    s->control = ends[0];
    _cleanup_close_ int theirs = ends[1];
    pid_t pid = fork();
    if (pid == 0)
        become_service(s, theirs, self);
    if (pid < 0)
        return failure_set(ret_failure, -errno, "cannot start the service: %s", strerror(errno));
    s->service = pid;
    /* One that has ended already is noticed by its end. */
    (void)send_beginning(s);
    return 0;
}

/* --- what it asks for ------------------------------------------------------------------------ */

/* It becomes the name of directories. */
static bool is_service_name(const char *name)
{
    size_t prefix = strlen(NAME_PREFIX);
    return strlen(name) == prefix + NAME_DIGITS && strncmp(name, NAME_PREFIX, prefix) == 0 &&
           strspn(name + prefix, "0123456789abcdef") == NAME_DIGITS;
}

static int connect_keeper(const struct starter *s, const char *name, struct failure *f)
{
    const struct keeper_settings settings = {.root = s->root,
                                             .name = name,
                                             .keep_s = s->settings->keep_verdicts_s,
                                             .log_level = s->settings->log_level};
    int fd;
    if (!is_service_name(name))
        return failure_set(f, -EINVAL, "this is no name of a service");
    int r = keeper_connect(&settings, &s->limits, &fd, f);
    return r < 0 ? r : fd;
}

static int open_file(int (*open_named)(const char *file), const char *file, struct failure *f)
{
    int fd = file ? open_named(file) : -ENOENT;
    return fd < 0 ? failure_set(f, fd, "%s", strerror(-fd)) : fd;
}

static void answer(const struct starter *s, const struct errand *e)
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
    if (e.kind == ERRAND_READY)
        s->ready = true;
    else if (e.kind == ERRAND_STOPPING)
        sockets_close(&s->sockets);
    else
        answer(s, &e);
}

/* --- signals --------------------------------------------------------------------------------- */

/* The second signal does what it does to other programs; the service goes with this process. */
static _Noreturn void end_at_once(const struct starter *s, int number)
{
    sigset_t one;
    (void)kill(s->service, SIGKILL);
    while (waitpid(s->service, NULL, 0) < 0 && errno == EINTR)
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
        if (pid != s->service)
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
    if (info.ssi_signo == SIGHUP)
        (void)kill(s->service, SIGHUP);
    else
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

static int serve(struct starter *s)
{
    for (;;) {
        struct pollfd fds[] = {{.fd = s->signals, .events = POLLIN},
                               {.fd = s->control, .events = POLLIN}};
        int status;
        if (poll(fds, ARRAY_SIZE(fds), -1) < 0 && errno != EINTR)
            return -errno;
        /* What it said last comes before its end. */
        if (fds[1].revents)
            on_errand(s);
        else if (fds[0].revents && on_signals(s, &status))
            return status;
    }
}

int starter_run(const struct service_settings *settings, int *ret_status,
                struct failure *ret_failure)
{
    _cleanup_starter_ struct starter s = {
        .settings = settings, .signals = -1, .lock = -1, .control = -1};
    (void)sigprocmask(SIG_SETMASK, NULL, &s.signals_before);
    spawn_limits_read(&s.limits);
    arguments_set(&s.arguments, "--serve", settings);
    int r = watch_signals(&s);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot start: %s", strerror(-r));
    r = store_claim(settings->root, &s.root, &s.lock, ret_failure);
    if (r == 0)
        r = sockets_open(settings, s.root, &s.sockets, ret_failure);
    if (r == 0)
        r = start_service(&s, ret_failure);
    if (r < 0)
        return r;
    int status = serve(&s);
    if (status < 0)
        return failure_set(ret_failure, status, "cannot wait: %s", strerror(-status));
    if (WIFSIGNALED(status))
        log_error("the service was ended by signal %d (%s)", WTERMSIG(status),
                  sigdescr_np(WTERMSIG(status)));
    *ret_status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    return 0;
}
