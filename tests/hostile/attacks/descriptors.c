/* Descriptors that a command was not to have. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "attack.h"

static int inherited(char **args)
{
    DIR *d = opendir("/proc/self/fd");
    const struct dirent *e;
    int found = 0;
    while (d && (e = readdir(d)))
        if (e->d_name[0] != '.' && atoi(e->d_name) > 2 && atoi(e->d_name) != dirfd(d))
            found++;
    if (d)
        (void)closedir(d);
    return d && !found ? -ENODATA : 0;
}

/* Connects, and takes the descriptor of a file that the other side sends. An address that begins
 * with @ is an abstract one. */
static int take(char **args)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t size = sizeof address;
    (void)strncpy(address.sun_path, args[0], sizeof address.sun_path - 1);
    if (args[0][0] == '@') {
        address.sun_path[0] = 0;
        size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(args[0]));
    }
    _cleanup_close_ int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || connect(s, (struct sockaddr *)&address, size) < 0)
        return -errno;
    char byte;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr m = {.msg_iov = &data,
                       .msg_iovlen = 1,
                       .msg_control = control.space,
                       .msg_controllen = sizeof control.space};
    if (recvmsg(s, &m, MSG_CMSG_CLOEXEC) < 0)
        return -errno;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (!c || c->cmsg_type != SCM_RIGHTS)
        return -ENODATA;
    _cleanup_close_ int fd = -1;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return holds_secret(fd);
}

/* Datagrams to a path need no connection: by one half of a pair that is nobody's. */
static int send_from_pair(char **args)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int ends[2];
    (void)strncpy(address.sun_path, args[0], sizeof address.sun_path - 1);
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    _cleanup_close_ int one = ends[0];
    (void)close(ends[1]);
    return result_of(sendto(one, "x", 1, 0, (struct sockaddr *)&address, sizeof address));
}

const struct attack attacks_on_descriptors[] = {
    {"inherited", inherited, 0},
    {"take-descriptor", take, 1},
    {"send-from-pair", send_from_pair, 1},
    {NULL},
};
