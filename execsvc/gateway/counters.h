/* What the gateway counts of its requests, in memory that all its processes share. One that was
 * taken over can write what it likes there: nothing but /metrics reads it. */
#pragma once

#include <stdint.h>

/* 1xx has none. */
#define COUNTERS_CLASSES 5

/* More than there are routes; the last is of requests that found none. */
#define COUNTERS_ROUTES 128

struct counters {
    _Atomic uint64_t connections;
    _Atomic uint64_t open;
    _Atomic uint64_t crashed;
    _Atomic uint64_t refused;  /* more at once than GATEWAY_CONNECTIONS_MAX */
    _Atomic uint64_t received; /* bytes of bodies */
    _Atomic uint64_t sent;
    _Atomic uint64_t requests[COUNTERS_ROUTES][COUNTERS_CLASSES];
    _Atomic uint64_t duration_us[COUNTERS_ROUTES]; /* sum */
};

/* Zeros. NULL: no memory. For good. */
struct counters *counters_new(void);
