/* What `berth status` and `berth top` ask. */
#pragma once

#include <jansson.h>

#include "cli/cli.h"

/* The service's own object. A negative errno with a sentence. */
int status_ask(struct client *client, json_t **ret, struct failure *ret_failure);
