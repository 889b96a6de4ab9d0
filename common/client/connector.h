/* Connects again, after a loss, on a thread of its own: libcurl blocks. It tries until it succeeds,
 * with growing pauses, which end when somebody waits (connector_hurry). */
#pragma once

#include "client/client.h"

struct connector;

struct connector_options {
    struct stream_options stream; /* what it points to lives as long as context, */
    const char *agent;            /* and this as long as the process */
    /* NULL, or instead of stream and agent: another way to connect, on the thread. */
    int (*connect)(void *context, struct client **ret, struct failure *ret_failure);
    bool quiet; /* failures are not logged */
    /* On the thread, for a new session: what must be said before anything else. A negative errno:
     * try again. NULL allowed. */
    int (*greet)(void *context, struct client *client, struct failure *ret_failure);
    void (*release)(void *context); /* NULL allowed */
    void *context;                  /* owned, once connector_start has succeeded */
    int event_fd;                   /* lives as context; written to when it has succeeded, */
    bool tells_failures;            /* and after each attempt that failed */
    uint32_t pause_ms;              /* before the first attempt, whoever waits */
    uint32_t hurry_ms;              /* the pause while somebody waits: spares the other side */
};

/* resumes: NULL, or the session to go on with. A negative errno of pthread_create, or -ENOMEM. */
int connector_start(const struct connector_options *options, const struct session_resume *resumes,
                    struct connector **ret);

/* Another point to go on from, or none any more, for attempts that have not begun. */
void connector_set_resume(struct connector *c, const struct session_resume *resumes);

/* Somebody waits: the next attempt begins at once, or hurry_ms after the end of the last. Returns
 * until when its outcome is worth waiting for (CLOCK_MONOTONIC); 0: it is known, since the last one
 * has failed less than hurry_ms ago. */
uint64_t connector_hurry(struct connector *c);

/* False: it still tries. The last attempt that failed began then, or (0) there is none. */
bool connector_has_succeeded(struct connector *c, uint64_t *ret_failed_begun_ns);

/* What the last attempt that failed said; "": there was none. */
void connector_last_failure(struct connector *c, char ret[static FAILURE_TEXT_MAX]);

/* The options' context, of which nothing is used by the thread any more when it has succeeded. */
void *connector_context(const struct connector *c);

/* When it has succeeded: what came of it, and what its HELLO said is abandoned. Frees c.
 * *ret is NULL when it did not succeed after all. */
void connector_take(struct connector *c, struct client **ret, uint64_t *ret_abandoned);

/* Frees c, and with it the context; false: its thread still runs, and does so when an attempt ends.
 */
bool connector_stop(struct connector *c);
