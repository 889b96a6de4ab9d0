/* Shared by the files that implement confinement.h: confinement.c finds out what holds, cell.c
 * makes and keeps cells, change.c changes what is asked of them. */
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include "confine/confinement.h"
#include "confine/syscalls.h"
#include "confine/view.h"

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
    int idmap;                                 /* see root_options; -1 */
    bool has_egress;
    struct confinement_egress egress;
    int *unreaped; /* pidfds */
    size_t unreaped_count;
    size_t unreaped_allocated;
};

struct cell {
    struct cell *next;
    struct policy policy;
    struct sandbox *sandbox; /* NULL: there are no namespaces */
    struct restraint restraint;
    struct attest_facts facts; /* as they were measured, limits too */
    int landlock;              /* without a sandbox's */
    char *private;             /* see cell_private */
    char *workspace;           /* its path; NULL: there are no views */
    char *home;
    char *place;      /* the tree, where there is a project */
    uint32_t project; /* see disk.h; 0: what it fills is not limited */
    struct views views;
    bool has_egress;
    void *egress;
    uint16_t proxy_port;
    dev_t device; /* of the workspace's tree */
    ino_t inode;
    size_t users;
    uint64_t idle_since_ns;
    bool retired; /* its policy is the workspace's no more: it lasts as long as it is held */
};

/* Ends those that nobody has used for a while, and those that are of no more use. */
void cells_sweep(struct confinement *c);
void cells_free(struct confinement *c);

/* Can the policy be had here? -EOPNOTSUPP and what is missing; never less than was asked for. */
int cell_check_policy(const struct confinement *c, const struct policy *p, struct failure *f);

/* Is it of the workspace whose tree that is? */
bool cell_is_of(const struct cell *cell, const struct stat *root);

/* One that nobody finds yet. */
int cell_new(struct confinement *c, const struct cell_options *o, struct cell **ret,
             struct failure *f);
void cell_free(struct confinement *c, struct cell *cell);

/* Limits as the policy says, for commands that are started from now on. */
void cell_set_limits(struct cell *cell, const struct policy *p);
