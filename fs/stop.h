/* The end of a mount on SIGTERM, SIGINT or SIGHUP: unmount while the driver goes on serving,
 * so that what is still to be written is written. */
#pragma once

#include "driver.h"

/* Watches the signals. minor: the mount's device. -ENOMEM. */
int stop_watch(struct driver *d, uint32_t minor, struct failure *ret_failure);
void stop_free(struct driver *d);
