/* Thread IDs and directory names as arguments of subcommands. */
#pragma once

#include "cli/cli.h"
#include "names/thread_id.h"

/* Checks all before anything is done: each has 1 to `max` bytes. ids ends with NULL. False: a
 * message has been printed. */
bool workspace_ids_check(const struct cli *cli, char *const *ids, size_t max);
