/* Workspaces that providers made sandboxes for, as far as a connection to their service is there
 * already: commands that name no workspace look at these too, but start no program of a vendor's
 * for it. */
#pragma once

#include "cli/cli.h"
#include "places/place.h"

/* cli is one whose service is the workspace's. A negative errno ends it. */
typedef int held_each_fn(void *context, struct cli *cli, struct client *client,
                         const char *workspace);

/* Calls each with every one, by thread ID. None where a service was named, or is that of a mount in
 * which we stand. *ret_left: so many have no connection, and were left out. */
int held_each(const struct cli *cli, held_each_fn *each, void *context, size_t *ret_left);

/* A connection, warm or not, to the service that is used anyway. 0 and NULL: it is not there, and
 * nobody named it; whoever uses nothing but sandboxes needs none. */
int held_connect_own(struct cli *cli, bool warm, struct client **ret);

/* The workspace in which a command of this ID is, or was. 1: *ret, and its place; 0: none, and
 * *ret_left as above. */
int held_find_command(const struct cli *cli, const char *id, struct place *ret, size_t *ret_left);
