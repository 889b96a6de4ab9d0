#include "server/errand.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"

union control {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
};

int errand_send(int socket, const struct errand *errand, int fd)
{
    struct iovec data = {.iov_base = (void *)(uintptr_t)errand,
                         .iov_len = offsetof(struct errand, text) +
                                    strnlen(errand->text, sizeof errand->text - 1) + 1};
    union control control = {0};
    struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    ssize_t n;
    while ((n = sendmsg(socket, &m, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    return n < 0 ? -errno : 0;
}

static void take_descriptor(struct msghdr *m, int *ret_fd)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof *ret_fd))
        memcpy(ret_fd, CMSG_DATA(c), sizeof *ret_fd);
}

int errand_receive(int socket, int timeout_ms, struct errand *ret, int *ret_fd)
{
    struct pollfd readable = {.fd = socket, .events = POLLIN};
    struct iovec data = {.iov_base = ret, .iov_len = sizeof *ret};
    union control control = {0};
    struct msghdr m = {.msg_iov = &data,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    *ret_fd = -1;
    int r;
    while ((r = poll(&readable, 1, timeout_ms)) < 0 && errno == EINTR)
        ;
    if (r <= 0)
        return r < 0 ? -errno : -ETIMEDOUT;
    ssize_t n = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return -errno;
    take_descriptor(&m, ret_fd);
    if (n == 0)
        return -ECONNRESET;
    if ((size_t)n <= offsetof(struct errand, text) || (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ||
        ((const char *)ret)[n - 1] != '\0') {
        close_fd(ret_fd);
        return -EBADMSG;
    }
    return 0;
}

int errand_ask(int socket, enum errand_kind kind, const char *text, int *ret_fd,
               struct failure *ret_failure)
{
    static uint32_t last_serial;
    struct errand e = {.kind = kind, .serial = ++last_serial};
    const uint32_t serial = e.serial;
    int fd = -1;
    (void)snprintf(e.text, sizeof e.text, "%s", text);
    int r = errand_send(socket, &e, -1);
    /* An answer that came too late for an earlier one is not this one's. */
    while (r == 0 && (e.kind != ERRAND_ANSWER || e.serial != serial)) {
        close_fd(&fd);
        r = errand_receive(socket, ERRAND_TIMEOUT_MS, &e, &fd);
    }
    if (r < 0)
        return failure_set(ret_failure, r, "berthd's starter does not answer: %s", strerror(-r));
    if (e.number < 0 || fd < 0) {
        close_fd(&fd);
        return failure_set(ret_failure, e.number < 0 ? e.number : -EBADMSG, "%.*s",
                           FAILURE_TEXT_MAX - 1, e.text);
    }
    *ret_fd = fd;
    return 0;
}
