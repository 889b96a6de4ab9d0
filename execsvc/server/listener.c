#include "server/listener.h"

#include <event2/util.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "config/config.h"
#include "server/connection.h"
#include "stream/unix_path.h"

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
    char *path; /* unix: to be removed at the end, if it is still ours */
    dev_t path_dev;
    ino_t path_ino;
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

static void address_text(const struct sockaddr *address, socklen_t len, char *out, size_t size)
{
    char host[64] = "?", port[8] = "?";
    (void)getnameinfo(address, len, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    (void)snprintf(out, size, address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static void accepted(struct listener *l, int fd, const struct sockaddr *address, socklen_t len)
{
    struct server *s = l->server;
    struct peer peer = {0};
    SSL *ssl = NULL;
    s->counters.accepted++;
    if (l->kind == LISTENER_UNIX) {
        peer_of_unix(fd, &peer);
    } else {
        prepare_tcp(fd);
        address_text(address, len, peer.name, sizeof peer.name);
        peer.address = failures_address(address);
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
    free(l->path);
    free(l->url);
    free(l);
}
DEFINE_CLEANUP(struct listener *, listener_free);
#define _cleanup_listener_ _cleanup_(listener_free_pointer)

static struct listener *listener_new(struct server *s, enum listener_kind kind)
{
    struct listener *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->server = s;
    l->kind = kind;
    l->fd = -1;
    TAILQ_INIT(&l->pending);
    return l;
}

/* l->fd listens; takes l. */
static int listener_start(struct listener *l, struct failure *ret_failure)
{
    struct server *s = l->server;
    _cleanup_listener_ struct listener *owned = l;
    l->accept = event_new(s->base, l->fd, EV_READ | EV_PERSIST, on_accept, l);
    l->resume = event_new(s->base, -1, 0, on_resume, l);
    if (!l->url || !l->accept || !l->resume || event_add(l->accept, NULL) < 0)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    owned = NULL;
    TAILQ_INSERT_TAIL(&s->listeners, l, link);
    log_info("listening on %s", l->url);
    return 0;
}

int listener_open_path(struct server *s, const char *path, struct failure *ret_failure)
{
    struct listener *other;
    TAILQ_FOREACH(other, &s->listeners, link)
    {
        if (other->path && strcmp(other->path, path) == 0)
            return 0;
    }
    _cleanup_listener_ struct listener *l = listener_new(s, LISTENER_UNIX);
    if (!l || !(l->path = strdup(path)) || asprintf(&l->url, "unix:%s", path) < 0)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    struct stat st;
    int r = unix_path_listen(path, &l->fd, &st, ret_failure);
    if (r < 0)
        return r;
    l->path_dev = st.st_dev;
    l->path_ino = st.st_ino;
    return listener_start(take_ptr(l), ret_failure);
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
        return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
    }
    return false;
}

/* Binds one address of a name. */
static int open_address(struct server *s, const char *url, enum listener_kind kind, struct tls *tls,
                        const struct addrinfo *address, struct failure *ret_failure)
{
    if (kind == LISTENER_HTTP && !is_loopback(address->ai_addr))
        return failure_set(ret_failure, -EINVAL,
                           "%s: plain HTTP is for loopback addresses only; use https", url);
    _cleanup_listener_ struct listener *l = listener_new(s, kind);
    if (!l)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    l->tls = tls;
    l->fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0)
        return failure_set(ret_failure, -errno, "%s: %s", url, strerror(errno));
    set_option(l->fd, SOL_SOCKET, SO_REUSEADDR, 1); /* a restart does not wait for TIME_WAIT */
    if (bind(l->fd, address->ai_addr, address->ai_addrlen) < 0 || listen(l->fd, SOMAXCONN) < 0)
        return failure_set(ret_failure, -errno, "cannot listen on %s: %s", url, strerror(errno));
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    char text[80];
    if (getsockname(l->fd, (struct sockaddr *)&bound, &len) < 0)
        return failure_set(ret_failure, -errno, "%s: %s", url, strerror(errno));
    address_text((struct sockaddr *)&bound, len, text, sizeof text);
    if (asprintf(&l->url, "%s://%s", kind == LISTENER_HTTPS ? "https" : "http", text) < 0)
        l->url = NULL;
    return listener_start(take_ptr(l), ret_failure);
}

/* "HOST:PORT", HOST perhaps in brackets, into its parts. */
static int split_authority(const char *authority, char *host, size_t size, const char **ret_port)
{
    const char *end = strrchr(authority, ':');
    if (!end || end[1] == '\0')
        return -EINVAL;
    const char *start = authority;
    const char *stop = end;
    if (*start == '[' && stop > start && stop[-1] == ']') {
        start++;
        stop--;
    }
    if (stop <= start || (size_t)(stop - start) >= size)
        return -EINVAL;
    memcpy(host, start, (size_t)(stop - start));
    host[stop - start] = '\0';
    *ret_port = end + 1;
    return 0;
}

/* A name may have several addresses (localhost: 127.0.0.1 and ::1): all are served, as far as
 * the machine has them. With port 0 the first alone, since each would get its own port. */
static int open_tcp(struct server *s, const char *url, enum listener_kind kind, struct tls *tls,
                    struct failure *ret_failure)
{
    char host[256];
    const char *port;
    const char *authority = strstr(url, "://") + 3;
    if (split_authority(authority, host, sizeof host, &port) < 0)
        return failure_set(ret_failure, -EINVAL, "%s: expected HOST:PORT", url);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *addresses;
    int e = getaddrinfo(host, port, &hints, &addresses);
    if (e != 0)
        return failure_set(ret_failure, -EINVAL, "%s: cannot resolve %s: %s", url, host,
                           gai_strerror(e));
    int r = -EADDRNOTAVAIL;
    bool opened = false;
    for (const struct addrinfo *a = addresses; a; a = a->ai_next) {
        r = open_address(s, url, kind, tls, a, ret_failure);
        opened = opened || r == 0;
        if (r == -EADDRNOTAVAIL || r == -EAFNOSUPPORT)
            continue;
        if (r < 0 || strcmp(port, "0") == 0)
            break;
    }
    freeaddrinfo(addresses);
    if (opened && (r == -EADDRNOTAVAIL || r == -EAFNOSUPPORT))
        r = 0;
    return r;
}

int listener_open(struct server *s, const char *url, struct tls *tls, struct failure *ret_failure)
{
    int r = config_listen_check(url, ret_failure);
    if (r < 0)
        return r;
    if (strncmp(url, "unix:", 5) == 0)
        return listener_open_path(s, url + 5, ret_failure);
    bool https = strncmp(url, "https:", 6) == 0;
    return open_tcp(s, url, https ? LISTENER_HTTPS : LISTENER_HTTP, tls, ret_failure);
}

/* --- closing --------------------------------------------------------------------- */

static void remove_name(struct listener *l)
{
    struct stat st;
    if (l->path && lstat(l->path, &st) == 0 && st.st_dev == l->path_dev && st.st_ino == l->path_ino)
        (void)unlink(l->path);
}

void listener_stop_all(struct server *s)
{
    struct listener *l;
    TAILQ_FOREACH(l, &s->listeners, link)
    {
        if (l->fd < 0)
            continue;
        (void)event_del(l->accept);
        (void)event_del(l->resume);
        remove_name(l);
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
