/* The system calls that the service makes, and no others, by seccomp. */
#pragma once

#include <stdbool.h>

/* For the calling thread and those that it starts afterwards; it needs no_new_privs. Dangerous ones
 * are EPERM, those that nobody has thought of ENOSYS, as if the kernel did not have them: libraries
 * then do without. A negative errno when the kernel has no seccomp. */
int bounds_calls_enter(void);

/* Whether this program has a sanitiser in it, which needs more. */
bool bounds_calls_sanitized(void);
