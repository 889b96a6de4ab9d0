/* What tokens of workspaces (access/issued.h) are made with: the root's own key, ROOT/token-key,
 * and the workspaces that there are. Whoever removes the key ends them all, at the service's next
 * start. */
#pragma once

#include "base/failure.h"
#include "server/server.h"

/* After the store and the access file were opened. */
int issuing_begin(struct server *s, struct failure *ret_failure);
