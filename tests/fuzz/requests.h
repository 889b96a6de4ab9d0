/* The calls that the client target has open when its peer begins to answer. */
#pragma once

#include "samples.h"

/* The i-th request, or false after the last. Its tag is i + 2: HELLO's is 1. */
bool fuzz_request(size_t i, struct sample *ret);
