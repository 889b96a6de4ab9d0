#include "gateway/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "archive/pack.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "gateway/confine.h"
#include "gateway/conversation.h"
#include "gateway/counters.h"
#include "server/errand.h"

/* What a connection's process waits for a stream to the service. */
#define CONNECT_TIMEOUT_MS 10000

/* One that answers a connection. */
struct worker {
    pid_t pid;
    int channel; /* it asks for a stream by a byte, and is sent one */
};

struct gateway {
    const struct gateway_settings *settings;
    struct counters *counters;
    struct worker workers[GATEWAY_CONNECTIONS_MAX];
    size_t count;
};

/* --- in a connection's process --------------------------------------------------------------- */

static int ask_for_stream(void *context)
{
    const int *channel = context;
    struct errand e;
    int fd = -1;
    ssize_t n;
    while ((n = send(*channel, "", 1, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    int r = n < 0 ? -errno : errand_receive(*channel, CONNECT_TIMEOUT_MS, &e, &fd);
    if (r == 0 && fd < 0)
        r = e.number < 0 ? e.number : -EBADMSG;
    return r < 0 ? r : fd;
}

static _Noreturn void be_worker(struct gateway *g, int stream, int channel, const char *ticket)
{
    struct failure failure;
    sigset_t none;
    const struct conversation_options options = {.fd = stream,
                                                 .ticket = ticket,
                                                 .connect = ask_for_stream,
                                                 .context = &channel,
                                                 .counters = g->counters};
    (void)prctl(PR_SET_NAME, "berthd-http");
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    /* Other connections are other processes'. */
    close_range(GATEWAY_FD, GATEWAY_FD, 0);
    for (size_t i = 0; i < g->count; i++)
        close_fd(&g->workers[i].channel);
    if (gateway_confine(g->settings->confine, &failure) < 0) {
        log_error("%s", failure.text);
        _exit(1);
    }
    conversation_run(&options);
    exit(0);
}

/* --- in the first ---------------------------------------------------------------------------- */

/* Whoever cannot be served is told so, in the only words that this process says to a client. */
static void refuse(int stream)
{
    static const char text[] =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n"
        "Content-Length: 145\r\nConnection: close\r\nRetry-After: 5\r\n\r\n"
        "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,"
        "\"detail\":\"too many connections are being "
        "answered\",\"retry\":true,\"effect\":\"none\"}";
    ssize_t ignored = send(stream, text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored;
    (void)shutdown(stream, SHUT_WR);
}

static void begin(struct gateway *g, const struct errand *e, int *stream)
{
    int ends[2];
    if (g->count == GATEWAY_CONNECTIONS_MAX ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
        g->counters->refused++;
        refuse(*stream);
        return;
    }
    _cleanup_close_ int theirs = ends[1];
    pid_t pid = fork();
    if (pid == 0) {
        close_fd(&ends[0]);
        be_worker(g, take_fd(stream), take_fd(&theirs), e->text);
    }
    if (pid < 0) {
        log_error("no process for a connection: %s", strerror(errno));
        close_fd(&ends[0]);
        refuse(*stream);
        return;
    }
    g->workers[g->count++] = (struct worker){.pid = pid, .channel = ends[0]};
    g->counters->connections++;
    g->counters->open = g->count;
}

/* Relative to the root, where this process stands: its path may be longer than an address. */
static int connect_service(void)
{
    const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = GATEWAY_SOCKET};
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address) < 0)
        return -errno;
    return take_fd(&fd);
}

static void remove_worker(struct gateway *g, size_t i)
{
    int status;
    struct worker *w = &g->workers[i];
    close_fd(&w->channel);
    (void)kill(w->pid, SIGKILL); /* one that has not ended by itself is not waited for */
    while (waitpid(w->pid, &status, 0) < 0)
        if (errno != EINTR)
            status = 0;
    if (WIFSIGNALED(status)) {
        g->counters->crashed++;
        log_error("the process of a connection was ended by signal %d (%s)", WTERMSIG(status),
                  sigdescr_np(WTERMSIG(status)));
    }
    *w = g->workers[--g->count];
    g->counters->open = g->count;
}

/* False: it has ended. */
static bool serve_worker(const struct worker *w)
{
    char byte;
    ssize_t n = recv(w->channel, &byte, sizeof byte, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0)
        return false;
    struct errand answer = {.kind = ERRAND_ANSWER};
    _cleanup_close_ int fd = connect_service();
    if (fd < 0)
        answer.number = fd;
    return errand_send(w->channel, &answer, fd) == 0;
}

/* 0, -ECONNRESET at the end. */
static int serve_starter(struct gateway *g)
{
    struct errand e;
    _cleanup_close_ int stream = -1;
    int r = errand_receive(GATEWAY_FD, 0, &e, &stream);
    if (r == 0 && e.kind == ERRAND_CONNECTION && stream >= 0)
        begin(g, &e, &stream);
    return r == -ECONNRESET ? r : 0;
}

static int serve(struct gateway *g)
{
    for (;;) {
        struct pollfd fds[GATEWAY_CONNECTIONS_MAX + 1] = {{.fd = GATEWAY_FD, .events = POLLIN}};
        for (size_t i = 0; i < g->count; i++)
            fds[i + 1] = (struct pollfd){.fd = g->workers[i].channel, .events = POLLIN};
        if (poll(fds, g->count + 1, -1) < 0) {
            if (errno != EINTR)
                return -errno;
            continue;
        }
        /* From the last, since one that goes is replaced by that. */
        for (size_t i = g->count; i-- > 0;)
            if (fds[i + 1].revents && !serve_worker(&g->workers[i]))
                remove_worker(g, i);
        if (fds[0].revents && serve_starter(g) < 0)
            return 0;
    }
}

int gateway_process_run(const struct gateway_settings *settings, struct failure *ret_failure)
{
    struct gateway *g = calloc(1, sizeof *g);
    (void)prctl(PR_SET_NAME, "berthd-gateway");
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGINT, SIG_IGN); /* the starter is who ends */
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    if (!g)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    g->settings = settings;
    g->counters = counters_new();
    int r = 0;
    if (!g->counters)
        r = failure_set(ret_failure, -ENOMEM, "out of memory");
    else if (fcntl(GATEWAY_FD, F_SETFD, FD_CLOEXEC) < 0)
        r = failure_set(ret_failure, -errno, "berthd starts this by itself");
    else if (chdir(settings->root) < 0)
        r = failure_set(ret_failure, -errno, "%s: %s", settings->root, strerror(errno));
    pack_prepare();
    if (r == 0)
        r = gateway_confine_parent(ret_failure);
    if (r == 0 && (r = serve(g)) < 0)
        r = failure_set(ret_failure, r, "cannot wait: %s", strerror(-r));
    for (size_t i = 0; i < g->count; i++)
        close_fd(&g->workers[i].channel);
    free(g);
    return r;
}
