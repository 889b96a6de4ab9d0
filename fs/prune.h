/* The mount's own visibility rules. The service applies them; the driver tells them to each new
 * connection, and takes new ones as an extended attribute of the mount's root, so that they can
 * be changed while it is in use. */
#pragma once

#include "ops.h"
#include "visibility/visibility.h"

#define PRUNE_NAME "user.berth.visibility"

/* Tells a connection that is not attached yet; blocks. NULL: nothing to tell. */
int prune_tell(struct client *client, const struct visibility_rules *rules, struct failure *f);

/* A new value of PRUNE_NAME, empty for none. Only for who mounted, and root. */
void prune_set(fuse_req_t req, struct bytes text);
