/* Whether the driver looks for the kernel's next request before it sleeps.
 *
 * To wake a thread that sleeps costs whoever wakes it, and itself, more than it takes to answer
 * a request from what the driver knows: on a virtual machine, where an idle processor has been
 * given back, tens of microseconds. So while requests come one soon after the other the driver
 * stays awake for VIGIL_NS after each, its loop serving all else meanwhile. While they do not, and
 * for a while after those who ask turned out to be waiting for this processor, it sleeps at once.
 *
 * Nothing here reads a clock: times are CLOCK_MONOTONIC in nanoseconds. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* About what a sleep and the end of it cost. */
#define VIGIL_NS UINT64_C(30000)

struct vigil {
    uint64_t answered_ns; /* when the last request had been handled */
    uint64_t slept_ns;    /* when the wait for the next was given up; 0: it was not */
    int credit;           /* how often the next came soon, lately */
    uint32_t patience;    /* requests to be taken before the next attempt */
    uint32_t penalty;     /* patience after the last attempt that was in the way */
    bool waiting;
    bool looked; /* and there was none at first */
};

/* A request has been taken from the kernel, and now it has been handled. Unless it was answered,
 * whoever asked sleeps until the service has. */
void vigil_taken(struct vigil *v, uint64_t now_ns);
void vigil_handled(struct vigil *v, uint64_t now_ns, bool answered);

/* There is none now. True: it is to be looked again, at once. */
bool vigil_goes_on(struct vigil *v, uint64_t now_ns);
