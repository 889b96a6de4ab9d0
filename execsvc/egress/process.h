/* The process that has the proxy of all workspaces: berthd's own program in another mode, a child
 * of the keeper of commands, which tells it of workspaces (control.h) and starts it again when it
 * ends. It ends itself with the keeper.
 *
 * It meets what commands and servers send, so there is little that it could do for them: where it
 * is root's it becomes nobody; it has no capabilities and gains none; by Landlock, where there is
 * such a thing, it reads what names are resolved with and writes no file but its log, which is
 * open, runs no program, and signals nobody; by seccomp it is without the system calls that
 * commands are without. */
#pragma once

#include "base/failure.h"
#include "base/log.h"

/* Where it finds its descriptors: the control socket, the file that an earlier part of its log
 * goes to, and its counts (counts.h). Standard error is the log. */
#define EGRESS_CONTROL_FD 3
#define EGRESS_OLD_LOG_FD 4
#define EGRESS_COUNTS_FD 5

/* The log becomes the old one when it is larger than this. Stops commands from filling the disk. */
#define EGRESS_LOG_MAX (16 << 20)

/* limits: "" or NAME=NUMBER,… as in struct egress_limits; others are the default. Returns when the
 * keeper has gone, when what names are resolved with was replaced by files that it cannot read, or
 * with a failure. */
int egress_process_run(const char *limits, enum log_level level, struct failure *ret_failure);
