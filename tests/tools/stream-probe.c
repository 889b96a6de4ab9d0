/* Opens a byte stream and says what came of it, for tests.
 *   stream-probe [-t TOKEN] [-a CA] [-c CERT] [-k KEY] [-m TIMEOUT_MS] [-e BYTES] URL
 * Prints "ok" or "ERRNO-NAME text". -e: the peer echoes; sends so many bytes, without waiting
 * for the socket to take them, and checks that the same ones come back. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "stream/stream.h"

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 31 + (i >> 8) * 7);
}

static int echo(struct stream *s, size_t total)
{
    size_t sent = 0;
    size_t got = 0;
    size_t again = 0;
    bool blocked = false;
    while (got < total) {
        while (sent < total && !blocked) {
            /* A new buffer at each try, as the output of a session moves. */
            size_t len = total - sent < 65536 ? total - sent : 65536;
            uint8_t *data = malloc(len);
            if (!data)
                return -ENOMEM;
            for (size_t i = 0; i < len; i++)
                data[i] = pattern(sent + i);
            ssize_t n = stream_write(s, data, len);
            free(data);
            if (n == -EAGAIN) {
                blocked = true;
                again++;
            } else if (n < 0) {
                return (int)n;
            } else {
                sent += (size_t)n;
            }
        }
        struct pollfd p = {.fd = stream_fd(s), .events = POLLIN | (blocked ? POLLOUT : 0)};
        if (poll(&p, 1, 20000) <= 0)
            return -ETIMEDOUT;
        if (p.revents & (POLLOUT | POLLERR | POLLHUP))
            blocked = false;
        while (got < total) {
            uint8_t data[30000];
            ssize_t n = stream_read(s, data, sizeof data);
            if (n == -EAGAIN)
                break;
            if (n == 0)
                return -EPIPE;
            if (n < 0)
                return (int)n;
            for (ssize_t i = 0; i < n; i++)
                if (data[i] != pattern(got + (size_t)i))
                    return -EBADMSG;
            got += (size_t)n;
        }
    }
    printf("echoed %zu bytes, blocked %zu times\n", got, again);
    return 0;
}

int main(int argc, char **argv)
{
    struct stream_options o = {0};
    size_t echo_bytes = 0;
    int option;
    while ((option = getopt(argc, argv, "t:a:c:k:m:e:")) != -1) {
        switch (option) {
        case 't':
            o.token = optarg;
            break;
        case 'a':
            o.ca_file = optarg;
            break;
        case 'c':
            o.cert_file = optarg;
            break;
        case 'k':
            o.key_file = optarg;
            break;
        case 'm':
            o.connect_timeout_ms = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'e':
            echo_bytes = strtoul(optarg, NULL, 10);
            break;
        default:
            return 2;
        }
    }
    if (optind + 1 != argc)
        return 2;
    o.url = argv[optind];
    struct stream *s = NULL;
    struct failure f;
    int r = stream_open(&o, &s, &f);
    if (r < 0) {
        printf("%s %s\n", strerrorname_np(-r), f.text);
        return 1;
    }
    printf("ok\n");
    if (echo_bytes) {
        r = echo(s, echo_bytes);
        char reason[512];
        if (r < 0)
            printf("echo failed: %s; %s\n", strerrorname_np(-r),
                   stream_end_reason(s, reason, sizeof reason));
    }
    stream_close(s);
    return r < 0;
}
