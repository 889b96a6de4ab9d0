#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/exec_find.h"
#include "cli/exec_json.h"
#include "cli/held.h"
#include "cli/text.h"

const char ps_usage[] =
    "usage: berth ps [-a] [-q] [-w ID] [--json]\n"
    "Lists commands: those that run, and those that have ended and left processes behind. Each\n"
    "has an ID, by which it can be followed (logs), attached to, waited for and killed.\n"
    "\n"
    "  -a, --all            also those that have ended, as long as the service keeps them: of\n"
    "                       those without --id and --detach, whose client has the verdict, none\n"
    "  -q, --quiet          the IDs alone\n"
    "  -w, --workspace ID   of this workspace; else of all, those of providers among them that "
    "are\n"
    "                       connected (`berth connection`)\n"
    "      --json           an array of objects: \"id\", \"workspace\", \"state\" (running, "
    "exited,\n"
    "                       signaled, timed_out, killed, …), \"pid\", \"processes\" (that belong\n"
    "                       to it and live), \"attached\", \"command\" (its words), "
    "\"started_at\",\n"
    "                       \"duration_ms\", \"exit_status\", \"stdout_bytes\", \"stderr_bytes\"\n"
    "\n"
    "Examples\n"
    "  berth ps\n"
    "  berth ps -aw demo\n"
    "  berth kill $(berth ps -q -w demo)\n";

enum { OPTION_JSON = 256 };

static const struct option options[] = {
    {"all", no_argument, NULL, 'a'},
    {"quiet", no_argument, NULL, 'q'},
    {"workspace", required_argument, NULL, 'w'},
    {"json", no_argument, NULL, OPTION_JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

struct listing {
    bool all, quiet, json;
    json_t *array;
    size_t count;
};

static void state_text(const struct wire_exec_command *c, char *text, size_t size)
{
    const char *name = wire_verdict_name(c->verdict);
    if (c->verdict == WIRE_VERDICT_EXITED)
        (void)snprintf(text, size, "exited %u", c->code);
    else if (c->verdict == WIRE_VERDICT_SIGNALED)
        (void)snprintf(text, size, "signal %u", c->signal);
    else
        (void)snprintf(text, size, "%s", name ? name : "unknown");
}

static int print_row(struct listing *l, const struct wire_exec_command *c)
{
    _cleanup_buffer_ struct buffer workspace = {0}, id = {0}, words = {0};
    char state[32], age[32];
    int r = text_escape(&id, c->id, TEXT_VALUE);
    if (r == 0)
        r = text_escape(&workspace, c->workspace, TEXT_VALUE);
    if (r == 0)
        r = exec_words(&words, c->argv);
    if (r < 0)
        return r;
    if (l->quiet) {
        (void)printf("%.*s\n", (int)id.len, (const char *)id.data);
        return 0;
    }
    if (l->count == 0)
        (void)printf("%-16s  %-16s  %-12s  %7s  %9s  %s\n", "ID", "WORKSPACE", "STATE", "TIME",
                     "PROCESSES", "COMMAND");
    state_text(c, state, sizeof state);
    exec_age(c->duration_ns, age, sizeof age);
    (void)printf("%-16.*s  %-16.*s  %-12s  %7s  %9u  %.*s\n", (int)id.len, (const char *)id.data,
                 (int)workspace.len, (const char *)workspace.data, state, age, c->processes,
                 (int)words.len, (const char *)words.data);
    return 0;
}

static int add_json(struct listing *l, const struct wire_exec_command *c)
{
    json_t *o = exec_json(c);
    return o && json_array_append_new(l->array, o) == 0 ? 0 : -ENOMEM;
}

static int on_command(void *context, const struct wire_exec_command *c)
{
    struct listing *l = context;
    if (!l->all && c->verdict != WIRE_VERDICT_RUNNING && c->processes == 0)
        return 0;
    int r = l->json ? add_json(l, c) : print_row(l, c);
    l->count++;
    return r;
}

static int list_held(void *context, struct cli *cli, struct client *client, const char *workspace)
{
    struct failure f;
    int r = exec_each(client, workspace, NULL, on_command, context, &f);
    if (r < 0)
        cli_error(cli, "%s: %s", workspace, f.text);
    return 0;
}

/* Of one workspace, or of all that can be asked. */
static int list_all(struct cli *cli, const char *workspace, struct listing *l)
{
    _cleanup_client_ struct client *client = NULL;
    struct failure f;
    size_t left;
    int r = workspace ? cli_connect_warm(cli, &client) : held_connect_own(cli, true, &client);
    if (r < 0)
        return r;
    r = client ? exec_each(client, workspace, NULL, on_command, l, &f) : 0;
    if (r < 0)
        cli_error(cli, "%s", f.text);
    return r < 0 || workspace ? r : held_each(cli, list_held, l, &left);
}

int cmd_ps(struct cli *cli, int argc, char **argv)
{
    struct listing l = {0};
    const char *workspace = NULL;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":aqw:h", options, NULL)) != -1) {
        if (option == 'a')
            l.all = true;
        else if (option == 'q')
            l.quiet = true;
        else if (option == 'w')
            workspace = optarg;
        else if (option == OPTION_JSON)
            l.json = true;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    if (optind < argc)
        return cli_usage_error(cli, "%s: ps takes no arguments; -w names a workspace",
                               argv[optind]);
    if (l.json && l.quiet)
        return cli_usage_error(cli, "--json and -q exclude each other");
    char id[WHICH_ID_SIZE];
    if (!at_place_use_id(cli, &workspace, id))
        return CLI_FAILED;
    l.array = l.json ? json_array() : NULL;
    int r = list_all(cli, workspace, &l);
    if (r == 0 && l.json) {
        (void)json_dumpf(l.array, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
        (void)putchar('\n');
    }
    json_decref(l.array);
    return r < 0 ? CLI_FAILED : cli_finish_output(cli, CLI_OK);
}
