/* The service as its parts in this folder see it. Everything here belongs to the loop's
 * thread. */
#pragma once

#include <event2/event.h>
#include <openssl/ssl.h>
#include <sys/queue.h>

#include "access/access.h"
#include "access/audit.h"
#include "exec/exec_service.h"
#include "server/bounds.h"
#include "server/subscribers.h"
#include "server/workers.h"
#include "store/store.h"

struct connection;
struct listener;
struct lock_waits;
struct reaper;
struct trees;

TAILQ_HEAD(connection_list, connection);

/* Connections that speak frames. Stops one credential from using up all descriptors. */
#define SERVER_CONNECTIONS_MAX 4096

/* Connections that speak HTTP, each with a process of the gateway's. Fewer than that has, since one
 * that has gone takes a moment to end. */
#define SERVER_RELAYS_MAX 384

/* Refusals logged per LOG_PERIOD_S: stops a flood of bad connections from filling the disk
 * with log lines. */
#define SERVER_LOG_BURST 20
#define SERVER_LOG_PERIOD_S 10

/* Read from a connection at a time: a large WRITE in few system calls. */
#define SERVER_READ_MAX (256u << 10)

/* Workspaces in which names were made last: delegations.c. */
#define SERVER_MAKERS 64

struct maker {
    uint32_t slot;
    const struct connection *connection; /* who did last, and could do so now; else NULL */
    uint64_t shared_until_ns;            /* until then there is more than one */
    uint64_t asked_ns;                   /* when it was asked whether commands live there */
};

struct server_counters {
    uint64_t accepted;      /* connections */
    uint64_t upgraded;      /* of these, to frames */
    uint64_t relayed;       /* and to the gateway */
    uint64_t unauthorized;  /* answered 401 or 403 */
    uint64_t forbidden;     /* messages that their client was not granted */
    uint64_t dropped_early; /* closed for a newer one before they had upgraded */
    uint64_t timed_out;     /* not ready, or not reading, in time */
    uint64_t protocol_errors;
    uint64_t accept_errors;
    uint64_t parked;  /* sessions whose connection was lost, */
    uint64_t resumed; /* and that went on on another */
};

struct server {
    struct event_base *base;
    struct store *store;
    struct exec_service *exec;
    struct workers *workers;
    struct reaper *reaper;
    struct lock_waits *lock_waits;
    struct trees *trees;
    struct subscribers *subscribers;
    struct maker makers[SERVER_MAKERS]; /* by slot */
    struct access *access;
    struct audit *audit;        /* NULL: nobody wants one */
    struct bounds bounds;       /* of this process */
    uint64_t crashes;           /* of those before it, with the same starter */
    struct event *access_timer; /* while there are connections: do their grants still stand? */
    uint64_t epoch;             /* of this run */
    uint64_t started_ns;
    TAILQ_HEAD(, listener) listeners;
    unsigned pending_max; /* un-upgraded connections per listener */
    unsigned connections_max;
    struct connection_list connections; /* upgraded ones */
    unsigned connection_count;
    struct connection_list parked; /* whose clients may come back (park.h), the oldest first */
    unsigned parked_count;
    struct connection_list relays; /* of whoever was let in once (http_relay.h) */
    unsigned relay_count;
    unsigned relays_alive; /* with those that have not got in */
    unsigned relays_max;
    struct event *park_timer;
    struct connection_list ended; /* to be torn down at the next turn of the loop */
    struct event *tear_down;
    struct connection_list dirty; /* with output in their sessions */
    struct event *flush;
    bool flushing;
    unsigned connections_alive; /* of all kinds */
    uint64_t last_id;
    bool stopping;
    struct server_counters counters;
    uint8_t *read_buffer;     /* SERVER_READ_MAX bytes, of whoever is reading */
    uint64_t *message_counts; /* by index in the message table */
    unsigned log_burst;
    uint64_t log_suppressed;
    uint64_t log_period_start_ns;
};

/* A line about a connection that has not authenticated; see SERVER_LOG_BURST. */
void server_log_refusal(struct server *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The state of the service as one JSON object of at most max bytes, for a client with this grant:
 * one that was not granted ADMIN of all workspaces is told nothing of what others do. -ENOMEM. */
int server_status(struct server *s, const struct grant *grant, size_t max, char **ret);
