#include <string.h>

#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/here.h"
#include "cli/rm_provider.h"
#include "cli/workspace_id.h"

const char rm_usage[] =
    "usage: berth rm [OPTION…] ID…\n"
    "Removes workspaces, all their files and what their commands have printed, at the service.\n"
    "It does not ask. An ID that is not there is an error, and so is a workspace in which\n"
    "commands run or have left processes behind, but the others are removed. A sandbox that a\n"
    "provider made for one is destroyed with it, also one that was never made to the end.\n"
    "In a mount, IDs are of the service of the workspace that one stands in, which is itself "
    "\".\".\n"
    "\n"
    "  -n, --name    the words are directory names, as `berth ls -q` and the mount show them\n"
    "  -f, --force   commands are ended; one that is not there is no error\n"
    "      --forget  takes one that a provider made off the list, and asks nobody: for a sandbox\n"
    "                whose provider cannot be reached any more. It may live on there\n"
    "\n"
    "Examples\n"
    "  berth rm demo\n"
    "  berth rm 'team/42: the bug'           by thread ID\n"
    "  berth rm --name team%2F42%3A%20the%20bug   the same by directory name\n"
    "  berth rm -f --name -- $(berth ls -q)  all of them; -- since one may begin with '-'\n";

enum { OPTION_FORGET = 256 };

static const struct option options[] = {
    {"forget", no_argument, NULL, OPTION_FORGET},
    {"name", no_argument, NULL, 'n'},
    {"force", no_argument, NULL, 'f'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

/* True when a workspace has this key as an ID (or, with BY_NAME, as a directory name). */
static bool exists(struct client *client, const char *key, uint32_t flags)
{
    struct failure failure;
    struct wire_frame *reply;
    const struct wire_message request = {
        .type = WIRE_WORKSPACE_OPEN,
        .workspace_open = {.flags = flags, .key = bytes_of_string(key)}};
    if (strlen(key) > WIRE_NAME_MAX || cli_call(client, &request, &reply, &failure) < 0)
        return false;
    wire_frame_free(reply);
    return true;
}

static void explain_missing(const struct cli *cli, struct client *client, const char *key,
                            uint32_t flags)
{
    bool by_name = flags & WIRE_WORKSPACE_BY_NAME;
    const char *other = NULL;
    if (exists(client, key, flags ^ WIRE_WORKSPACE_BY_NAME))
        other = by_name ? "without --name" : "with --name";
    if (other)
        cli_error(cli, "there is no workspace of the %s %s, but one of this %s: say it %s",
                  by_name ? "name" : "thread ID", key, by_name ? "thread ID" : "directory name",
                  other);
    else
        cli_error(cli,
                  cli->here ? "there is no workspace %s at the service of the mount in which you "
                              "stand; see `berth ls`"
                            : "there is no workspace %s; see `berth ls`",
                  key);
}

/* With -f that is no error; but from a mount another one may have been meant. */
static int told_nothing(const struct cli *cli, const char *key)
{
    if (cli->here)
        cli_error(cli,
                  "there is no workspace %s at %s, the service of the mount in which you stand",
                  key, cli->here->url);
    return 0;
}

static int remove_one(const struct cli *cli, struct client *client, const char *key, uint32_t flags,
                      bool force)
{
    struct failure failure;
    struct wire_frame *reply;
    const struct wire_message request = {
        .type = WIRE_WORKSPACE_REMOVE,
        .workspace_remove = {.flags = flags | (force ? WIRE_WORKSPACE_FORCE : 0),
                             .key = bytes_of_string(key)}};
    int r = cli_call(client, &request, &reply, &failure);
    if (r == 0)
        wire_frame_free(reply);
    else if (r == -ENOENT && force)
        r = told_nothing(cli, key);
    else if (r == -ENOENT)
        explain_missing(cli, client, key, flags);
    else
        cli_error(cli, "%s: %s", key, failure.text);
    return r;
}

int cmd_rm(struct cli *cli, int argc, char **argv)
{
    uint32_t flags = 0;
    bool force = false, forget = false;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":nfh", options, NULL)) != -1) {
        if (option == 'n')
            flags = WIRE_WORKSPACE_BY_NAME;
        else if (option == 'f')
            force = true;
        else if (option == OPTION_FORGET)
            forget = true;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    /* As rm: nothing to remove is what -f does not mind. */
    if (optind == argc)
        return force ? CLI_OK
                     : cli_usage_error(cli, "which workspace? The one in which you stand is .");
    if (!workspace_ids_check(cli, argv + optind, flags ? THREAD_NAME_MAX : THREAD_ID_MAX))
        return CLI_USAGE;
    _cleanup_at_places_ struct at_places at = {.cli = cli};
    int status = CLI_OK;
    for (char **id = argv + optind; *id; id++) {
        _cleanup_place_ struct place p = {0};
        struct client *client = NULL;
        struct which w = {.key = *id, .by_name = flags};
        int r = which_find(cli, &w);
        if (r == 0)
            r = at_place_find(cli, w.key, w.by_name, &p);
        if (r > 0 && forget) {
            r = rm_provider_forget(cli, &p, w.key);
        } else if (r == 0 && forget) {
            cli_error(cli, "%s: --forget is for what a provider has made, and none has", w.key);
            r = -ENOENT;
        } else if (r > 0) {
            r = rm_provider_run(cli, &p, w.key, which_flags(&w), force);
        } else if (r == 0) {
            if (at_places_connect_own(&at, &client) < 0)
                return CLI_FAILED;
            r = remove_one(cli, client, w.key, which_flags(&w), force);
        }
        if (r < 0)
            status = CLI_FAILED;
        if (r == -ENOTCONN && client)
            break;
    }
    return status;
}
