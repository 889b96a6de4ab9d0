/* A connection to one of several addresses, of which the first that answers is taken (RFC 8305):
 * each is tried a moment after the one before, or as soon as that one fails. */
#pragma once

#include <event2/event.h>
#include <stddef.h>
#include <stdint.h>

#include "egress/address.h"

/* Between one attempt and the next. */
#define DIAL_DELAY_MS 250

/* Addresses that are tried. Stops a name from making a connection cost more than a few sockets. */
#define DIAL_ATTEMPTS_MAX 6

struct dial;

/* fd: the connection, non-blocking, owned by the callee, and the address that it goes to; or -1 and
 * a negative errno, that of the first attempt that failed, and its address. The dial has
 * ended. Made from the event loop, never from within dial_start. */
typedef void (*dial_done)(void *context, int fd, int error, const struct address *address);

/* count > 0, of which DIAL_ATTEMPTS_MAX are tried, and those of the two families in turns.
 * -ENOMEM. */
int dial_start(struct event_base *base, const struct address *addresses, size_t count,
               uint16_t port, dial_done done, void *context, struct dial **ret);

/* `done` is not called. NULL is allowed. */
void dial_cancel(struct dial *c);

/* Is it an address of this machine itself, whatever kind it is? Nothing is sent to find that out.
 */
bool dial_is_own(const struct address *a);
