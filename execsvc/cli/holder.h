/* The connection holder: a process that stays behind a first `berth exec`, and lends its connection
 * to the next ones (common/control). */
#pragma once

#include "cli/cli.h"

/* Before a text: the connection was made, and could only not be lent. */
#define HOLDER_USELESS "\1"

/* A last word: of environment and configuration it takes no credentials. */
#define HOLDER_ALONE "alone"

/* In the process that is to be it: connects, says so on ready_fd ('\0', or why not as a text), and
 * leaves the terminal. Returns the exit status when nobody has used it for persist_s seconds, its
 * session is lost, or it was stopped. One that finds another in its place says '\0' and ends. */
int holder_run(const struct client_settings *settings, const char *path, int persist_s,
               int ready_fd);
