/* What holds commands on this machine: found out once, by trying, when the service starts. Each
 * mechanism can be taken away for tests by BERTH_WITHOUT, a list of names with commas between. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "confine/cgroup.h"
#include "confine/sandbox.h"

enum mechanism {
    MECHANISM_CGROUP,        /* a cgroup v2 for each command */
    MECHANISM_PID_NAMESPACE, /* a pid namespace for each workspace */
    MECHANISM_COUNT,
};

struct confinement;

struct confinement_options {
    const char *name;          /* of the service, in names of its own on this machine */
    const char *cgroup_parent; /* see cgroup_base_open; NULL: found */
};

/* -ENOMEM; what cannot be had is not a failure. */
int confinement_new(const struct confinement_options *options, struct confinement **ret);
void confinement_free(struct confinement *c);

/* "cgroup", "pid-namespace". */
const char *mechanism_name(enum mechanism m);

/* Whether it holds; *ret_text says where, or why not. Borrowed. */
bool confinement_holds(const struct confinement *c, enum mechanism m, const char **ret_text);

/* Adds "confinement": {NAME: {"holds", "text"}, …} to object. -ENOMEM. */
int confinement_status(const struct confinement *c, json_t *object);

/* NULL when MECHANISM_CGROUP does not hold. */
struct cgroup_base *confinement_cgroups(const struct confinement *c);

/* The sandbox of the workspace whose tree is `root`, made if there is none: held until it is given
 * back. *ret NULL: MECHANISM_PID_NAMESPACE does not hold. */
int confinement_hold_sandbox(struct confinement *c, int root, struct sandbox **ret);
void confinement_release_sandbox(struct confinement *c, struct sandbox *sandbox);

/* Takes over a descriptor of a child that could not be waited for without waiting long: it is
 * reaped by a later sweep. *pidfd is then -1. */
void confinement_reap_later(struct confinement *c, int *pidfd);

/* Reaps those that have ended, removes cgroups that have become empty, ends sandboxes that nobody
 * has used for a while. Cheap when there is nothing.
 */
void confinement_sweep(struct confinement *c);
