#include "cli/exec_place.h"

#include <fcntl.h>
#include <string.h>

int exec_place_find(struct cli *cli, const struct exec_options *options, const char *path,
                    struct here *here, struct buffer *directory, struct exec_place *ret)
{
    struct failure failure;
    /* A service that was named need not be the mount's; then only the workspace may come from
     * there, and with -w nothing does. */
    bool look = !options->workspace || !cli->url_given;
    int found = look ? here_find(path, here, &failure) : -ENOENT;
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

bool exec_hold_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 1 ? O_RDONLY : O_WRONLY) != fd)
            return false;
    return true;
}
