/* Asking the owner of a control socket about itself. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/failure.h"

/* What it says of itself, as an object the caller owns; or (stop) "ok", and *ret is NULL. Waits at
 * most QUERY_DEADLINE_MS. -ECONNREFUSED, -ENOENT: nobody listens. -EBUSY: it may not be stopped.
 * -ETIMEDOUT, -EPROTO, -ENOMEM, … */
#define QUERY_DEADLINE_MS 2000
int control_query(const char *path, bool stop, json_t **ret, struct failure *ret_failure);
