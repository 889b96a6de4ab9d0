#include "server/listener.h"

#include <event2/util.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "server/connection.h"

/* Accepted per turn of the loop: a flood does not starve those who are already in. */
#define ACCEPT_BATCH 64

/* Pause after running out of descriptors or memory: the socket stays readable, and without a
 * pause the loop would spin. */
#define ACCEPT_PAUSE_MS 100

/* Bytes in the kernel that have not been sent: what a small reply waits behind. */
#define NOT_SENT_MAX (128 << 10)

struct listener {
    TAILQ_ENTRY(listener) link;
    struct server *server;
    enum listener_kind kind;
    char *url;
    int fd;
    struct tls *tls;
    struct event *accept;
    struct event *resume;
    struct connection_list pending;
    unsigned pending_count;
};

struct listener *listener_first(struct server *s)
{
    return TAILQ_FIRST(&s->listeners);
}

struct listener *listener_next(struct listener *l)
{
    return TAILQ_NEXT(l, link);
}

enum listener_kind listener_kind(const struct listener *l)
{
    return l->kind;
}

const char *listener_url(const struct listener *l)
{
    return l->url;
}

struct connection_list *listener_pending(struct listener *l)
{
    return &l->pending;
}

void listener_pending_changed(struct listener *l, int change)
{
    l->pending_count += (unsigned)change;
}

unsigned listener_pending_count(const struct listener *l)
{
    return l->pending_count;
}

/* --- accepting ------------------------------------------------------------------- */

static void set_option(int fd, int level, int option, int value)
{
    /* Refinements all of them: a kernel without one still serves. */
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

static void prepare_tcp(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1); /* replies are small and awaited */
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOT_SENT_MAX);
    /* A peer without power or network is noticed in a minute, even when nothing is sent. */
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

static void peer_of_unix(int fd, struct peer *ret)
{
    struct ucred credentials;
    socklen_t len = sizeof credentials;
    ret->local = true;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &len) < 0) {
        ret->uid = (uid_t)-1;
        (void)snprintf(ret->name, sizeof ret->name, "an unknown local user");
        return;
    }
    ret->uid = credentials.uid;
    ret->pid = credentials.pid;
    (void)snprintf(ret->name, sizeof ret->name, "user %u (process %d)", (unsigned)credentials.uid,
                   (int)credentials.pid);
}

static void accepted(struct listener *l, int fd, const struct sockaddr *address, socklen_t len)
{
    struct server *s = l->server;
    struct peer peer = {0};
    SSL *ssl = NULL;
    s->counters.accepted++;
    if (l->kind == LISTENER_UNIX || l->kind == LISTENER_GATEWAY) {
        peer_of_unix(fd, &peer);
    } else {
        prepare_tcp(fd);
        sockets_address_text(address, len, peer.name, sizeof peer.name);
        peer.address = failures_address(address);
        peer.loopback = l->kind == LISTENER_HTTP; /* which listens nowhere else */
    }
    if (l->pending_count >= s->pending_max) {
        s->counters.dropped_early++;
        connection_end(TAILQ_FIRST(&l->pending), LOG_LEVEL_INFO,
                       "dropped for a newer one: too many have not got this far");
    }
    if (l->kind == LISTENER_HTTPS && !(ssl = tls_accept(l->tls))) {
        (void)close(fd);
        server_log_refusal(s, "no memory for a TLS connection");
        return;
    }
    if (connection_new(s, l, fd, ssl, &peer) < 0)
        server_log_refusal(s, "no memory for a connection");
}

static void accept_failed(struct listener *l, int error)
{
    struct server *s = l->server;
    s->counters.accept_errors++;
    server_log_refusal(s, "cannot accept on %s: %s", l->url, strerror(error));
    /* The oldest that has not authenticated makes room for whoever waits. */
    struct connection *oldest = TAILQ_FIRST(&l->pending);
    if (oldest) {
        s->counters.dropped_early++;
        connection_end(oldest, LOG_LEVEL_INFO, "dropped: out of descriptors or memory");
    }
    struct timeval pause = {.tv_usec = ACCEPT_PAUSE_MS * 1000};
    (void)event_del(l->accept);
    (void)event_add(l->resume, &pause);
}

static void on_accept(evutil_socket_t listening, short what, void *context)
{
    struct listener *l = context;
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        struct sockaddr_storage address;
        socklen_t len = sizeof address;
        int fd =
            accept4(listening, (struct sockaddr *)&address, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            accepted(l, fd, (struct sockaddr *)&address, len);
            continue;
        }
        if (errno == EAGAIN)
            return;
        /* accept(2): errors of the new connection itself are passed on here as well. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            accept_failed(l, errno);
            return;
        }
    }
}

static void on_resume(evutil_socket_t fd, short what, void *context)
{
    struct listener *l = context;
    if (!l->server->stopping)
        (void)event_add(l->accept, NULL);
}

/* --- opening --------------------------------------------------------------------- */

static void listener_free(struct listener *l)
{
    if (l->accept)
        event_free(l->accept);
    if (l->resume)
        event_free(l->resume);
    close_fd(&l->fd);
    free(l->url);
    free(l);
}
DEFINE_CLEANUP(struct listener *, listener_free);
#define _cleanup_listener_ _cleanup_(listener_free_pointer)

int listener_open(struct server *s, enum listener_kind kind, const char *url, int *fd,
                  struct tls *tls)
{
    _cleanup_listener_ struct listener *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    l->server = s;
    l->kind = kind;
    l->fd = take_fd(fd);
    l->tls = tls;
    l->url = strdup(url);
    TAILQ_INIT(&l->pending);
    l->accept = event_new(s->base, l->fd, EV_READ | EV_PERSIST, on_accept, l);
    l->resume = event_new(s->base, -1, 0, on_resume, l);
    if (!l->url || !l->accept || !l->resume || event_add(l->accept, NULL) < 0)
        return -ENOMEM;
    if (kind != LISTENER_GATEWAY)
        log_info("listening on %s", l->url);
    TAILQ_INSERT_TAIL(&s->listeners, l, link);
    l = NULL;
    return 0;
}

/* --- closing --------------------------------------------------------------------- */

void listener_stop_all(struct server *s)
{
    struct listener *l;
    TAILQ_FOREACH(l, &s->listeners, link)
    {
        if (l->fd < 0)
            continue;
        (void)event_del(l->accept);
        (void)event_del(l->resume);
        close_fd(&l->fd);
    }
}

void listener_free_all(struct server *s)
{
    while (!TAILQ_EMPTY(&s->listeners)) {
        struct listener *l = TAILQ_FIRST(&s->listeners);
        TAILQ_REMOVE(&s->listeners, l, link);
        listener_free(l);
    }
}
