/* The service itself: from settings to the end of its run. */
#pragma once

#include "config/config.h"

/* Opens the root, listens, serves until TERM or INT. 0 after an orderly end, or the failure to
 * start. Sets the process's umask, limits and signal dispositions; to be called once, with no
 * other threads. */
int service_run(const struct service_settings *settings, struct failure *ret_failure);

/* ROOT/berthd.sock: where every service of a root listens, whatever else it does. */
int service_socket_path(const char *root, char **ret);
