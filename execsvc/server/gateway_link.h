/* The starter's end of the gateway (gateway/process.h): starts it when a connection is to be handed
 * to it, and again when it has ended. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/failure.h"
#include "config/config.h"
#include "exec/spawn.h"

/* {.control = -1} with the first three set is a valid one. */
struct gateway_link {
    const struct service_settings *settings;
    const struct spawn_limits *limits;
    const char *root;
    pid_t pid; /* 0: there is none */
    int control;
    uint64_t started_ns;
    uint64_t delay_ms; /* before the next one may be started */
    uint64_t ended_ns;
};

/* A stream to the gateway for the connection of this ticket; a descriptor for the service. -EBUSY:
 * not now, it has crashed just now. */
int gateway_link_open(struct gateway_link *g, const char *ticket, int *ret_fd,
                      struct failure *ret_failure);

/* The child has ended; false: it was another. */
bool gateway_link_reaped(struct gateway_link *g, pid_t pid, int status);

/* Has it end, and does not wait long. */
void gateway_link_close(struct gateway_link *g);

/* In a child of the starter's. */
void gateway_link_forget(struct gateway_link *g);
