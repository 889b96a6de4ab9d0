/* `berth create --provider`: a sandbox for a workspace, with a service in it, and the workspace. */
#pragma once

#include "cli/cli.h"
#include "cli/create_source.h"

#define CREATE_PROVIDER_OPTIONS_MAX 64

struct create_provider {
    const char *spec; /* NAME[:KEY=VALUE,…]; NULL: none is asked for */
    const char *options[CREATE_PROVIDER_OPTIONS_MAX]; /* KEY=VALUE each */
    size_t option_count;
    const char *policy_file; /* for messages, or NULL */
    bool exclusive;
};

/* Makes each of ids, which ends with NULL. The policy of create is the user's. Exit status. */
int create_provider_run(struct cli *cli, const struct create_provider *c,
                        const struct create_source *source, char **ids,
                        const struct wire_workspace_create *create);
