/* Running a vendor's program: by its argv, without a shell, for a bounded time, keeping a bounded
 * part of what it prints. It has a session of its own, so that it cannot read from the terminal,
 * and it ends with us. What it leaves in the background is not waited for. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/failure.h"

/* Bytes kept of each stream: a program that prints without end neither fills memory nor is ended
 * for it; its timeout ends it. */
#define STEP_OUTPUT_MAX 65536

/* Bytes of a line that is taken from it, with the NUL: as long as a parameter may be. */
#define STEP_LINE_MAX 4097

struct step_result {
    int status; /* the exit status; 128+n: by a signal */
    bool timed_out;
    bool interrupted; /* by a signal to us; it was ended */
    struct buffer output;
    struct buffer errors;
};

void step_result_release(struct step_result *r);
#define _cleanup_step_ _cleanup_(step_result_release)

/* input: a file for its standard input, or NULL (empty). environment: variables that it has in
 * place of ours, an object of strings, and of nulls for those that it has not; or NULL. signal_fd:
 * of step_signals_block, or -1. 0 and *ret, however it ended; or why it could not be run: -ENOENT,
 * there is no such program. */
int step_run(char *const *argv, const char *input, const json_t *environment, uint32_t timeout_ms,
             int signal_fd, struct step_result *ret, struct failure *ret_failure);

/* The first line that is not blank of what it printed; false: there is none, or it is longer than a
 * parameter may be. */
bool step_first_line(const struct step_result *r, char ret[STEP_LINE_MAX]);

/* INT, TERM and HUP end what step_run waits for, not us, until *fd is given back. */
int step_signals_block(int *ret_fd);
void step_signals_unblock(int *fd);
#define _cleanup_step_signals_ _cleanup_(step_signals_unblock)

/* Its own words: the last lines of its errors, or of its output, in one line that a terminal may
 * see. */
#define STEP_WORDS_MAX 400
void step_words(const struct step_result *r, char ret[STEP_WORDS_MAX]);
