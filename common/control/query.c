#include "control/query.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/buffer.h"
#include "stream/unix_path.h"

#define ANSWER_MAX 65536

/* All that the other side sends, up to its end. */
static int exchange(int fd, const char *request, struct buffer *answer)
{
    const struct timeval deadline = {.tv_sec = QUERY_DEADLINE_MS / 1000};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
    if (send(fd, request, strlen(request), MSG_NOSIGNAL) != (ssize_t)strlen(request))
        return -errno;
    for (;;) {
        char part[4096];
        ssize_t n = recv(fd, part, sizeof part, 0);
        if (n == 0)
            return buffer_append_u8(answer, 0);
        if (n < 0)
            return errno == EAGAIN ? -ETIMEDOUT : -errno;
        if (answer->len > ANSWER_MAX)
            return -EPROTO;
        int r = buffer_append(answer, part, (size_t)n);
        if (r < 0)
            return r;
    }
}

int control_query(const char *path, bool stop, json_t **ret, struct failure *ret_failure)
{
    _cleanup_close_ int fd = -1;
    _cleanup_buffer_ struct buffer answer = {0};
    const char *request = stop ? "DELETE /v1/connection HTTP/1.1\r\nHost: localhost\r\n\r\n"
                               : "GET /v1/connection HTTP/1.1\r\nHost: localhost\r\n\r\n";
    *ret = NULL;
    int r = unix_path_connect(path, &fd);
    if (r == 0)
        r = exchange(fd, request, &answer);
    if (r < 0)
        return failure_set(ret_failure, r, "%s: %s", path, strerror(-r));
    const char *text = (const char *)answer.data;
    int status = 0;
    (void)sscanf(text, "HTTP/1.1 %d", &status);
    if (status == 409)
        return failure_set(ret_failure, -EBUSY, "%s: it belongs to a mount", path);
    const char *body = strstr(text, "\r\n\r\n");
    if (status != 200 || !body)
        return failure_set(ret_failure, -EPROTO, "%s: no answer that is understood", path);
    if (stop)
        return 0;
    *ret = json_loads(body, 0, NULL);
    return *ret ? 0 : failure_set(ret_failure, -EPROTO, "%s: no answer that is understood", path);
}
