/* What was probably meant by words that name no program. */
#pragma once

#include "base/buffer.h"
#include "cli/exec_options.h"

/* A sentence in brackets, with a blank before it, or "". */
const char *exec_hint(const struct exec_options *o);

/* Appends one about a workspace that is not there, if there is something to say. */
int exec_hint_workspace(const struct exec_options *o, struct buffer *text);
