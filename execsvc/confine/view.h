/* The workspace at one more place: where a caller has it mounted on his machine, so that the paths
 * that compilers, tracebacks and build systems print and write down are paths of his. A view is a
 * mount namespace, derived from the sandbox's and kept for the next command from the same mount;
 * all else in it is the sandbox's, the workspace's own place too, and it is measured as that is.
 *
 * The directories on the way are made in the sandbox's root, which is in memory, or, below /tmp and
 * the home directory, in the workspace's own, and removed with the view; never in the workspace,
 * and never on the machine. */
#pragma once

#include <jansson.h>

#include "base/failure.h"
#include "confine/probe.h"

/* Of a cell; the one used longest ago is given up for another. Stops who runs a command from each
 * of many paths from filling the kernel's memory with mounts. */
#define VIEWS_MAX 8

/* Components of such a path: stops who may run commands from filling the root with directories. */
#define VIEW_DEPTH_MAX 32

struct view;

/* Of a cell, to be zeroed at first. The one used last first. */
struct views {
    struct view *first;
    size_t count;
};

/* All borrowed for the call, but what outlives every view of a cell. */
struct view_options {
    const struct sandbox *sandbox;
    const struct restraint *restraint; /* of the sandbox's commands; attested */
    const char *workspace;             /* where it is in the sandbox */
    const char *home;                  /* NULL: none */
};

/* Whether a path is one that a workspace could be at: absolute, plain, and nothing of what the
 * sandbox has. -EINVAL, and the failure. */
int view_check_path(const char *path, struct failure *ret_failure);

/* The view of that path, made if there is none; held until it is given back. *ret NULL: the
 * workspace is there without. -EPERM: what holds commands is not what was made, and the failure
 * says what was changed. Any other negative errno: it cannot be had, the failure says why, and
 * commands can run without. */
int view_hold(struct views *views, const struct view_options *options, const char *path,
              struct view **ret, struct failure *ret_failure);

/* Holds once more one that is held. */
struct view *view_share(struct view *view);
void view_release(struct view *view);

/* Ends all of them. None may be held. Without a sandbox the directories that were made stay. */
void views_free(struct views *views, const struct sandbox *sandbox);

/* Both borrowed, while it is held. */
int view_mounts(const struct view *view); /* see sandbox_join */
const struct restraint *view_restraint(const struct view *view);

/* The paths that there are, as an array. NULL: no memory. */
json_t *views_to_json(const struct views *views);
