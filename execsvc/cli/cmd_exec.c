#include <fcntl.h>
#include <string.h>

#include "base/buffer.h"
#include "cli/cli.h"
#include "cli/exec_options.h"
#include "cli/exec_result.h"
#include "cli/exec_run.h"
#include "cli/here.h"

/* Where the command runs: the place on the mount that we stand in, -w and -C. Relative
 * directories are relative to where we stand, as for git -C; with -w, to the workspace. */
static int find_place(struct cli *cli, const struct exec_options *options, struct here *here,
                      struct buffer *directory, struct exec_place *ret)
{
    struct failure failure;
    /* A service that was named need not be the mount's; then only the workspace may come from
     * there, and with -w nothing does. */
    bool look = !options->workspace || !cli->url_given;
    int found = look ? here_find(NULL, here, &failure) : -ENOENT;
    if (found == 0)
        cli_use_here(cli, here);
    if (options->workspace) {
        *ret =
            (struct exec_place){.workspace = options->workspace, .directory = options->directory};
        return 0;
    }
    if (found < 0) {
        cli_error(cli, "%s; name a workspace with -w ID", failure.text);
        return found;
    }
    if (!here->workspace) {
        cli_error(cli, "%s shows all workspaces: go into one, or name it with -w ID",
                  here->mountpoint);
        return -ENOENT;
    }
    const char *given = options->directory ? options->directory : "";
    const char *base = given[0] == '/' ? "" : here->directory;
    int r = buffer_printf(directory, "%s%s%s", base, base[0] && given[0] ? "/" : "", given);
    if (r < 0) {
        cli_error(cli, "%s", strerror(-r));
        return r;
    }
    *ret = (struct exec_place){.workspace = here->workspace,
                               .by_name = here->by_name,
                               .directory = (const char *)directory->data,
                               .mount_path = here->workspace_path};
    return 0;
}

/* A standard descriptor that is closed would become the connection's number, and the command's
 * output be written into it. What takes the place of input and output fails as a closed one
 * does; messages for a closed standard error go nowhere, which ends no command. */
static bool hold_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 1 ? O_RDONLY : O_WRONLY) != fd)
            return false;
    return true;
}

int cmd_exec(struct cli *cli, int argc, char **argv)
{
    _cleanup_exec_options_ struct exec_options options = {0};
    _cleanup_here_ struct here here = {0};
    _cleanup_buffer_ struct buffer directory = {0};
    struct exec_place place;
    struct failure failure;
    if (!hold_standard_descriptors())
        return EXEC_STATUS_NOT_STARTED;
    int r = exec_options_parse(cli, argc, argv, &options, &failure);
    if (r == -ECANCELED)
        return CLI_OK;
    if (r < 0 && failure.text[0])
        (void)cli_usage_error(cli, "%s", failure.text);
    if (options.persist)
        cli->flags.persist = options.persist;
    struct client *client;
    if (r < 0 || find_place(cli, &options, &here, &directory, &place) < 0 ||
        !cli_load_settings(cli) || cli_connect_warm(cli, &client) < 0)
        return EXEC_STATUS_NOT_STARTED;
    return exec_run(client, &options, &place);
}
