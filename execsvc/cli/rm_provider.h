/* `berth rm` of a workspace that has a sandbox of its own: both go, and what is remembered of it.
 */
#pragma once

#include "cli/cli.h"
#include "places/place.h"

/* flags: WIRE_WORKSPACE_… of key. 0, or a negative errno; what there is to say was said. */
int rm_provider_run(struct cli *cli, struct place *p, const char *key, uint32_t flags, bool force);

/* Takes it off the list and asks nobody; says what may live on. */
int rm_provider_forget(struct cli *cli, const struct place *p, const char *key);
