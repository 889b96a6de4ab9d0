/* The file system that the commands of a workspace see, in a mount namespace of their own: a new
 * root with what of the system programs need (read-only), the workspace where it really is and at
 * /workspace, and a /tmp, /proc, /dev and home directory that nobody else has. Nothing of it is
 * reached by a path of the machine's that is not in the list.
 *
 * It is planned where memory may be had, as a list of steps, and built after the fork. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/failure.h"

/* Where a workspace is besides. */
#define ROOT_WORKSPACE "/workspace"

/* The home directory of a user who has none, as in a container with any number for its user. */
#define ROOT_HOME "/home/berth"

/* A file that is there for everybody, and that no rule of Landlock's lets anybody open. */
#define ROOT_FORBIDDEN "/.berth"

struct root;

/* Paths are absolute, and borrowed for the call. */
struct root_options {
    const char *workspace; /* NULL: none */
    const char *home;      /* where the home directory is seen */
    const char *private;   /* a directory with "tmp" and "home"; NULL: in memory */
    char *const *read;     /* to be seen besides, read-only; NULL-terminated, or NULL */
    int idmap;             /* for what is the system's (idmap.h), for root_build; -1: none */
};

/* -EINVAL: this is not to be read besides; what is the commands' own, and what is hidden from them
 * and not itself what was named. real: where the path leads. */
int root_check_read(const char *path, const char *real, struct failure *ret_failure);

/* -ENOMEM, and -ENOENT with the failure for what is asked for and not there. */
int root_plan(const struct root_options *options, struct root **ret, struct failure *ret_failure);
void root_free(struct root *root);

/* In a mount namespace of this process's own, whose mounts are private: builds it and makes it this
 * process's root. 0, or a negative errno and what it was about, as a pointer into the plan or a
 * constant. Async-signal-safe. */
int root_build(struct root *root, const char **ret_step);

/* After root_build, as the next two: a copy of the whole, in which the root itself can be written
 * to. */
int root_copy(int *ret);

/* The workspace at `path` as well, a directory that is there. */
int root_bind_workspace(const char *path);

/* Whether a path is, or is below, what the root has from the machine, or what programs take for
 * the kernel's. */
bool root_reserves(const char *path);

/* Whether it is a part of the way to the workspace that leads through what is the commands' own,
 * /tmp and home (NULL: none). Each is a mount, so that nobody moves it: that would take the
 * workspace's path from the commands that come after. */
bool root_pins(const char *workspace, const char *home, const char *path);

/* Splits off the next component. False: there is none, or it is longer than a name can be.
 * Async-signal-safe. */
bool root_next_component(const char **path, char name[NAME_MAX + 1]);

/* Adds to a set of Landlock's what is to be reached in it. */
int root_allow(const struct root *root, int landlock, const char **ret_step);

/* The same for a process that sees the machine's own root: what is the workspace's, and what of the
 * system programs need. Paths that lead elsewhere than they ought to (home, /tmp) are not. */
int root_allow_outside(const struct root_options *options, int landlock,
                       struct failure *ret_failure);
