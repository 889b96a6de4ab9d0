#include "cli/exec_place.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cli/at_place.h"
#include "names/thread_id.h"

/* The workspace's root as its commands know it; no path of this machine. */
#define WORKSPACE_PATH "/workspace"

static bool is_local_path(const char *directory)
{
    size_t len = strlen(WORKSPACE_PATH);
    return directory[0] == '/' && (strncmp(directory, WORKSPACE_PATH, len) != 0 ||
                                   (directory[len] != '/' && directory[len] != 0));
}

static bool is_workspace(const struct here *here, const char *thread_id)
{
    char name[THREAD_NAME_MAX + 1];
    if (!here->by_name)
        return strcmp(here->workspace, thread_id) == 0;
    return thread_id_to_name(bytes_of_string(thread_id), name) == 0 &&
           strcmp(here->workspace, name) == 0;
}

static int shows_all(const struct cli *cli, const struct here *here)
{
    cli_error(cli, "%s shows all workspaces: go into one, or name it with -w ID", here->mountpoint);
    return -ENOENT;
}

/* What -C names by a path of this machine tells the workspace, too. 1: it does; 0: that is for
 * the service to judge. */
static int find_by_directory(struct cli *cli, const struct exec_options *options, struct here *here,
                             struct exec_place *ret)
{
    struct failure failure;
    const char *given = options->directory;
    int r = here_find(given, here, &failure);
    if (r == -ENOENT && access(given, F_OK) < 0)
        return 0;
    if (r < 0) {
        cli_error(
            cli,
            "-C: %s; directories are those of the workspace, relative to it, below " WORKSPACE_PATH
            ", or by a path through a mount",
            failure.text);
        return r;
    }
    if (!here->workspace && options->workspace) {
        cli_error(cli, "-C: %s is in no workspace; give a directory of %s", given,
                  options->workspace);
        return -EINVAL;
    }
    if (!here->workspace)
        return shows_all(cli, here);
    if (options->workspace && !is_workspace(here, options->workspace)) {
        cli_error(cli, "-C: %s is in the workspace %s, and not in %s, which -w names", given,
                  here->workspace, options->workspace);
        return -EINVAL;
    }
    cli_use_here(cli, here);
    *ret = (struct exec_place){.workspace = here->workspace,
                               .by_name = here->by_name,
                               .directory = here->directory,
                               .mount_path = here->workspace_path};
    return 1;
}

/* -w, wherever we stand; here: where that is, if found. */
static int find_named(struct cli *cli, const struct exec_options *options, const struct here *here,
                      bool found, struct exec_place *ret)
{
    struct which w = {.key = options->workspace};
    bool same = found && here->workspace && is_workspace(here, options->workspace);
    if (found)
        cli_use_here(cli, here);
    /* A mount speaks for the workspace that we stand in; of others their place knows better. */
    if (!same && !at_place_use(cli, &w))
        return -ENOENT;
    *ret = (struct exec_place){.workspace = w.key,
                               .by_name = w.by_name,
                               .directory = options->directory,
                               .mount_path = same ? here->workspace_path : NULL};
    return 0;
}

/* In a mount "-w ." is where we stand, which is what is meant without. */
static bool is_here(const char *path)
{
    _cleanup_here_ struct here here = {0};
    struct failure failure;
    return here_find(path, &here, &failure) != -ENOENT;
}

static int find(struct cli *cli, const struct exec_options *given_options, const char *path,
                struct here *here, struct buffer *directory, struct exec_place *ret)
{
    struct failure failure;
    struct exec_options plain = *given_options;
    const struct exec_options *options = &plain;
    const char *given = options->directory ? options->directory : "";
    if (plain.workspace && strcmp(plain.workspace, ".") == 0 && is_here(path))
        plain.workspace = NULL;
    int r = is_local_path(given) ? find_by_directory(cli, options, here, ret) : 0;
    if (r != 0)
        return r < 0 ? r : 0;
    /* A service that was named need not be the mount's; then only the workspace may come from
     * there, and with -w nothing does. */
    bool look = !options->workspace || !cli->url_given;
    int found = look ? here_find(path, here, &failure) : -ENOENT;
    if (options->workspace)
        return find_named(cli, options, here, found == 0, ret);
    /* Where we stand may be above the workspace that -C leads into. */
    if (!path && given[0] && given[0] != '/' && (found < 0 || !here->workspace)) {
        struct here above = *here;
        *here = (struct here){0};
        r = find_by_directory(cli, options, here, ret);
        if (r != 0) {
            here_release(&above);
            return r < 0 ? r : 0;
        }
        *here = above;
    }
    if (found < 0) {
        /* In a mount that is lost or cannot be asked no ID would be taken. */
        cli_error(cli, "%s%s", failure.text,
                  found == -ENOENT ? "; name a workspace with -w ID" : "");
        return found;
    }
    cli_use_here(cli, here);
    if (!here->workspace)
        return shows_all(cli, here);
    const char *base = given[0] == '/' ? "" : here->directory;
    r = buffer_printf(directory, "%s%s%s", base, base[0] && given[0] ? "/" : "", given);
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

int exec_place_find(struct cli *cli, const struct exec_options *options, const char *path,
                    struct here *here, struct buffer *directory, struct exec_place *ret)
{
    struct exec_place place;
    int r = find(cli, options, path, here, directory, &place);
    if (r < 0)
        return r;
    if (options->path == EXEC_PATH_LOCAL && !place.mount_path) {
        cli_error(cli, "--path=local: the workspace is not known to be mounted here: go into its "
                       "mount, or name a directory there with -C");
        return -ENOENT;
    }
    *ret = place;
    return 0;
}

bool exec_hold_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 1 ? O_RDONLY : O_WRONLY) != fd)
            return false;
    return true;
}
