/* Failures as HTTP tells them: problem documents (RFC 9457), whose members retry (would the same
 * request succeed later?) and effect ("none": nothing has happened, "done": all of it, "unknown")
 * are ours. */
#pragma once

#include <stdbool.h>

struct problem_kind {
    int error; /* negative errno */
    int status;
    bool retry;
};

/* Of a negative errno; 500 for those that nobody expects. */
struct problem_kind problem_of(int error);

/* The phrase of RFC 9110 for a status. */
const char *problem_title(int status);

/* Whether the same request may succeed later, when all that is known is the status. */
bool problem_retry(int status);
