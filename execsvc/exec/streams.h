/* The two ends of a command's standard streams: pipes, a terminal, or /dev/null. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/failure.h"

struct streams {
    int child[3];  /* for descriptors 0, 1, 2 of the command; blocking */
    int input;     /* our end of standard input, or -1; non-blocking like the outputs */
    int output[2]; /* our ends of standard output and error; [1] is -1 when merged */
};

struct streams_options {
    uint32_t flags;
    uint32_t rows;
    uint32_t columns;
    int terminals; /* directory whose "ptmx" makes terminals; -1: this process's own */
};

/* flags: WIRE_EXEC_STDIN, WIRE_EXEC_MERGE, WIRE_EXEC_PTY. A terminal has its size before
 * anything runs in it; rows or columns 0: 24 by 80. A negative errno; the
 * failure says what for. */
int streams_open(const struct streams_options *options, struct streams *ret,
                 struct failure *ret_failure);

/* Closes what is still open in child. */
void streams_close_child(struct streams *s);

/* Closes all that is still open. */
void streams_release(struct streams *s);

/* Sets the size of the terminal whose our end is fd; its foreground group gets WINCH. */
int streams_resize(int fd, uint32_t rows, uint32_t columns);
