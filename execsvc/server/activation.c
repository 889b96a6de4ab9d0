#include "server/activation.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "server/sockets.h"

#define FIRST_FD 3

/* Above what children of ours are given by number. */
#define OWN_FD 16

/* The variables' names, for whoever reads the failure. */
#define FROM "the sockets that the service was started with (LISTEN_FDS)"

/* A whole number that is not negative, or -1. */
static long number_of(const char *text)
{
    char *end;
    errno = 0;
    long value = text && text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : -1;
    return value >= 0 && errno == 0 && *end == '\0' ? value : -1;
}

/* Names are separated by colons; those that are missing are empty. */
static bool is_called(const char *names, size_t index, const char *name)
{
    for (; names && index > 0; index--)
        if ((names = strchr(names, ':')))
            names++;
    size_t len = names ? strcspn(names, ":") : 0;
    return len == strlen(name) && strncmp(names, name, len) == 0;
}

static bool is_listening(int fd, int wanted)
{
    int type = 0, listening = 0;
    socklen_t size = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == wanted &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening;
}

static int url_of(int fd, bool http, char **ret, struct failure *f)
{
    union {
        struct sockaddr any;
        struct sockaddr_un un;
        struct sockaddr_storage storage;
    } address = {0};
    socklen_t len = sizeof address;
    char text[80];
    int n = -1;
    if (getsockname(fd, &address.any, &len) < 0)
        return failure_set(f, -errno, FROM ": %s", strerror(errno));
    size_t path = len > offsetof(struct sockaddr_un, sun_path)
                      ? len - offsetof(struct sockaddr_un, sun_path)
                      : 0;
    switch (address.any.sa_family) {
    case AF_UNIX:
        if (path == 0 || address.un.sun_path[0] != '/')
            return failure_set(f, -EINVAL, FROM ": a unix socket without a path");
        n = asprintf(ret, "unix:%.*s", (int)path, address.un.sun_path);
        break;
    case AF_INET:
    case AF_INET6:
        sockets_address_text(&address.any, len, text, sizeof text);
        n = asprintf(ret, "%s://%s", http ? "http" : "https", text);
        break;
    default:
        return failure_set(f, -EINVAL, FROM ": descriptor %d is of no kind that is known", fd);
    }
    return n < 0 ? failure_set(f, -ENOMEM, "out of memory") : 0;
}

static int move_away(int fd, int *ret, struct failure *f)
{
    _cleanup_close_ int own = fcntl(fd, F_DUPFD_CLOEXEC, OWN_FD);
    if (own < 0 || fcntl(own, F_SETFL, O_NONBLOCK) < 0)
        return failure_set(f, -errno, FROM ": %s", strerror(errno));
    (void)close(fd);
    *ret = take_fd(&own);
    return 0;
}

static int take(struct activation *a, int fd, bool http, struct failure *f)
{
    _cleanup_free_ char *url = NULL;
    if (!is_listening(fd, SOCK_STREAM))
        return failure_set(f, -EINVAL, FROM ": descriptor %d is no listening stream socket", fd);
    int r = url_of(fd, http, &url, f);
    if (r == 0)
        r = move_away(fd, &a->list[a->count].fd, f);
    if (r == 0)
        a->list[a->count++].url = take_ptr(url);
    return r;
}

/* How many there are for this process. */
static long count_ours(void)
{
    long count = number_of(getenv("LISTEN_FDS"));
    return number_of(getenv("LISTEN_PID")) == (long)getpid() && count > 0 ? count : 0;
}

static void forget_variables(void)
{
    (void)unsetenv("LISTEN_PID");
    (void)unsetenv("LISTEN_FDS");
    (void)unsetenv("LISTEN_FDNAMES");
}

int activation_take(struct activation *ret, struct failure *ret_failure)
{
    _cleanup_activation_ struct activation a = {.count = 0};
    const char *names = getenv("LISTEN_FDNAMES");
    long count = count_ours();
    int r = 0;
    if (count > CONFIG_LISTEN_MAX)
        r = failure_set(ret_failure, -E2BIG, FROM ": more than %d", CONFIG_LISTEN_MAX);
    for (long i = 0; r == 0 && i < count; i++)
        r = take(&a, FIRST_FD + (int)i, is_called(names, (size_t)i, "http"), ret_failure);
    forget_variables();
    if (r < 0)
        return r;
    *ret = a;
    a.count = 0;
    return 0;
}

int activation_take_one(int type, int *ret_fd, struct failure *ret_failure)
{
    long count = count_ours();
    forget_variables();
    if (count != 1 || !is_listening(FIRST_FD, type))
        return failure_set(ret_failure, -EINVAL, FROM ": not one that listens, of the right type");
    return move_away(FIRST_FD, ret_fd, ret_failure);
}

int activation_claim(struct activation *a, const char *url)
{
    for (size_t i = 0; i < a->count; i++)
        if (a->list[i].fd >= 0 && strcmp(a->list[i].url, url) == 0)
            return take_fd(&a->list[i].fd);
    return -1;
}

void activation_release(struct activation *a)
{
    for (size_t i = 0; i < a->count; i++) {
        close_fd(&a->list[i].fd);
        free(a->list[i].url);
    }
    a->count = 0;
}
