/* The process that berthd begins as. It takes the root's lock, opens the sockets to listen on, and
 * has a process of its own serve them: the service (service.h), which confines itself and then has
 * no way to start a program, to open a socket or a file outside of its root. What it needs of that
 * it asks the starter for (errand.h): a keeper of commands, a process that answers HTTP, and the
 * access file and the audit log by the names that they were given at the start.
 *
 * The starter reads nothing from the network and no file but its configuration. It is the process
 * to send signals to: TERM and INT stop the service, which then has a few seconds; a second one
 * ends both at once. HUP is passed on. When it ends, however that is, the service does.
 *
 * A service that crashes is started again, with the same sockets: who connects meanwhile waits. */
#pragma once

#include "config/config.h"

struct activation;

/* Before that: nothing at first, then so much, and at most, when it ends again and again. Slows
 * down who knows how to crash it and tries what else that does. */
#define STARTER_DELAY_MS 50
#define STARTER_DELAY_MAX_MS 5000

/* activation: sockets that came with the start, whose URLs are among those of the settings. Who
 * started this process is told when it serves, and when it is about to end (notify.h).
 *
 * Returns with the exit status to end with, or a failure; in two processes, of which one is the
 * service. The process has one thread. */
int starter_run(const struct service_settings *settings, struct activation *activation,
                int *ret_status, struct failure *ret_failure);
