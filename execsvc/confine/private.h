/* Shared by the files that implement confinement.h: confinement.c finds out what holds, cell.c
 * makes and keeps cells. */
#pragma once

#include <sys/types.h>

#include "confine/confinement.h"
#include "confine/syscalls.h"

struct finding {
    bool holds;
    char text[FAILURE_TEXT_MAX];
};

struct confinement {
    struct cell *cells; /* the one used last first */
    size_t idle_count;
    struct finding findings[MECHANISM_COUNT];
    struct cgroup_base *cgroups;
    struct sock_fprog filters[SYSCALLS_FLAGS]; /* as they are needed */
    bool has_egress;
    struct confinement_egress egress;
    int *unreaped; /* pidfds */
    size_t unreaped_count;
    size_t unreaped_allocated;
};

/* Ends those that nobody has used for a while, and those that are of no more use. */
void cells_sweep(struct confinement *c);
void cells_free(struct confinement *c);
