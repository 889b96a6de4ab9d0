/* What the service takes upon itself before it reads the first byte that somebody sends it, for
 * good: what it may do from then on is what it does for its clients, and little else.
 *
 *   service-capabilities  of root's those alone with which files are served as others' own
 *   service-no-new-privs  no program that is started gains anything; needed for the next two
 *   service-landlock      files: those of the root; no TCP but what is accepted, no abstract
 *                         socket, no signal to others
 *   service-seccomp       the system calls of bounds_calls.c: no program, process or socket, no
 *                         memory that is made executable
 *
 * Each can be taken away for tests by BERTH_WITHOUT. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/failure.h"
#include "config/config.h"

enum bound {
    BOUND_CAPABILITIES,
    BOUND_PRIVILEGES,
    BOUND_LANDLOCK,
    BOUND_SECCOMP,
    BOUND_COUNT,
};

struct bounds {
    enum config_confine mode;
    struct {
        bool holds;
        char text[120]; /* how, or why not */
    } each[BOUND_COUNT];
};

/* For the calling thread and those that it starts afterwards: the process has no others. root: what
 * is served. What cannot be had is logged; with CONFIG_CONFINE_REQUIRE it is a failure. */
int bounds_enter(enum config_confine mode, const char *root, struct bounds *ret,
                 struct failure *ret_failure);

/* Adds "service_confinement": {"mode", NAME: {"holds", "text"}} to object. -ENOMEM. */
int bounds_status(const struct bounds *bounds, json_t *object);
