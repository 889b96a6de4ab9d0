#include "stream/unix_path.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "base/cleanup.h"

#define LOCK_TRIES 250 /* of 20 ms */

struct place {
    int directory; /* of the socket */
    struct sockaddr_un address;
    char name[NAME_MAX + 1];
};

static void place_release(struct place *p)
{
    close_fd(&p->directory);
}
#define _cleanup_place_ _cleanup_(place_release)

/* The directory and an address. sun_path holds 108 bytes; a longer path is addressed through
 * the directory's descriptor, which the kernel resolves at bind and connect. */
static int place_open(const char *path, bool create, struct place *ret)
{
    _cleanup_free_ char *for_directory = strdup(path);
    _cleanup_free_ char *for_name = strdup(path);
    if (!for_directory || !for_name)
        return -ENOMEM;
    const char *directory = dirname(for_directory);
    const char *name = basename(for_name);
    if (strlen(name) > NAME_MAX)
        return -ENAMETOOLONG;
    if (create && mkdir(directory, 0700) < 0 && errno != EEXIST)
        return -errno;
    struct place p = {.address = {.sun_family = AF_UNIX}};
    (void)snprintf(p.name, sizeof p.name, "%s", name);
    p.directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p.directory < 0)
        return -errno;
    int n = (int)strlen(path);
    if ((size_t)n < sizeof p.address.sun_path)
        memcpy(p.address.sun_path, path, (size_t)n + 1);
    else
        n = snprintf(p.address.sun_path, sizeof p.address.sun_path, "/proc/self/fd/%d/%s",
                     p.directory, name);
    if ((size_t)n >= sizeof p.address.sun_path) {
        place_release(&p);
        return -ENAMETOOLONG;
    }
    *ret = p;
    return 0;
}

static int place_connect(const struct place *p, int type, int *ret_fd)
{
    _cleanup_close_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&p->address, sizeof p->address) < 0)
        return -errno;
    *ret_fd = take_fd(&fd);
    return 0;
}

static int path_connect(const char *path, int type, int *ret_fd)
{
    _cleanup_place_ struct place p = {.directory = -1};
    int r = place_open(path, false, &p);
    return r < 0 ? r : place_connect(&p, type, ret_fd);
}

int unix_path_connect(const char *path, int *ret_fd)
{
    return path_connect(path, SOCK_STREAM, ret_fd);
}

int unix_path_connect_packets(const char *path, int *ret_fd)
{
    return path_connect(path, SOCK_SEQPACKET | SOCK_NONBLOCK, ret_fd);
}

/* Not for ever: in a directory that others can open, one of them may hold the lock. */
static int lock_directory(int directory)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    for (int i = 0; flock(directory, LOCK_EX | LOCK_NB) < 0; i++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (i == LOCK_TRIES)
            return -EBUSY;
        (void)nanosleep(&pause, NULL);
    }
    return 0;
}

/* Removes a socket that nobody listens on. */
static int remove_stale(const struct place *p, const char *path, struct failure *ret_failure)
{
    struct stat st;
    if (fstatat(p->directory, p->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0
                               : failure_set(ret_failure, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return failure_set(ret_failure, -EEXIST,
                           "%s is in the way: it is not a socket; remove it or listen elsewhere",
                           path);
    _cleanup_close_ int fd = -1;
    int r = place_connect(p, SOCK_STREAM, &fd);
    if (r != -ECONNREFUSED)
        return failure_set(ret_failure, -EADDRINUSE,
                           "somebody else listens on %s (is berthd running already?)", path);
    if (unlinkat(p->directory, p->name, 0) < 0 && errno != ENOENT)
        return failure_set(ret_failure, -errno, "cannot remove the stale socket %s: %s", path,
                           strerror(errno));
    return 0;
}

int unix_path_listen(const char *path, int *ret_fd, struct stat *ret_stat,
                     struct failure *ret_failure)
{
    _cleanup_place_ struct place p = {.directory = -1};
    int r = place_open(path, true, &p);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot listen on %s: %s", path, strerror(-r));
    /* Between finding a socket stale and binding ours nobody else may do the same, or the
     * second would remove the first one's. Held until we listen. */
    r = lock_directory(p.directory);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot lock the directory of %s: %s", path,
                           strerror(-r));
    r = remove_stale(&p, path, ret_failure);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return failure_set(ret_failure, -errno, "%s: %s", path, strerror(errno));
    /* The mode a socket is born with is all that keeps others out between bind and chmod. */
    mode_t before = umask(0177);
    r = bind(fd, (const struct sockaddr *)&p.address, sizeof p.address) < 0 ? -errno : 0;
    (void)umask(before);
    if (r == 0 && fstatat(p.directory, p.name, ret_stat, AT_SYMLINK_NOFOLLOW) < 0)
        r = -errno;
    if (r == 0 && listen(fd, SOMAXCONN) < 0)
        r = -errno;
    if (r < 0)
        return failure_set(ret_failure, r, "cannot listen on %s: %s", path, strerror(-r));
    *ret_fd = take_fd(&fd);
    return 0;
}
