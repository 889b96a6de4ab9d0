/* Names to addresses, as this machine resolves them (getaddrinfo: its hosts file, its name
 * servers), off the event loop: each look-up has a thread for as long as it takes. */
#pragma once

#include <event2/event.h>
#include <stddef.h>
#include <stdint.h>

#include "egress/address.h"

/* Look-ups at a time. An owner has a part of them: stops who asks for names whose servers never
 * answer from keeping those of all others waiting. What is beyond that waits its turn. */
#define RESOLVER_RUNNING_MAX 256
#define RESOLVER_OWNER_MAX 8

/* Addresses of a name that are looked at. Stops a name server from making a connection take as many
 * attempts as it likes. */
#define RESOLVER_ADDRESSES_MAX 16

struct resolver;
struct resolution;

/* -ENOMEM, -EMFILE. */
int resolver_new(struct event_base *base, struct resolver **ret);

/* There must be no resolutions left. Look-ups under way end by themselves. NULL is allowed. */
void resolver_free(struct resolver *r);

/* error: 0, or one of getaddrinfo's (EAI_…), with count 0 then. In the order in which they are to
 * be tried. The resolution has ended. Made from the event loop, never from within resolver_start.
 */
typedef void (*resolver_done)(void *context, int error, const struct address *addresses,
                              size_t count);

/* owner: any number, see RESOLVER_OWNER_MAX. -ENOMEM. */
int resolver_start(struct resolver *r, uint64_t owner, const char *name, resolver_done done,
                   void *context, struct resolution **ret);

/* `done` is not called any more. NULL is allowed. */
void resolution_cancel(struct resolution *resolution);
