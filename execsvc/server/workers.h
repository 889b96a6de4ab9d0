/* Threads for requests that may block in the kernel, and the order in which the requests of
 * one connection run on them.
 *
 * A lane is one connection's way in. Its jobs run in parallel but for what a client that
 * pipelines must be able to rely on:
 *   JOB_FREE       in no order
 *   JOB_SHARED     after earlier EXCLUSIVE jobs of the same key; beside other SHARED ones
 *   JOB_EXCLUSIVE  after all earlier jobs of the same key
 *   JOB_BARRIER    after all earlier jobs of the lane (later ones do not wait for it)
 * Lanes take turns, and one lane never has all threads, so a client whose requests block does
 * not hold up the others.
 *
 * All functions are for the loop's thread. Lock order: there is one lock, and no callback is
 * made while it is held. */
#pragma once

#include <event2/event.h>

#include "server/reply.h"
#include "wire/session.h"

struct workers;
struct lane;

enum job_order { JOB_FREE, JOB_SHARED, JOB_EXCLUSIVE, JOB_BARRIER };

struct job {
    struct wire_frame *frame; /* the request; freed by job_free */
    enum job_order order;
    uint64_t key; /* SHARED, EXCLUSIVE */
    void *owner;  /* the submitter's */
    int result;   /* set by run */
    struct reply reply;
    /* private */
    struct lane *lane;
    struct job *next;          /* in one queue: ready, waiting in a chain, or done */
    struct job *newer, *older; /* outstanding jobs of the lane, by arrival */
    bool waiting;              /* a BARRIER that is not the oldest yet */
};
void job_free(struct job *job);

struct lane_events {
    void (*run)(void *context, struct job *job);  /* worker thread: do it, set the result */
    void (*done)(void *context, struct job *job); /* loop: takes the job */
    void (*finish)(void *context);   /* worker thread: the lane is closed, all jobs have run */
    void (*finished)(void *context); /* loop, last of all; the lane is freed after it */
    void *context;
};

#define WORKERS_MIN 4
#define WORKERS_MAX 64 /* threads; each may hold a request of WIRE_PAYLOAD_MAX and its reply */

/* 0, -ENOMEM, or another errno of the thread or descriptor that could not be made. */
int workers_new(struct event_base *base, unsigned count, struct workers **ret);

/* Runs all that was submitted, joins the threads, makes the outstanding callbacks. Every lane
 * must have been closed. */
void workers_free(struct workers *w);

unsigned workers_count(const struct workers *w);

int lane_new(struct workers *w, const struct lane_events *events, struct lane **ret);

/* Takes the job, but not on failure (-ENOMEM). */
int lane_submit(struct lane *lane, struct job *job);

/* No more jobs will come. Those submitted still run and are reported as done. */
void lane_close(struct lane *lane);
