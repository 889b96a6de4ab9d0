/* What was probably meant by words that name no program. */
#pragma once

#include "cli/exec_options.h"

/* A sentence in brackets, with a blank before it, or "". */
const char *exec_hint(const struct exec_options *o);
