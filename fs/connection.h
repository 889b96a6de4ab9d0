/* Keeping the driver connected. When the connection is lost, a thread of its own connects
 * again (client_connect blocks), waiting longer after each failure, and hands the new client
 * to the loop. */
#pragma once

#include "driver.h"

/* Takes the connected client and attaches it to d's loop. -ENOMEM and others; the client is
 * then freed. */
int connection_start(struct driver *d, struct client *client, struct failure *ret_failure);

/* The same without a client: it is connected from now on, and join_first is asked about the first
 * connection. quiet: failures are not logged. */
int connection_start_later(struct driver *d, bool quiet, struct failure *ret_failure);

/* A request waits for a connection: it is tried at once, within limits. As connector_hurry. */
uint64_t connection_hurry(struct driver *d);

/* Closes the connection, failing what is in flight, and stops connecting again. A thread that
 * just then waits for the network is left behind: *ret_left_behind. It frees what it uses, but a
 * process that ends must not wait for it, nor tidy up libraries. */
void connection_stop(struct driver *d, bool *ret_left_behind);
