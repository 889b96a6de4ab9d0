/* Connections, and parked sessions, whose grant has expired, or whose line in the access file is
 * gone or another: they are ended. */
#pragma once

#include "server/server.h"

/* There is a connection that has got in: looks from time to time from now on, until there is none.
 */
void standing_watch(struct server *s);

/* The handler of server.access_timer. */
void standing_on_timer(evutil_socket_t fd, short what, void *context);
