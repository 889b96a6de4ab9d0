/* Byte streams to a service, opened with libcurl from a URL:
 *   unix:/path            a unix socket; the service checks our credentials
 *   https://host[:port]   TLS 1.3
 *   http://loopback:port  plain TCP, loopback only
 *   exec:COMMAND …        standard input and output of `/bin/sh -c COMMAND`
 * stream_open also performs `GET /v1/stream` with `Upgrade: berth/1`, so what follows are
 * frames, in both directions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/failure.h"

/* All strings borrowed for the duration of stream_open; NULL = not set. */
struct stream_options {
    const char *url;
    const char *token;       /* bearer token itself */
    const char *ca_file;     /* PEM; else the system's CAs */
    const char *cert_file;   /* PEM client certificate, for mTLS */
    const char *key_file;
    uint32_t connect_timeout_ms; /* 0: 10 s. Bounds name resolution, connect, TLS, upgrade */
};

struct stream;

/* Connects and upgrades; blocks, at most connect_timeout_ms. On failure a negative errno and
 * *ret_failure, whose text names the URL, what was wrong, and what to do about it:
 *   -ECONNREFUSED, -ENOENT   nobody listens        -ETIMEDOUT
 *   -EACCES   token, client certificate or peer credentials refused
 *   -EBADE    the service's certificate is not acceptable (CA, host name, dates)
 *   -EPROTO   it answers, but is not a Berth service (or TLS against plain, or vice versa)
 *   -EINVAL   the URL or an option
 *   -ECHILD   exec: the command ended early (its exit status and last stderr line are given)
 * Not callable from an event loop that must not block. */
int stream_open(const struct stream_options *options, struct stream **ret,
                struct failure *ret_failure);

/* The descriptor to poll. Readable: stream_read. Writable matters only after -EAGAIN. */
int stream_fd(const struct stream *s);

/* Up to len bytes: > 0, 0 at the end, -EAGAIN, or another negative errno (the stream is
 * dead). After readiness, read until -EAGAIN: TLS keeps decrypted bytes back. */
ssize_t stream_read(struct stream *s, void *buffer, size_t len);
ssize_t stream_write(struct stream *s, const void *data, size_t len);

/* True when the stream needs no wire (unix): compression would only cost. */
bool stream_is_local(const struct stream *s);

/* What the connection set-up took, in nanoseconds. */
uint64_t stream_setup_ns(const struct stream *s);

/* Closes; for exec: the command gets end of file, then, after 2 s, TERM, then KILL, and is
 * reaped. Never blocks for longer than that. */
void stream_close(struct stream *s);

/* Checks a URL's form. 0, or -EINVAL with the reason. */
int stream_url_check(const char *url, struct failure *ret_failure);
