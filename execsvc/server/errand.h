/* What the service and its starter (starter.h) say to each other: messages on a pair of sockets, of
 * which the service has one at ERRAND_FD. The starter begins with what it has opened; then it does
 * what it is asked for, of which each is something that the service may not do itself any more.
 * When it sends nothing any more, the service is to stop. */
#pragma once

#include <limits.h>
#include <stdint.h>

#include "base/failure.h"

#define ERRAND_FD 3

enum errand_kind {
    /* from the starter, at first */
    ERRAND_LOCK,     /* with the root's lock; text: the root */
    ERRAND_LISTENER, /* with a socket; number: enum listener_kind, text: its URL */
    ERRAND_BEGIN,
    /* from the service, each answered */
    ERRAND_KEEPER,      /* a stream to the keeper of commands; text: the service's name */
    ERRAND_ACCESS_FILE, /* a descriptor of it */
    ERRAND_AUDIT_LOG,
    ERRAND_GATEWAY, /* a stream to the gateway; text: the connection's ticket */
    ERRAND_ANSWER,  /* with a descriptor; or number: a negative errno, text: why */
    /* from the service, not answered */
    ERRAND_READY,    /* it serves */
    ERRAND_STOPPING, /* it accepts no connections any more */
    /* from the starter to the gateway (gateway/process.h), with a stream to a client */
    ERRAND_CONNECTION, /* text: its ticket */
    /* from a starter to whoever listens for it (keeper_unit.h), with a stream */
    ERRAND_KEEP, /* number: enum log_level; text: UID,KEEP_S,NAME,ROOT */
};

struct errand {
    uint32_t kind;
    uint32_t serial; /* of what is answered */
    int32_t number;
    char text[PATH_MAX + 64];
};

/* fd: goes with it, -1: none. A negative errno; -EPIPE: the other side has gone. */
int errand_send(int socket, const struct errand *errand, int fd);

/* Waits for the next, at most timeout_ms (-1: for ever). *ret_fd: what came with it, or -1.
 * -ECONNRESET at the end, -ETIMEDOUT, -EBADMSG. */
int errand_receive(int socket, int timeout_ms, struct errand *ret, int *ret_fd);

/* The service asks, and waits. Not longer than ERRAND_TIMEOUT_MS: the starter does nothing that
 * takes time. */
#define ERRAND_TIMEOUT_MS 10000
int errand_ask(int socket, enum errand_kind kind, const char *text, int *ret_fd,
               struct failure *ret_failure);
