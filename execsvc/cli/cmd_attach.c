#include <stdio.h>
#include <string.h>

#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/exec_find.h"
#include "cli/exec_place.h"
#include "cli/exec_result.h"
#include "cli/exec_run.h"
#include "cli/held.h"
#include "cli/here.h"

const char attach_usage[] =
    "usage: berth attach [-i] [--new] [-w ID] EXEC\n"
    "Attaches to a command that runs, as if it had been started from here: shows its output, from\n"
    "the beginning as far as it is kept, passes signals on, and exits with its status. Many may "
    "be\n"
    "attached at once.\n"
    "\n"
    "  -i, --interactive    passes standard input on, instead of who did before\n"
    "      --new            shows only what is printed from now on\n"
    "      --json           prints one JSON object: the verdict and the output\n"
    "  -w, --workspace ID   where the command runs; needed if several have the same ID, and for\n"
    "                       a provider's workspace that is not connected\n"
    "\n"
    "Examples\n"
    "  ID=$(berth exec --detach -w demo -- make)\n"
    "  berth attach $ID\n";

const char logs_usage[] =
    "usage: berth logs [-f] [--new] [-w ID] EXEC\n"
    "Prints what a command has printed, as far as it is kept, of one that has ended too.\n"
    "\n"
    "  -f, --follow         goes on until it ends, and exits with its status; INT ends this\n"
    "                       program and not the command\n"
    "      --new            only what is printed from now on (with -f)\n"
    "      --json           prints one JSON object: the verdict and the output\n"
    "  -w, --workspace ID   where the command runs; needed if several have the same ID, and for\n"
    "                       a provider's workspace that is not connected\n"
    "\n"
    "Examples\n"
    "  berth logs 4f2a90c1d5e6b7a8 | tail\n"
    "  berth logs -f server\n";

const char wait_usage[] =
    "usage: berth wait [--json] [--forget] [-w ID] EXEC…\n"
    "Waits until commands have ended, and exits with the status of the last one, as `berth exec`\n"
    "would have.\n"
    "\n"
    "      --json           prints the verdict of each as a JSON object, without output\n"
    "      --forget         then has the service forget it and its output: its ID is free again\n"
    "  -w, --workspace ID   where they run; needed if several have the same ID, and for a\n"
    "                       provider's workspace that is not connected\n"
    "\n"
    "Examples\n"
    "  A=$(berth exec --detach -- make a) B=$(berth exec --detach -- make b)\n"
    "  berth wait $A && berth wait $B\n";

enum { OPTION_JSON = 256, OPTION_NEW, OPTION_FORGET };

static const struct option options[] = {
    {"interactive", no_argument, NULL, 'i'},
    {"follow", no_argument, NULL, 'f'},
    {"new", no_argument, NULL, OPTION_NEW},
    {"json", no_argument, NULL, OPTION_JSON},
    {"forget", no_argument, NULL, OPTION_FORGET},
    {"workspace", required_argument, NULL, 'w'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

/* -ECANCELED: help was shown; -EINVAL: all has been said. */
static int parse(struct cli *cli, int argc, char **argv, const char *known, struct exec_options *o)
{
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, known, options, NULL)) != -1) {
        if (option == 'i' && strchr(known, 'i'))
            o->input = true;
        else if (option == 'f' && strchr(known, 'f'))
            o->follow = true;
        else if (option == OPTION_NEW && o->output)
            o->only_new = true;
        else if (option == OPTION_JSON)
            o->json = true;
        else if (option == OPTION_FORGET && !o->output)
            o->forget = true;
        else if (option == 'w')
            o->workspace = optarg;
        else if (option == 'h')
            return cli_show_help(cli) == CLI_OK ? -ECANCELED : -EINVAL;
        else {
            (void)cli_option_error(cli, option, argv);
            return -EINVAL;
        }
    }
    return 0;
}

/* other: becomes that of a provider's workspace, where it is one's. */
static int find(struct cli **cli, const char *workspace, const char *id, struct cli *other,
                struct client **client, struct exec_found *ret)
{
    _cleanup_place_ struct place p = {0};
    struct failure f;
    int r = workspace ? cli_connect_warm(*cli, client) : held_connect_own(*cli, true, client);
    if (r < 0)
        return r;
    r = *client ? exec_find(*client, workspace, id, ret, &f)
                : failure_set(&f, -ENOENT, "%s: no such command; see `berth ps --all`", id);
    r = exec_find_held(*cli, workspace, id, r, &p, &f);
    if (r > 0) {
        if (*client)
            client_free(take_ptr(*client));
        r = at_place_enter(*cli, &p, other);
        if (r == 0)
            r = cli_connect_warm(other, client);
        if (r < 0)
            return r;
        *cli = other;
        r = exec_find(*client, workspace, id, ret, &f);
    }
    if (r < 0)
        cli_error(*cli, "%s", f.text);
    return r;
}

static int attach_to(struct cli *cli, const char *id, struct exec_options *o)
{
    _cleanup_exec_found_ struct exec_found found = {0};
    _cleanup_client_ struct client *client = NULL;
    _cleanup_at_place_ struct cli other = {0};
    if (find(&cli, o->workspace, id, &other, &client, &found) < 0)
        return EXEC_STATUS_NOT_STARTED;
    struct exec_options options_now = *o;
    const struct exec_place place = {.workspace = found.workspace};
    options_now.id = found.id;
    options_now.attaches = true;
    options_now.terminal = o->input && (found.flags & WIRE_EXEC_PTY);
    return exec_run(cli, take_ptr(client), &options_now, &place);
}

/* most: IDs that may be given. */
static int run(struct cli *cli, int argc, char **argv, const char *known, int most,
               struct exec_options *o)
{
    char workspace[WHICH_ID_SIZE];
    if (!exec_hold_standard_descriptors())
        return EXEC_STATUS_NOT_STARTED;
    int r = parse(cli, argc, argv, known, o);
    if (r < 0)
        return r == -ECANCELED ? CLI_OK : EXEC_STATUS_NOT_STARTED;
    if (optind == argc || argc - optind > most) {
        (void)cli_usage_error(cli, optind == argc ? "no command's ID given; `berth ps` shows them"
                                                  : "one command at a time");
        return EXEC_STATUS_NOT_STARTED;
    }
    if (!at_place_use_id(cli, &o->workspace, workspace))
        return EXEC_STATUS_NOT_STARTED;
    int status = CLI_OK;
    for (int i = optind; i < argc; i++)
        status = attach_to(cli, argv[i], o);
    return status;
}

int cmd_attach(struct cli *cli, int argc, char **argv)
{
    struct exec_options o = {
        .output = true, .follow = true, .forwards = true, .reattach_s = EXEC_REATTACH_DEFAULT_S};
    return run(cli, argc, argv, ":iw:h", 1, &o);
}

int cmd_logs(struct cli *cli, int argc, char **argv)
{
    struct exec_options o = {.output = true, .reattach_s = EXEC_REATTACH_DEFAULT_S};
    return run(cli, argc, argv, ":fw:h", 1, &o);
}

int cmd_wait(struct cli *cli, int argc, char **argv)
{
    struct exec_options o = {.follow = true, .reattach_s = EXEC_REATTACH_DEFAULT_S};
    return run(cli, argc, argv, ":w:h", 64, &o);
}
