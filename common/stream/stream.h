/* Byte streams to a service, opened from a URL:
 *   unix:/path            a unix socket; the service checks our credentials
 *   https://host[:port]   TLS 1.3
 *   http://loopback:port  plain TCP, loopback only
 *   exec:COMMAND …        standard input and output of `/bin/sh -c COMMAND`
 * The first and the last are sockets of ours; the network is libcurl's, in programs that have it
 * (without_network.c). An https URL takes the way through a proxy that the environment names
 * (https_proxy, no_proxy) as curl does; the others never do. The command of an exec URL stays in
 * our session and process group, so that it can ask for a password on the terminal, but ignores the
 * signals typed there: those are for the caller, and the command ends by end of file. What it
 * writes to standard error is passed on to ours, marked, escaped and bounded (bridge.h).
 * stream_open also performs `GET /v1/stream` with `Upgrade: berth/1`, so what follows are frames,
 * in both directions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/failure.h"

/* What a service answered in place of the upgrade. */
struct stream_refusal {
    unsigned status;  /* 0: nothing */
    unsigned retry_s; /* Retry-After, or 0 */
    char reason[256]; /* of its problem document, escaped */
};

/* All strings borrowed for the duration of stream_open; NULL = not set. */
struct stream_options {
    const char *url;
    const char *token;     /* bearer token itself */
    const char *ca_file;   /* PEM; else the system's CAs */
    const char *cert_file; /* PEM client certificate, for mTLS */
    const char *key_file;
    /* The gateway alone: whose requests these are, a ticket in hexadecimal. */
    const char *caller;
    /* unix: connected already, non-blocking; taken, whatever comes of it. 0: is not. */
    int socket;
    struct stream_refusal *refusal; /* NULL, or to be told */
    /* Bounds name resolution, connect, TLS and upgrade together. 0: 10 s; for exec: 60 s, since
     * the command may have to ask somebody for a password, and 10 s from the first byte that it
     * answers, when nobody is asked any more. */
    uint32_t connect_timeout_ms;
    /* exec: nothing is said in the log while it is waited for; else after 5 s. */
    bool quiet;
    /* Of a unix URL alone: frames that follow the request at once, without waiting for its answer.
     * What stands between us and others' services may not expect them. */
    struct bytes first;
};

struct stream;

/* Connects and upgrades; blocks, at most connect_timeout_ms. On failure a negative errno and
 * *ret_failure, whose text names the URL, what was wrong, and what to do about it:
 *   -ECONNREFUSED, -ENOENT   nobody listens        -ETIMEDOUT
 *   -EACCES   token, client certificate, peer credentials or access to the socket refused
 *   -EBUSY    the service takes no more connections now
 *   -EBADE    the service's certificate is not acceptable (CA, host name, dates)
 *   -EPROTO   it answers, but is not a Berth service (or TLS against plain, or vice versa)
 *   -EINVAL   the URL or an option
 *   -ECHILD   exec: the command ended early (its exit status and last stderr line are given)
 *   -EIO, -ENOMEM, …   this machine failed
 * Not callable from an event loop that must not block. Safe on any thread; the stream may be
 * used on another afterwards, and after fork() by the child instead of the parent. */
int stream_open(const struct stream_options *options, struct stream **ret,
                struct failure *ret_failure);

/* The descriptor to poll. Readable: stream_read. Writable matters only after -EAGAIN. */
int stream_fd(const struct stream *s);

/* Up to len bytes: > 0, 0 at the end, -EAGAIN, or another negative errno (the stream is
 * dead). After readiness, read until -EAGAIN: TLS keeps decrypted bytes back. */
ssize_t stream_read(struct stream *s, void *buffer, size_t len);

/* Up to len bytes: > 0, -EAGAIN, or another negative errno (the stream is dead). After -EAGAIN
 * the next call must offer the same bytes again, at the same or another address: TLS may have
 * sent a part of their record. Never raises SIGPIPE. */
ssize_t stream_write(struct stream *s, const void *data, size_t len);

/* So much is there to be written at once. What is much goes to the network in whole segments, and
 * the rest when this is 0. */
void stream_expect(struct stream *s, size_t len);

/* exec: a second descriptor to poll for reading, on which stream_command_pump is due; else
 * -1. If nobody pumps, a command with much to say on its standard error stops. */
int stream_command_fd(const struct stream *s);

/* Passes on what the command wrote to its standard error; never blocks for its sake. False
 * when nothing more will come: stop polling. */
bool stream_command_pump(struct stream *s);

/* After stream_read or stream_write told the end: why, as far as it is known ("the command
 * ended with status 255: …"); else a general phrase. Written to text, which is returned. */
const char *stream_end_reason(struct stream *s, char *text, size_t size);

/* True when the stream needs no wire (unix): compression would only cost. */
bool stream_is_local(const struct stream *s);

/* What the connection set-up took, in nanoseconds. */
uint64_t stream_setup_ns(const struct stream *s);

/* The peer does not answer any more, so the command of an exec stream would not end by itself
 * either: stream_close gives it no time for that. */
void stream_abandon(struct stream *s);

/* Closes; for exec: the command gets end of file, then, after 2 s, TERM, then after half a
 * second KILL, and is reaped. Never blocks for longer than that. NULL is allowed. */
void stream_close(struct stream *s);
DEFINE_CLEANUP(struct stream *, stream_close);
#define _cleanup_stream_ _cleanup_(stream_close_pointer)

/* Checks a URL's form. 0, or -EINVAL with the reason. */
int stream_url_check(const char *url, struct failure *ret_failure);
