/* Where a command runs, and with which descriptors. */
#pragma once

#include "base/buffer.h"
#include "cli/cli.h"
#include "cli/exec_options.h"
#include "cli/exec_run.h"
#include "cli/here.h"

/* The place on the mount that we stand in (or path is), -w and -C. Relative directories are
 * relative to where we stand, as for git -C; with -w, to the workspace. A -C that leads into a
 * mount tells the workspace, wherever we stand. *ret borrows from all of
 * them. A negative errno, and it has been said. */
int exec_place_find(struct cli *cli, const struct exec_options *options, const char *path,
                    struct here *here, struct buffer *directory, struct exec_place *ret);

/* A standard descriptor that is closed would become the connection's number, and the command's
 * output be written into it. What takes the place of input and output fails as a closed one
 * does; messages for a closed standard error go nowhere, which ends no command. */
bool exec_hold_standard_descriptors(void);
