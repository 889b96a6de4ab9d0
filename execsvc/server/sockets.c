#include "server/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "config/paths.h"
#include "gateway/process.h"
#include "server/activation.h"
#include "stream/unix_path.h"

void sockets_address_text(const struct sockaddr *address, socklen_t len, char *out, size_t size)
{
    char host[64] = "?", port[8] = "?";
    (void)getnameinfo(address, len, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    (void)snprintf(out, size, address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

int sockets_root_path(const char *root, char **ret)
{
    char *path;
    if (asprintf(&path, "%s/berthd.sock", root) < 0)
        return -ENOMEM;
    *ret = path;
    return 0;
}

static void listening_release(struct listening *l)
{
    struct stat st;
    if (l->path && lstat(l->path, &st) == 0 && st.st_dev == l->path_dev && st.st_ino == l->path_ino)
        (void)unlink(l->path);
    close_fd(&l->fd);
    free(l->path);
    free(l->url);
}
#define _cleanup_listening_ _cleanup_(listening_release)

/* Takes *l. */
static int add(struct sockets *s, struct listening *l, struct failure *ret_failure)
{
    if (!l->url)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    if (s->count == SOCKETS_MAX)
        return failure_set(ret_failure, -EINVAL, "more than %d addresses to listen on",
                           SOCKETS_MAX);
    s->list[s->count++] = *l;
    *l = (struct listening){.fd = -1};
    return 0;
}

/* --- unix ------------------------------------------------------------------------- */

/* One that is open already is not opened again. */
static int open_path(struct sockets *s, const char *path, enum listener_kind kind,
                     struct failure *ret_failure)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i].path && strcmp(s->list[i].path, path) == 0)
            return 0;
    _cleanup_listening_ struct listening l = {.kind = kind, .fd = -1};
    struct stat st;
    _cleanup_free_ char *copy = strdup(path);
    if (!copy || asprintf(&l.url, "unix:%s", path) < 0)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    int r = unix_path_listen(path, &l.fd, &st, ret_failure);
    if (r < 0)
        return r;
    l.path = take_ptr(copy);
    l.path_dev = st.st_dev;
    l.path_ino = st.st_ino;
    return add(s, &l, ret_failure);
}

static int open_default(struct sockets *s, struct failure *ret_failure)
{
    _cleanup_free_ char *url = NULL;
    int r = paths_make_socket_dir(ret_failure);
    if (r == 0)
        r = paths_default_url(&url, ret_failure);
    return r < 0 ? r : open_path(s, url + strlen("unix:"), LISTENER_UNIX, ret_failure);
}

/* --- tcp -------------------------------------------------------------------------- */

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

static int open_address(struct sockets *s, const char *url, enum listener_kind kind,
                        const struct addrinfo *address, struct failure *ret_failure)
{
    const int on = 1;
    if (kind == LISTENER_HTTP && !is_loopback(address->ai_addr))
        return failure_set(ret_failure, -EINVAL,
                           "%s: plain HTTP is for loopback addresses only; use https", url);
    _cleanup_listening_ struct listening l = {.kind = kind, .fd = -1};
    l.fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l.fd < 0)
        return failure_set(ret_failure, -errno, "%s: %s", url, strerror(errno));
    /* A restart does not wait for TIME_WAIT. */
    (void)setsockopt(l.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(l.fd, address->ai_addr, address->ai_addrlen) < 0 || listen(l.fd, SOMAXCONN) < 0)
        return failure_set(ret_failure, -errno, "cannot listen on %s: %s", url, strerror(errno));
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    char text[80];
    if (getsockname(l.fd, (struct sockaddr *)&bound, &len) < 0)
        return failure_set(ret_failure, -errno, "%s: %s", url, strerror(errno));
    sockets_address_text((struct sockaddr *)&bound, len, text, sizeof text);
    if (asprintf(&l.url, "%s://%s", kind == LISTENER_HTTPS ? "https" : "http", text) < 0)
        l.url = NULL;
    return add(s, &l, ret_failure);
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
static int open_tcp(struct sockets *s, const char *url, enum listener_kind kind,
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
        r = open_address(s, url, kind, a, ret_failure);
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

/* --- all -------------------------------------------------------------------------- */

static int open_url(struct sockets *s, const char *url, struct activation *activation,
                    struct failure *ret_failure)
{
    int r = config_listen_check(url, ret_failure);
    if (r < 0)
        return r;
    enum listener_kind kind = strncmp(url, "unix:", 5) == 0    ? LISTENER_UNIX
                              : strncmp(url, "https:", 6) == 0 ? LISTENER_HTTPS
                                                               : LISTENER_HTTP;
    _cleanup_listening_ struct listening l = {.kind = kind,
                                              .fd = activation_claim(activation, url)};
    if (l.fd >= 0) {
        l.url = strdup(url);
        return add(s, &l, ret_failure);
    }
    return kind == LISTENER_UNIX ? open_path(s, url + 5, kind, ret_failure)
                                 : open_tcp(s, url, kind, ret_failure);
}

/* They were made with 0600, and nobody else can have put another in the place of one. */
static int set_mode(const struct sockets *s, mode_t mode, struct failure *f)
{
    for (size_t i = 0; i < s->count && mode != CONFIG_SOCKET_MODE; i++)
        if (s->list[i].path && chmod(s->list[i].path, mode) < 0)
            return failure_set(f, -errno, "%s: its mode cannot be set: %s", s->list[i].url,
                               strerror(errno));
    return 0;
}

int sockets_open(const struct service_settings *settings, const char *root,
                 struct activation *activation, struct sockets *ret, struct failure *ret_failure)
{
    _cleanup_free_ char *path = NULL;
    _cleanup_free_ char *gateway = NULL;
    *ret = (struct sockets){0};
    int r = sockets_root_path(root, &path);
    if (r == 0 && asprintf(&gateway, "%s/" GATEWAY_SOCKET, root) < 0)
        r = -ENOMEM;
    if (r < 0)
        return failure_set(ret_failure, r, "out of memory");
    for (size_t i = 0; r == 0 && i < settings->listen_count; i++)
        r = open_url(ret, settings->listen[i], activation, ret_failure);
    if (r == 0 && settings->listen_count == 0)
        r = open_default(ret, ret_failure);
    if (r == 0)
        r = set_mode(ret, settings->socket_mode, ret_failure);
    if (r == 0)
        r = open_path(ret, path, LISTENER_UNIX, ret_failure);
    if (r == 0)
        r = open_path(ret, gateway, LISTENER_GATEWAY, ret_failure);
    if (r < 0)
        sockets_close(ret);
    return r;
}

void sockets_close(struct sockets *s)
{
    for (size_t i = 0; i < s->count; i++)
        listening_release(&s->list[i]);
    s->count = 0;
}

void sockets_forget(struct sockets *s)
{
    for (size_t i = 0; i < s->count; i++) {
        free(s->list[i].path);
        s->list[i].path = NULL;
    }
    sockets_close(s);
}
