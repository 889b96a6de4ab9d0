/* What the process that has the proxy takes from itself before it reads anything of a workspace's.
 */
#pragma once

#include "base/failure.h"

/* All of it: the user, privileges, files, system calls. What this kernel does not have is logged,
 * and no failure: what a workspace may reach does not depend on it. */
int egress_confine(struct failure *ret_failure);

/* Files alone, for the calling thread, by Landlock; it needs no_new_privs. -errno. */
int egress_confine_files(void);
