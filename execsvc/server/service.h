/* The service itself: from settings to the end of its run. */
#pragma once

#include "config/config.h"

/* Serves what its starter (starter.h) has opened until TERM, INT or the starter's end. 0 after an
 * orderly end, or the failure to start. Sets the process's umask, limits and signal dispositions,
 * and confines it; to be called once, with no other threads. */
int service_run(const struct service_settings *settings, struct failure *ret_failure);
