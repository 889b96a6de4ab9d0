/* Where a command of a workspace runs: its tree, and the cell that its policy asks for. */
#pragma once

#include "confine/confinement.h"
#include "exec/command.h"
#include "keeper/private.h"

struct place {
    int directory; /* the workspace's own */
    int tree;
    struct cell *cell;                /* held */
    struct view *view;                /* held, or NULL */
    char *path;                       /* where a command sees the tree */
    bool chosen;                      /* by its caller; else it is where it is */
    char path_text[FAILURE_TEXT_MAX]; /* why not, if he has */
};

#define PLACE_NONE ((struct place){.directory = -1, .tree = -1})

/* A negative errno and the refusal: there is no such workspace, its policy cannot be had here, or
 * it is fenced. */
int place_find(struct keeper *k, struct bytes workspace, struct place *ret,
               struct command_verdict *refusal);

/* Where the command is to see its workspace: fills in what is behind `cell`. A negative errno and
 * the refusal. */
int place_choose_path(struct keeper *k, const struct wire_exec *exec, struct place *place,
                      struct command_verdict *refusal);
void place_release(struct keeper *k, struct place *place);

/* Adds to object what EXEC_POLICY tells. A cell is made if there is none. -ENOMEM; others when
 * there is no such workspace. */
int place_describe(struct keeper *k, struct bytes workspace, json_t *object);

/* Changes the workspace's policy as EXEC_POLICY_SET says, and adds to object what its answer tells,
 * but of commands. at_once: it holds for those that run, as well. A negative errno and the failure:
 * nothing has changed. */
int place_change(struct keeper *k, struct bytes workspace, struct bytes policy, json_t *object,
                 bool *ret_at_once, struct failure *ret_failure);

/* Removes the fence, and the cells. -ENOENT: there is none; -EBUSY: a cell is in use. */
int place_lift(struct keeper *k, struct bytes workspace);

/* No command is started in that workspace any more, until somebody lifts the fence. */
void place_fence(struct keeper *k, struct bytes workspace, const char *why);
