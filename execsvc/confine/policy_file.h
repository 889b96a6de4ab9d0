/* The policy of a workspace on the disk, in its directory beside the tree. It is written when the
 * workspace is made, whole: what the service's defaults are later is of no matter to it. */
#pragma once

#include "confine/policy.h"

#define POLICY_FILE "policy.json"

/* Without a file: POLICY_DEFAULT. -EIO: it is damaged; -ENOMEM; others of open and read. */
int policy_file_read(int directory, struct policy *ret);

/* For good, or not at all. */
int policy_file_write(int directory, const struct policy *policy);
