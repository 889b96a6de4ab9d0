/* Dying at a chosen place, in builds for tests alone: with BERTH_FAULT=NAME[:N] in its environment
 * the service kills itself when it comes to the fault point (faults.def) for the N-th time. Builds
 * without meson's fault_points have nothing of it. */
#pragma once

#include <stdio.h>

enum fault {
#define FAULT(name, text) FAULT_##name,
#include "store/faults.def"
#undef FAULT
};

#ifdef BERTH_FAULT_POINTS
void fault_point(enum fault fault);

/* For processes that are started from now on. */
void fault_forget(void);
#else
static inline void fault_point(enum fault fault)
{
    (void)fault;
}

static inline void fault_forget(void)
{
}
#endif

/* The list, a line each: the name, a tab, what holds there. 0; -EOPNOTSUPP: this build has none. */
int fault_list(FILE *to);
