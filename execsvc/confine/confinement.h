/* What holds commands on this machine: found out once, by trying, when the service starts; and the
 * cells of workspaces, in which it holds theirs as their policies ask. Each mechanism can be taken
 * away for tests by BERTH_WITHOUT, a list of names with commas between. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "confine/cgroup.h"
#include "confine/policy.h"
#include "confine/restraint.h"
#include "confine/sandbox.h"

enum mechanism {
    MECHANISM_CGROUP,          /* a cgroup v2 for each command */
    MECHANISM_USER_NAMESPACE,  /* where the service may not make others without */
    MECHANISM_PID_NAMESPACE,   /* for each workspace, as the next */
    MECHANISM_MOUNT_NAMESPACE, /* with a root of its own */
    MECHANISM_NET_NAMESPACE,
    MECHANISM_IPC_NAMESPACE,
    MECHANISM_UTS_NAMESPACE,
    MECHANISM_LANDLOCK,
    MECHANISM_SECCOMP,
    MECHANISM_NO_NEW_PRIVS,
    MECHANISM_CAPABILITIES, /* are given up */
    MECHANISM_COUNT,
};

/* What all of them together come to. */
enum level {
    LEVEL_MINIMAL,   /* neither: only policies that ask for neither */
    LEVEL_NO_USERNS, /* Landlock for files, seccomp against sockets: no lists of hosts, no own /tmp
                      */
    LEVEL_FULL,      /* namespaces and seccomp: every policy */
};

struct confinement;
struct cell;
struct view;

/* Serves the connections of a workspace whose network is POLICY_NETWORK_ALLOW. */
struct confinement_egress {
    /* A sandbox has been made; commands come when this has returned. Takes *listener (see
     * sandbox_take_listener). name is the cell's, policy lasts for the call. *ret stands for it
     * from now on. A negative errno and the failure: no command is started. */
    int (*begin)(void *context, const char *name, int *listener, const struct policy *policy,
                 void **ret, struct failure *ret_failure);
    /* From now on this list holds, for connections that there are too. -ENOMEM: nothing changes. */
    int (*change)(void *context, void *begun, const struct allow_list *list);
    /* The sandbox is gone. */
    void (*end)(void *context, void *begun);
    void *context;
    uint16_t port; /* that it is reached at inside */
};

struct confinement_options {
    const char *name;          /* of the service, in names of its own on this machine */
    const char *cgroup_parent; /* see cgroup_base_open; NULL: found */
    const struct confinement_egress *egress; /* copied; NULL: such policies are refused */
};

/* -ENOMEM; what cannot be had is not a failure. */
int confinement_new(const struct confinement_options *options, struct confinement **ret);
void confinement_free(struct confinement *c);

/* "cgroup", "pid-namespace", … */
const char *mechanism_name(enum mechanism m);

/* "minimal", "no-userns", "full". */
const char *level_name(enum level level);

/* Whether BERTH_WITHOUT has this word. */
bool confinement_without(const char *name);

/* -EINVAL: a policy's `require` cannot have this word; the failure has all that it can. */
int confinement_check_name(const char *requirement, struct failure *ret_failure);

/* Whether it holds; *ret_text says where, or why not. Borrowed. */
bool confinement_holds(const struct confinement *c, enum mechanism m, const char **ret_text);

enum level confinement_level(const struct confinement *c);

/* Adds "confinement": {NAME: {"holds", "text"}, …}, "level", and "limits": {"memory", "pids": true,
 * or why not} to object. -ENOMEM. */
int confinement_status(const struct confinement *c, json_t *object);

/* Can these limits be had, 0 being none? -EOPNOTSUPP: the failure names the field and the cgroup's
 * controller that is missing. */
int confinement_check_limits(const struct confinement *c, const struct cgroup_limits *limits,
                             struct failure *ret_failure);

/* NULL when MECHANISM_CGROUP does not hold. */
struct cgroup_base *confinement_cgroups(const struct confinement *c);

/* Takes over a descriptor of a child that could not be waited for without waiting long: it is
 * reaped by a later sweep. *pidfd is then -1. */
void confinement_reap_later(struct confinement *c, int *pidfd);

/* Reaps those that have ended, removes cgroups that have become empty, ends cells that nobody
 * has used for a while. Cheap when there is nothing.
 */
void confinement_sweep(struct confinement *c);

/* --- cells ---------------------------------------------------------------------------------- */

/* Paths are absolute, and borrowed, as the policy. */
struct cell_options {
    int root;                    /* the workspace's tree */
    const struct policy *policy; /* NULL: all that holds here is used, and nothing else is asked */
    /* The user's home directory. NULL or "/": there is none, and who has a root of its own has it
     * at ROOT_HOME. */
    const char *home;
    const char *name; /* of the workspace, for people; NULL: it has none */
    /* The workspace's own directory, where "private" is made: what commands see at /tmp and as
     * their home. -1: they are in memory, and gone with the cell. */
    int directory;
};

/* The cell of the workspace whose tree that is, made if there is none: held until it is given back.
 * -EOPNOTSUPP: the policy cannot be had here, and the failure says what is missing; -EPERM: what
 * was made is wider than the policy; others when it cannot be made. */
int confinement_hold_cell(struct confinement *c, const struct cell_options *options,
                          struct cell **ret, struct failure *ret_failure);

/* The same of one that there is. -ENOENT. */
int confinement_find_cell(struct confinement *c, int root, struct cell **ret);
void confinement_release_cell(struct confinement *c, struct cell *cell);

/* Ends the cells of that tree, of which there may be several after changes of its policy. -EBUSY:
 * one of them is held. */
int confinement_drop_cells(struct confinement *c, int root);

/* Changes the policy of a workspace, in two steps, between which nothing else is asked of c.
 *
 * Can it be had, in the place of `before`? Where commands need another cell for it, it is made, and
 * *ret is that cell, which nobody finds yet; else NULL. Errors as of confinement_hold_cell. */
int confinement_prepare_change(struct confinement *c, const struct cell_options *options,
                               const struct policy *before, struct cell **ret,
                               struct failure *ret_failure);

/* It is the policy of that tree's commands from now on. Takes *fresh, where the next one finds it.
 * Those that run keep what they have, but for their lists of hosts, which are the new one, or empty
 * where the policy says "none": connections to what is on it no more end. What there is no memory
 * for is reached by nobody. */
void confinement_change(struct confinement *c, int root, const struct policy *policy,
                        struct cell **fresh);

/* It is not; *fresh ends. NULL is allowed. */
void confinement_forget_change(struct confinement *c, struct cell **fresh);

/* Holds once more one that is held. */
struct cell *confinement_share_cell(struct cell *cell);

/* The workspace at another path as well (view.h), which is held until it is given back by
 * view_release, no longer than the cell. As view_hold; -EOPNOTSUPP: this cell can have none. */
int cell_hold_view(struct confinement *c, struct cell *cell, const char *path, struct view **ret,
                   struct failure *ret_failure);

/* All borrowed, for as long as the cell is held. Without a sandbox: NULL. */
const struct sandbox *cell_sandbox(const struct cell *cell);
const struct restraint *cell_restraint(const struct cell *cell);

/* As it was asked for. */
const struct policy *cell_policy(const struct cell *cell);

/* See sandbox_terminals. */
int cell_terminals(const struct cell *cell);

/* Its commands' home directory, where they have a root of their own; else NULL. */
const char *cell_home(const struct cell *cell);

/* Where its commands' home and temporary files are, when the paths that they know lead elsewhere
 * (there is no root of their own); NULL: they are where they ought to be. */
const char *cell_private(const struct cell *cell);

/* Port on 127.0.0.1 of the proxy that its commands are to use; 0: none. */
uint16_t cell_proxy_port(const struct cell *cell);

/* What a probe inside finds now: {"level", "filesystem", "network": what holds commands to what the
 * policy says; "facts"; "missing": {MECHANISM: why}; "paths": of views; "changed": what is not as
 * when it was made, or "unknown": why nothing can be found}. NULL: no memory. */
json_t *cell_measured(struct confinement *c, const struct cell *cell);
