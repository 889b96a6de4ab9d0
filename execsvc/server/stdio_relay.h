/* berthd --stdio: a byte stream between standard input and output and the service of a root.
 * Never serves itself, so that there is one service per root however its clients come in. */
#pragma once

#include "config/config.h"

/* How long a service that is starting may take until its socket accepts. */
#define STDIO_START_TIMEOUT_S 10

/* Relays until either side ends: 0. Starts the service, detached, if nobody listens; its log
 * is then ROOT/berthd.log. The failure says what that log says. */
int stdio_run(const struct service_settings *settings, struct failure *ret_failure);
