#include <stdio.h>

#include "cli/cli.h"
#include "cli/create_source.h"
#include "cli/workspace_id.h"

const char fork_usage[] =
    "usage: berth fork [OPTION…] [ID] NEW\n"
    "Makes a workspace with the files of another, its policy and its visibility rules. Commands "
    "that\n"
    "run in it stand still while it is copied. The same as `berth create --fork ID NEW`. In a "
    "mount .\n"
    "is the workspace in which one stands, and so is none.\n"
    "\n"
    "      --live         commands go on, and files may be of different moments\n"
    "\n"
    "Examples\n"
    "  berth fork demo demo-other-way\n";

enum { OPTION_LIVE = 256 };

static const struct option options[] = {
    {"live", no_argument, NULL, OPTION_LIVE}, {"help", no_argument, NULL, 'h'}, {0}};

int cmd_fork(struct cli *cli, int argc, char **argv)
{
    struct create_source source = {0};
    const struct wire_workspace_create create = {0};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (option == OPTION_LIVE)
            source.live = true;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    if (argc - optind < 1 || argc - optind > 2)
        return cli_usage_error(cli, "fork takes the ID of a workspace and that of the new one");
    if (!workspace_ids_check(cli, argv + optind, THREAD_ID_MAX))
        return CLI_USAGE;
    source.fork = argc - optind == 2 ? argv[optind] : ".";
    int r = create_source_run(cli, &source, argv[argc - 1], &create);
    return cli_finish_output(cli, r < 0 ? CLI_FAILED : CLI_OK);
}
