/* One remote command with its local side: standard streams, signals, terminal. */
#pragma once

#include "cli/exec_options.h"
#include "client/client.h"

/* Where to run: all but the workspace may be NULL. */
struct exec_place {
    const char *workspace;
    bool by_name;           /* the workspace is a directory name */
    const char *directory;  /* relative to the workspace's root */
    const char *mount_path; /* where the workspace is mounted here */
};

/* Runs the command over a connected client (not attached; taken over and freed), or attaches to
 * one, and returns the exit status of `berth exec`. A lost connection is made again, as cli reached
 * the first one, and attached to where it was lost. Everything that is to be said has been printed.
 * The process must ignore SIGPIPE. */
int exec_run(struct cli *cli, struct client *client, const struct exec_options *options,
             const struct exec_place *place);
