/* Commands that the service knows: finding one by its ID. */
#pragma once

#include "base/failure.h"
#include "cli/cli.h"
#include "places/place.h"
#include "wire/wire.h"

struct exec_found {
    char *workspace; /* thread ID */
    char id[WIRE_EXEC_ID_MAX + 1];
    uint32_t flags; /* WIRE_EXEC_… it was started with */
};

/* Calls each with every command, in the order in which they were started: of one workspace or
 * (NULL) all, one ID or (NULL) all. A negative errno of each ends it. Failures have a sentence. */
typedef int exec_each_fn(void *context, const struct wire_exec_command *command);
int exec_each(struct client *client, const char *workspace, const char *id, exec_each_fn *each,
              void *context, struct failure *ret_failure);

/* The command of an ID. -ENOENT; -EEXIST: there is one in several workspaces; others. */
int exec_find(struct client *client, const char *workspace, const char *id, struct exec_found *ret,
              struct failure *ret_failure);
/* The same where it was not found, in workspaces of providers that are connected (held.h), if
 * neither a workspace nor a service was named. 1: *ret, and its place; else the error, and f says
 * more. */
int exec_find_held(const struct cli *cli, const char *workspace, const char *id, int error,
                   struct place *ret, struct failure *f);

void exec_found_release(struct exec_found *f);
#define _cleanup_exec_found_ _cleanup_(exec_found_release)
