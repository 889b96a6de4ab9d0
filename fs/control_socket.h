/* The mount's connection lent to `berth exec` and its like (common/control). */
#pragma once

#include "driver.h"

/* Before the mount, which could come to lie over the socket. A mount without one serves as well;
 * failures are logged. */
void control_socket_open(struct driver *d);
/* When the client has been freed. */
void control_socket_free(struct driver *d);
