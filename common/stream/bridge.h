/* The command of an exec: stream, the bridge to the service: a child whose standard input and
 * output are one end of a connection and whose standard error comes to us through a pipe, to be
 * passed on. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/failure.h"

struct bridge;

/* Starts `/bin/sh -c text` with the socket as its standard input and output. The socket stays
 * the caller's, who closes it when this has returned. */
int bridge_start(const char *text, int socket, struct bridge **ret, struct failure *ret_failure);

/* Readable: bridge_pump. -1 once standard error is at its end. */
int bridge_stderr_fd(const struct bridge *c);

/* Passes on what is there, line by line behind "connect: ", such that it does not drive a terminal,
 * and 64 KiB of it at most. False at the end. */
bool bridge_pump(struct bridge *c);

/* The last line that is not blank of what was passed on, escaped; "" if there was none. */
const char *bridge_last_line(const struct bridge *c);

/* How it ended. */
enum bridge_end {
    BRIDGE_RUNS,
    BRIDGE_EXITED,   /* code */
    BRIDGE_SIGNALED, /* code is the signal */
    BRIDGE_GONE,     /* ended, but it was no child of ours (any more) */
};

/* Waits until it has ended, pumping, at most timeout_ms. */
enum bridge_end bridge_wait(struct bridge *c, unsigned timeout_ms, int *ret_code);

/* "ended with status 3", "was killed by signal 9", …; with its last line. */
const char *bridge_describe(struct bridge *c, char *text, size_t size);

/* The caller has closed the socket. Waits for the end (not if abandon), then TERM, then KILL;
 * reaps; frees. */
void bridge_stop(struct bridge *c, bool abandon);
