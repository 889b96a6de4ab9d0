/* One HTTP connection, from its first request to its end. */
#pragma once

#include "base/failure.h"

struct counters;

/* From its first byte to the end of a request's header. Stops clients that only hold a place. */
#define CONVERSATION_HEADER_S 10

/* Between requests. */
#define CONVERSATION_IDLE_S 60

/* Without a byte of a request's body, or while the client reads nothing of an answer. */
#define CONVERSATION_STALL_S 30

struct conversation_options {
    int fd;             /* to the client, by way of the service; taken */
    const char *ticket; /* by which the service knows whose connection this is */
    /* A new stream to the service: a descriptor, or a negative errno. */
    int (*connect)(void *context);
    void *context;
    struct counters *counters;
};

/* Until the client or we end it. */
void conversation_run(const struct conversation_options *options);
