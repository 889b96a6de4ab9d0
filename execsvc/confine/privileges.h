/* What a process may do beyond its user's rights. Async-signal-safe. */
#pragma once

/* Whether this process has CAP_SYS_ADMIN, without which namespaces need a user namespace. */
#include <stdbool.h>

bool privileges_have_admin(void);

/* Gives up all capabilities, those that an execve could bring back included, and the groups beside
 * the user's own where that is permitted. */
int privileges_drop(void);

/* From now on no execve gains anything: neither set-user-ID nor capabilities of files. */
int privileges_gain_none(void);
