/* The local terminal of `berth exec -t`. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

struct exec_terminal {
    int fd; /* borrowed; -1: not a terminal, or not ours to change */
    bool raw;
    struct termios saved;
};

/* Rows and columns of the first of descriptors 0, 1, 2 that is a terminal. False if none. */
bool exec_terminal_size(uint32_t *ret_rows, uint32_t *ret_columns);

/* Makes it raw, so that every key goes to the command. A negative errno; nothing is changed
 * then. Does nothing for fd -1. */
int exec_terminal_enter(struct exec_terminal *t);

/* As it was before. May be called at any time. */
void exec_terminal_leave(struct exec_terminal *t);
#define _cleanup_exec_terminal_ _cleanup_(exec_terminal_leave)
