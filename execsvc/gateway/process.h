/* The gateway: what of a client's connection is HTTP, and no request for frames, is answered here,
 * in processes of their own, by calls over the wire in the client's name. It is berthd's own
 * program in another mode, which the starter starts when there is something to answer.
 *
 * The first process reads nothing that comes from a client. It is told of each connection by the
 * starter, with one end of a pair of sockets whose other end the service has, and forks: one
 * process for each connection, which confines itself (confine.h) and lives as long as that. It is
 * asked by these for streams to the service, which it connects to the socket that is for nothing
 * else; the service knows whose they are by the ticket that is said there.
 *
 * So a parser that is taken over has what its own client has; the requests, credentials and memory
 * of others are other processes'. One that crashes takes its own connection with it. */
#pragma once

#include "base/failure.h"
#include "config/config.h"

/* Where the first process finds the starter's messages (errand.h). */
#define GATEWAY_FD 3

/* Processes at once. Stops clients from filling the machine with them. */
#define GATEWAY_CONNECTIONS_MAX 512

/* In the root's directory: where the service listens for its gateway. */
#define GATEWAY_SOCKET "gateway.sock"

struct gateway_settings {
    const char *root; /* absolute */
    enum config_confine confine;
};

/* Until the starter ends. */
int gateway_process_run(const struct gateway_settings *settings, struct failure *ret_failure);
