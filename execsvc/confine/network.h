/* What is inside a network namespace that was just made. */
#pragma once

#include <stdint.h>

/* Brings up the loopback of this process's network namespace and, with a port, listens on
 * 127.0.0.1:PORT there. *ret_listener: the listening socket (close-on-exec), -1 without a port.
 * Async-signal-safe. Negative errno. */
int network_set_up(uint16_t port, int *ret_listener);
