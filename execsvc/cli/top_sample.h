/* What `berth top` shows of one moment: collected over a connection of its own and from the mounts
 * of this machine. */
#pragma once

#include <jansson.h>

#include "cli/cli.h"

/* Workspaces that are listed; of more those alone that have commands. Stops a service of a hundred
 * thousand from being read out every two seconds. */
#define TOP_WORKSPACES_MAX 1000

/* Decisions of the proxy that are kept to be shown. */
#define TOP_DECISIONS_MAX 200

struct top_source {
    struct cli *cli;
    struct client *client; /* NULL: not connected */
    bool follows;          /* egress_position is one */
    uint64_t egress_position;
    uint64_t taken_ns;    /* the last sample; 0: there was none */
    json_t *cpu_before;   /* of commands, by serial */
    json_t *trips_before; /* of mounts, by mountpoint */
};

/* One object, as top_usage describes it; a service that cannot be reached is told of by "error".
 * NULL: out of memory. Blocks for as long as the service takes. */
json_t *top_sample(struct top_source *source);
void top_source_release(struct top_source *source);
