/* The texts of everything that can go wrong between a URL and a stream. Each names the URL and
 * what is wrong, and then says what to do. */
#include "stream/private.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

int stream_failure_memory(struct stream *s, struct failure *f)
{
    return failure_set(f, -ENOMEM, "%s: out of memory", s->url);
}

int stream_failure_unix(struct stream *s, int error, struct failure *f)
{
    const char *path = s->parts.rest;
    struct stat st;
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return failure_set(f, -ENOENT,
                           "%s: there is no such socket. Start the service with 'berthd', or give "
                           "the URL of another one",
                           s->url);
    case EACCES:
    case EPERM:
        return failure_set(f, -EACCES,
                           "%s: permission denied: the socket belongs to another user. Run as the "
                           "user of the service, or give the URL of your own",
                           s->url);
    case ECONNREFUSED:
        if (stat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
            return failure_set(f, -ECONNREFUSED,
                               "%s: this is not a socket. Give the URL of the service's socket",
                               s->url);
        return failure_set(f, -ECONNREFUSED,
                           "%s: nobody listens on the socket: the service has ended. Start it with "
                           "'berthd'",
                           s->url);
    case EPROTOTYPE:
        return failure_set(f, -EPROTO,
                           "%s: the socket is of another type than a service's. Give the URL of "
                           "the service's socket",
                           s->url);
    default:
        return failure_set(f, -error, "%s: cannot connect: %s. Check that 'berthd' runs", s->url,
                           strerror(error));
    }
}

/* --- the upgrade ------------------------------------------------------------------------ */

int stream_failure_timeout(struct stream *s, struct failure *f)
{
    double seconds = s->timeout_ms / 1000.0;
    if (s->answering)
        return failure_set(f, -ETIMEDOUT,
                           "%s: the command began to answer and did not go on. Check that it leads "
                           "to a Berth service, and run it by hand to see",
                           s->url);
    if (s->bridge) {
        const char *line = bridge_last_line(s->bridge);
        return failure_set(f, -ETIMEDOUT,
                           "%s: the command did not answer within %.3g s%s%s. Run it by hand to "
                           "see what it waits for",
                           s->url, seconds, *line ? "; it said: " : "", line);
    }
    return failure_set(f, -ETIMEDOUT,
                       "%s: connected, but no answer within %.3g s. Check that this is a Berth "
                       "service and not overloaded",
                       s->url, seconds);
}

static int failure_command(struct stream *s, struct failure *f)
{
    int code = 0;
    char how[512];
    enum bridge_end end = bridge_wait(s->bridge, 1000, &code);
    (void)bridge_describe(s->bridge, how, sizeof how);
    /* What the shell has said of it is the same once more. */
    if (end == BRIDGE_EXITED && code == 127)
        return failure_set(f, -ECHILD,
                           "%s: the command was not found (it ended with status 127). Check its "
                           "spelling, and PATH here and on the other side",
                           s->url);
    if (end == BRIDGE_EXITED && code == 126)
        return failure_set(f, -ECHILD,
                           "%s: the command cannot be run (it %s). Check its permissions", s->url,
                           how);
    return failure_set(f, -ECHILD,
                       "%s: the command %s before a service answered. Run it by hand to see why",
                       s->url, how);
}

int stream_failure_end(struct stream *s, int error, bool answered, struct failure *f)
{
    if (error == -ENOMEM)
        return stream_failure_memory(s, f);
    if (s->bridge)
        return failure_command(s, f);
    int r = s->carrier->explain_end ? s->carrier->explain_end(s, error, answered, f) : 0;
    if (r < 0)
        return r;
    if (s->parts.kind == STREAM_HTTP)
        return failure_set(f, -EPROTO,
                           "%s: the server ended the connection without an answer. If this port "
                           "speaks TLS write https://; otherwise check the port",
                           s->url);
    if (s->parts.kind == STREAM_UNIX && !answered)
        return failure_set(f, -EPROTO,
                           "%s: the connection was closed without an answer. Check that a Berth "
                           "service listens there, and its log",
                           s->url);
    return failure_set(f, -EPROTO,
                       "%s: the server ended the connection before its answer was complete. Check "
                       "that it is a Berth service, and its log",
                       s->url);
}

static int failure_needs_tls(struct stream *s, struct failure *f)
{
    return failure_set(f, -EPROTO, "%s: this port speaks TLS. Write https:// in the URL", s->url);
}

int stream_failure_not_http(struct stream *s, struct bytes start, struct failure *f)
{
    /* 21, 3: a TLS alert record. */
    if (s->parts.kind == STREAM_HTTP && start.len >= 2 && start.data[0] == 21 && start.data[1] == 3)
        return failure_needs_tls(s, f);
    char text[sizeof "..." + 4 * 48];
    (void)log_escape(start.data, start.len, text, sizeof text);
    if (s->bridge)
        return failure_set(f, -EPROTO,
                           "%s: the command's output is not a Berth service's; it starts with: %s "
                           "Take out whatever else writes there (a login message, an echo in a "
                           "shell's start-up file)",
                           s->url, text);
    return failure_set(f, -EPROTO,
                       "%s: the answer is not HTTP; it starts with: %s Check that the port is a "
                       "Berth service's",
                       s->url, text);
}

static int failure_unauthorized(struct stream *s, const char *reason, struct failure *f)
{
    const char *separator = *reason ? ": " : "";
    if (s->has_token)
        return failure_set(f, -EACCES, "%s: the service does not accept the token%s%s%s", s->url,
                           separator, reason,
                           strstr(reason, "expired") ? ""
                                                     : ". Check that the token file is the one of "
                                                       "this service");
    return failure_set(
        f, -EACCES,
        "%s: the service requires a token and none was given%s%s. Name its file with "
        "--token-file",
        s->url, separator, reason);
}

int stream_failure_status(struct stream *s, unsigned status, const char *reason, struct failure *f)
{
    const char *separator = *reason ? ": " : "";
    if (status == 400 && s->parts.kind == STREAM_HTTP && strstr(reason, "speaks TLS"))
        return failure_needs_tls(s, f); /* in the words of a Berth service's TLS port */
    switch (status) {
    case 401:
        return failure_unauthorized(s, reason, f);
    case 403:
        if (s->parts.kind == STREAM_UNIX)
            return failure_set(f, -EACCES,
                               "%s: the service refuses this user%s%s. Run as the user of the "
                               "service, or give a token with --token-file",
                               s->url, separator, reason);
        return failure_set(f, -EACCES,
                           "%s: the service refuses access%s%s. Check the token and the client "
                           "certificate",
                           s->url, separator, reason);
    case 426:
        return failure_set(
            f, -EPROTO,
            "%s: the service speaks another version of the protocol%s%s. Install the "
            "same version of Berth on both sides",
            s->url, separator, reason);
    case 429:
    case 503:
        return failure_set(f, -EBUSY,
                           "%s: the service takes no more connections now%s%s. Try again later",
                           s->url, separator, reason);
    case 502:
    case 504:
        return failure_set(f, -EPROTO,
                           "%s: a gateway in front of the service cannot reach it (status %u%s%s). "
                           "Check that the service runs",
                           s->url, status, separator, reason);
    default:
        return failure_set(f, -EPROTO,
                           "%s: the server answered with HTTP status %u%s%s; this is not a Berth "
                           "service. Check the host and port",
                           s->url, status, separator, reason);
    }
}
