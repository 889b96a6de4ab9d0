/* Putting other files in the place of all that a workspace has, while its directory stays what it
 * is:
 *
 *   ROOT/restores/NAME/tree/   what comes into workspaces/NAME/tree/
 *                      root/   has the attributes of the tree's own directory
 *                      old/    what was there; `gone` when all of it is here
 *
 * The directory comes from tmp/ whole, and is there until it is done: from then on what a crash
 * interrupts is gone on with at the next start. */
#pragma once

#include "store/store_private.h"

/* Takes tmp/TEMPORARY, which has a tree/ that is on the disk. The workspace is claimed, so that
 * nobody removes it. Once this has returned 0, or -EIO, it will be done, if not
 * now. */
int restore_run(struct store *store, struct workspace *workspace, const char *temporary);

/* At the start: goes on with what is in restores/. What cannot be done stays, and is logged. */
void restore_resume_all(struct store *store);
