/* The policy that a command is given in a file. */
#pragma once

#include "base/buffer.h"
#include "cli/cli.h"

/* For messages: "standard input" for "-". */
const char *policy_text_name(const char *file);

/* -: standard input. What it says is looked at by the service alone. A negative errno: the user has
 * been told. */
int policy_text_read(const struct cli *cli, const char *file, struct buffer *ret);
