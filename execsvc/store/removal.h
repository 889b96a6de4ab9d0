/* Deleting what an untrusted agent left: any depth, any number of files, directories nobody
 * may enter, and processes that still write there. Links are never followed. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

/* Seconds one call may take. Stops a process that makes files as fast as they are deleted from
 * keeping a thread busy for ever; what is left goes the next time. */
#define REMOVAL_SECONDS_MAX 600

/* Deletes everything in the directory, not the directory itself. The directories found are
 * moved up into it and emptied one after the other, so that neither descriptors nor memory
 * grow with the depth. What cannot be deleted stays; returns the first error then, or
 * -ETIMEDOUT; -ECANCELED: *stop (may be NULL) became true. */
int removal_empty(int dir_fd, const atomic_bool *stop);
