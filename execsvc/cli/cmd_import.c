#include <stdio.h>

#include "cli/cli.h"
#include "cli/create_source.h"
#include "cli/workspace_id.h"

const char import_usage[] =
    "usage: berth import ID FILE\n"
    "Makes a workspace from a tar archive, plain or compressed with gzip or zstd; - is standard\n"
    "input. It is there when all of it is, or not at all. The same as `berth create --from FILE\n"
    "ID`.\n"
    "\n"
    "Files belong to the service's user, whoever they belong to in the archive. Paths that lead "
    "out\n"
    "of it, and those behind its symbolic links, are refused, with all of it.\n"
    "\n"
    "Examples\n"
    "  berth import demo demo.tar.zst\n"
    "  git archive HEAD | berth import demo -\n";

static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {0}};

int cmd_import(struct cli *cli, int argc, char **argv)
{
    const struct wire_workspace_create create = {0};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (option == 'h')
            return cli_show_help(cli);
        return cli_option_error(cli, option, argv);
    }
    if (argc - optind != 2)
        return cli_usage_error(cli, "import takes the ID of a workspace and an archive");
    char *ids[] = {argv[optind], NULL};
    if (!workspace_ids_check(cli, ids, THREAD_ID_MAX))
        return CLI_USAGE;
    const struct create_source source = {.from = argv[optind + 1]};
    int r = create_source_run(cli, &source, argv[optind], &create);
    return cli_finish_output(cli, r < 0 ? CLI_FAILED : CLI_OK);
}
