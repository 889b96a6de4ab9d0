/* The process that berthd begins as. It takes the root's lock, opens the sockets to listen on, and
 * has a process of its own serve them: the service (service.h), berthd's own program in another
 * mode, which confines itself and then has no way to start a program, to open a socket or a file
 * outside of its root. What it needs of that it asks the starter for (errand.h): a keeper of
 * commands, and the access file and the audit log by the names that they were given at the start.
 *
 * The starter reads nothing from the network and no file but its configuration. It is the process
 * to send signals to: TERM and INT stop the service, which then has a few seconds; a second one
 * ends both at once. HUP is passed on. When it ends, however that is, the service does. */
#pragma once

#include "config/config.h"

/* Returns with the exit status to end with, or a failure. The process has one thread. */
int starter_run(const struct service_settings *settings, int *ret_status,
                struct failure *ret_failure);
