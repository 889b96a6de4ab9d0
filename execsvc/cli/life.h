/* What `berth create`, `label`, `ttl`, `stop`, `start` and `ls` share: labels, ends and states as
 * people write and read them. */
#pragma once

#include <jansson.h>

#include "cli/cli.h"

/* Longest TTL, in seconds: 19 years. */
#define LIFE_MAX_S 600000000.0

/* Adds KEY=VALUE to an object; with removes also KEY-, as null. False: it is neither, or not UTF-8.
 */
bool life_add_label(json_t *labels, const char *word, bool removes);

/* A duration (units.h) above 0, or "never": 0. False: it is neither; said. */
bool life_duration(const struct cli *cli, const char *option, const char *text, uint64_t *ret_ms);

/* "running", "stopped", or "?" */
const char *life_state(uint32_t state);

/* One object: name, thread_id (or null and thread_id_hex), created_at, state, labels, expires_at,
 * idle_ttl (seconds), used_at and revision; null where there is none. NULL: out of memory. */
json_t *life_json(const struct wire_workspace *w);

/* Sends WORKSPACE_SET, or WORKSPACE_GET when valid is 0, for the workspace of the key in q. What is
 * wrong has been said. The reply is to be freed. */
int life_call(const struct cli *cli, struct client *client, const struct wire_workspace_set *q,
              struct wire_frame **ret);
