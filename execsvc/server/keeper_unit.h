/* A keeper of commands that is not started by the service but by somebody who listens for it, as
 * systemd does with contrib's berthd-keeper units. It then has a cgroup that no service is in, and
 * can divide that cgroup's controllers among commands, which the kernel permits only where there
 * are no other processes; and the service's unit stays one that systemd can start anew.
 *
 * Who starts one passes on a socket of SOCK_SEQPACKET that listens, as in sd_listen_fds(3). A
 * service that needs a keeper sends an errand there (errand.h) with a stream, and learns at the
 * stream whether there is one. One is accepted; the others wait for the next keeper. */
#pragma once

#include "base/failure.h"
#include "keeper/process.h"

/* Asks for a keeper of the root that listens on path. *ret_fd: a stream to it, owned by the caller.
 * Does not wait. -ENOENT, -ECONNREFUSED: nobody listens there; other errors of connect(2) and
 * sendmsg(2). */
int keeper_unit_ask(const char *path, const struct keeper_settings *settings, int *ret_fd);

/* Is the keeper that is asked for at the socket that this process was started with; returns at its
 * end, or after KEEPER_IDLE_S when nobody asks. What root and this user ask for is done, and
 * nobody else's. -EINVAL: there is no such socket. */
int keeper_unit_run(struct failure *ret_failure);
