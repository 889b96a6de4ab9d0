/* Help pages, and what to say about words that are none of ours. */
#pragma once

#include "cli/cli.h"

/* `berth --help` and `berth help NAME`, on standard output. */
void help_print_overview(void);
void help_print_command(const struct cli_command *command);

/* The command that `word` was probably meant to be, or NULL when nothing comes near. */
const char *help_suggest(const char *word);

/* The options before a command, in the form of the help pages. */
extern const char help_options[];
