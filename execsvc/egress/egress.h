/* The proxy through which the commands of a workspace reach what its policy lists, and nothing
 * else.
 *
 * A workspace's commands have a network namespace with a loopback alone, in which the proxy
 * listens: on a socket that was made there, and whose connections are carried on from here. There
 * is nothing else in there to send anything to, so that no name leaves it either: names are
 * resolved here, and only those that are on the list. What a name resolves to is checked, and
 * exactly that is connected to.
 *
 * Refusals are answers with a text: 400 for what is no request, 403 for what is not on the list or
 * resolves to where nobody may go, 408, 431; 502 and 504 when the other side is to blame. */
#pragma once

#include <event2/event.h>
#include <stdint.h>

#include "egress/allow_list.h"

/* Each stops what a workspace could do to others or to this machine, or a server to a workspace. */
struct egress_limits {
    uint32_t request_ms;  /* from connecting to a whole header: connections that say nothing */
    uint32_t resolve_ms;  /* name servers that do not answer */
    uint32_t connect_ms;  /* servers that do not */
    uint32_t idle_ms;     /* connections that nobody uses */
    uint32_t connections; /* at a time, of a workspace: those beyond it wait until one ends */
    uint32_t per_second;  /* new ones, of a workspace, for long: filling the log; others wait */
    uint32_t burst;       /* new ones at once */
};

#define EGRESS_LIMITS_DEFAULT                    \
    ((struct egress_limits){.request_ms = 10000, \
                            .resolve_ms = 15000, \
                            .connect_ms = 20000, \
                            .idle_ms = 900000,   \
                            .connections = 256,  \
                            .per_second = 100,   \
                            .burst = 1000})

/* Workspaces of a proxy. */
#define EGRESS_WORKSPACES_MAX 4096

struct egress;

/* -ENOMEM, -EMFILE. */
int egress_new(struct event_base *base, const struct egress_limits *limits, struct egress **ret);
void egress_free(struct egress *e);

/* Counts go to this file, which is borrowed; see counts.h. */
void egress_count(struct egress *e, int fd);

/* Serves a workspace on a listening socket, which is taken, as the list. name: as the log shows it,
 * borrowed for the call. -EEXIST, -ENFILE: EGRESS_WORKSPACES_MAX, -ENOMEM; nothing is taken then.
 */
int egress_open(struct egress *e, uint64_t id, const char *name, int *listener,
                struct allow_list **list);

/* From now on this list, which is taken, holds; connections to what is not on it end. -ENOENT. */
int egress_change(struct egress *e, uint64_t id, struct allow_list **list);

/* Ends its connections. Nothing happens if there is none. */
void egress_close(struct egress *e, uint64_t id);
