#include "cli/cli.h"
#include "cli/exec_place.h"
#include "cli/exec_result.h"

const char shell_usage[] =
    "usage: berth shell [-e K=V]… [-s PROGRAM] [ID | PATH]\n"
    "Opens an interactive login shell in a workspace, in a terminal like this one: that of the\n"
    "working directory, of a PATH on a mount, or of a thread ID. Exits with the shell's status.\n"
    "When the connection is lost the shell waits for it, and goes on where it was.\n"
    "\n"
    "  -s, --shell PROGRAM   instead of bash, or sh where there is none\n"
    "  -e, --env K=V         sets a variable; -e K passes on the one set here\n"
    "  -w, --workspace ID    the workspace, if the word could be taken for a path\n"
    "\n"
    "Examples\n"
    "  cd ~/berth/demo/src && berth shell\n"
    "  berth shell demo\n"
    "  berth shell -s /usr/bin/fish ~/berth/demo\n";

/* A workspace's image need not have bash, nor a user database that names a shell. */
static const char find_shell[] = "command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l";

int cmd_shell(struct cli *cli, int argc, char **argv)
{
    _cleanup_exec_options_ struct exec_options options = {0};
    _cleanup_here_ struct here here = {0};
    _cleanup_buffer_ struct buffer directory = {0};
    struct exec_place place;
    struct failure failure;
    struct client *client;
    if (!exec_hold_standard_descriptors())
        return EXEC_STATUS_NOT_STARTED;
    int r = exec_options_parse(cli, argc, argv, true, &options, &failure);
    if (r == -ECANCELED)
        return CLI_OK;
    if (r < 0) {
        if (failure.text[0])
            (void)cli_usage_error(cli, "%s", failure.text);
        return EXEC_STATUS_NOT_STARTED;
    }
    const char *word = options.command_count ? options.command[0] : NULL;
    struct here found = {0};
    bool path = word && !options.workspace && here_find(word, &found, &failure) == 0;
    here_release(&found);
    if (word && !path)
        options.workspace = word;
    const char *const words[] = {"sh", "-c", find_shell};
    const char *const program[] = {options.shell, "-l"};
    options.command = options.shell ? program : words;
    options.command_count = options.shell ? 2 : 3;
    options.input = options.terminal = true;
    if (exec_place_find(cli, &options, path ? word : NULL, &here, &directory, &place) < 0 ||
        cli_connect_warm(cli, &client) < 0)
        return EXEC_STATUS_NOT_STARTED;
    return exec_run(cli, client, &options, &place);
}
