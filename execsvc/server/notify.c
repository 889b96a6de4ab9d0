#include "server/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"

int notify_open(void)
{
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = name ? strlen(name) : 0;
    _cleanup_close_ int fd = -1;
    /* "@" stands for the zero of an abstract one. */
    if (len > 1 && len < sizeof address.sun_path && (name[0] == '/' || name[0] == '@')) {
        memcpy(address.sun_path, name, len);
        if (name[0] == '@')
            address.sun_path[0] = '\0';
        socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, size) < 0)
            close_fd(&fd);
    }
    (void)unsetenv("NOTIFY_SOCKET");
    return take_fd(&fd);
}

void notify_send(int fd, const char *state)
{
    if (fd < 0)
        return;
    while (send(fd, state, strlen(state), MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}
