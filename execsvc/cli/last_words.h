/* What is said if the process is ended by SIGINT, SIGTERM or SIGHUP, which then end it as they
 * would have. The process has one at a time; signals that are ignored or caught stay so. */
#pragma once

#include <stdbool.h>

#include "cli/cli.h"

/* A line as cli_error prints it. A longer one is cut. */
#define LAST_WORDS_MAX 1024
/* False: nothing will be said. */
__attribute__((format(printf, 2, 3))) bool last_words_begin(const struct cli *cli,
                                                            const char *format, ...);
void last_words_end(const bool *begun);
#define _cleanup_last_words_ __attribute__((unused)) _cleanup_(last_words_end)
