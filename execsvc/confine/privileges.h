/* What a process may do beyond its user's rights. Async-signal-safe. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Whether this process has CAP_SYS_ADMIN, without which namespaces need a user namespace. */
bool privileges_have_admin(void);

/* Gives up all capabilities, those that an execve could bring back included, and the groups beside
 * the user's own where that is permitted. */
int privileges_drop(void);

/* Gives up all but those of a set of bits that it has, and what an execve could bring back. Its
 * groups stay. Of the calling thread, as all of these. */
int privileges_keep(uint64_t kept);

/* From now on no execve gains anything: neither set-user-ID nor capabilities of files. */
int privileges_gain_none(void);
