#include <string.h>

#include "base/buffer.h"
#include "cli/cli.h"
#include "cli/exec_options.h"
#include "cli/exec_place.h"
#include "cli/exec_result.h"
#include "cli/exec_run.h"

int cmd_exec(struct cli *cli, int argc, char **argv)
{
    _cleanup_exec_options_ struct exec_options options = {0};
    _cleanup_here_ struct here here = {0};
    _cleanup_buffer_ struct buffer directory = {0};
    struct exec_place place;
    struct failure failure;
    if (!exec_hold_standard_descriptors())
        return EXEC_STATUS_NOT_STARTED;
    int r = exec_options_parse(cli, argc, argv, false, &options, &failure);
    if (r == -ECANCELED)
        return CLI_OK;
    if (r < 0 && failure.text[0])
        (void)cli_usage_error(cli, "%s", failure.text);
    if (options.persist)
        cli->flags.persist = options.persist;
    struct client *client;
    if (r < 0 || exec_place_find(cli, &options, NULL, &here, &directory, &place) < 0 ||
        !cli_load_settings(cli) || cli_connect_warm(cli, &client) < 0)
        return EXEC_STATUS_NOT_STARTED;
    return exec_run(cli, client, &options, &place);
}
