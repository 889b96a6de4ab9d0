#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/here.h"
#include "cli/workspace_id.h"

const char policy_usage[] =
    "usage: berth policy [-n] [--json] ID\n"
    "       berth policy [-n] --lift ID\n"
    "Shows what the commands of a workspace may do, as it was asked for when it was made, and what "
    "a\n"
    "probe that is run there now finds to hold them. A policy is a JSON document; "
    "berth-policy(5).\n"
    "\n"
    "Each command looks for the same before its program begins. When what it finds is not what "
    "was\n"
    "made, it is not started, and the workspace is fenced: no command is started there until\n"
    "somebody lifts the fence, whereupon everything that holds its commands is made anew.\n"
    "\n"
    "  -n, --name  ID is a directory name\n"
    "      --lift  lifts the fence; commands that live must have been ended\n"
    "      --json  prints one JSON object\n"
    "\n"
    "Exit status: 1 when commands cannot be started there, or what holds them has been changed.\n"
    "\n"
    "Examples\n"
    "  berth policy demo\n"
    "  berth policy --json demo | jq .measured.level\n"
    "  berth policy --lift demo\n";

enum { OPTION_JSON = 256, OPTION_LIFT };

static const struct option options[] = {
    {"name", no_argument, NULL, 'n'},
    {"json", no_argument, NULL, OPTION_JSON},
    {"lift", no_argument, NULL, OPTION_LIFT},
    {"help", no_argument, NULL, 'h'},
    {0},
};

/* --- for people ------------------------------------------------------------------------------ */

/* A row: what was asked, and what was measured. Texts are the service's: control bytes are not
 * printed. */
static void print_row(const char *name, const char *asked, const char *measured)
{
    (void)printf("%-12s %-24s %s\n", name, asked ? asked : "-", measured ? measured : "-");
}

/* Words as they are, all else as JSON. */
static char *text_of(const json_t *value)
{
    if (!value || json_is_null(value))
        return NULL;
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    size_t len = text ? strlen(text) : 0;
    if (json_is_string(value) && len >= 2) {
        memmove(text, text + 1, len - 2);
        text[len - 2] = 0;
    }
    return text;
}

static void print_values(const char *name, const json_t *asked, const json_t *measured)
{
    _cleanup_free_ char *left = text_of(asked);
    _cleanup_free_ char *right = text_of(measured);
    print_row(name, left, right);
}

static void print_limits(const json_t *asked, const json_t *facts)
{
    static const char *const names[] = {"memory",    "pids",       "cpu",
                                        "file_size", "open_files", "wall_time"};
    const json_t *found = json_object_get(facts, "limits");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *limit = json_object_get(asked, names[i]);
        const json_t *measured = json_object_get(found, names[i]);
        /* The others are of each command's, and not those of a probe. */
        if ((limit && !json_is_null(limit)) || (measured && !json_is_null(measured)))
            print_values(names[i], limit, measured);
    }
}

static void print_missing(const json_t *missing)
{
    const char *name;
    json_t *why;
    json_object_foreach((json_t *)(uintptr_t)missing, name, why)
    {
        _cleanup_free_ char *text = text_of(why);
        (void)printf("missing      %s: %s\n", name, text ? text : "?");
    }
}

static void print_all(const json_t *object)
{
    const json_t *asked = json_object_get(object, "asked");
    const json_t *measured = json_object_get(object, "measured");
    const json_t *facts = json_object_get(measured, "facts");
    static const char *const told[] = {"fenced", "refused"};
    print_row("", "asked", "measured");
    print_values("level", json_object_get(asked, "require"), json_object_get(measured, "level"));
    print_values("filesystem", json_object_get(asked, "filesystem"),
                 json_object_get(measured, "filesystem"));
    print_values("network", json_object_get(asked, "network"),
                 json_object_get(measured, "network"));
    print_limits(json_object_get(asked, "limits"), facts);
    print_values("capabilities", NULL, json_object_get(facts, "capabilities"));
    print_values("no_new_privs", NULL, json_object_get(facts, "no_new_privs"));
    print_values("seccomp", NULL, json_object_get(facts, "seccomp"));
    print_values("mounts", NULL, json_object_get(facts, "mounts"));
    print_values("interfaces", NULL, json_object_get(facts, "interfaces"));
    print_missing(json_object_get(measured, "missing"));
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        _cleanup_free_ char *text = text_of(json_object_get(object, told[i]));
        if (text)
            (void)printf("%-12s %s\n", told[i], text);
    }
    _cleanup_free_ char *changed = text_of(json_object_get(measured, "changed"));
    _cleanup_free_ char *unknown = text_of(json_object_get(measured, "unknown"));
    if (changed)
        (void)printf("changed      %s\n", changed);
    if (unknown)
        (void)printf("unknown      %s\n", unknown);
}

static bool is_well(const json_t *object)
{
    const json_t *measured = json_object_get(object, "measured");
    return measured && !json_object_get(object, "fenced") && !json_object_get(object, "refused") &&
           !json_object_get(measured, "changed") && !json_object_get(measured, "unknown");
}

/* --- calls ----------------------------------------------------------------------------------- */

static int show(const struct cli *cli, struct client *client, const char *id, uint32_t flags,
                bool as_json)
{
    struct failure failure;
    struct wire_frame *reply;
    const struct wire_message request = {
        .type = WIRE_EXEC_POLICY,
        .exec_policy = {.workspace_flags = flags, .workspace = bytes_of_string(id)}};
    int r = cli_call(client, &request, &reply, &failure);
    if (r < 0) {
        cli_error(cli, "%s: %s", id, failure.text);
        return CLI_FAILED;
    }
    struct bytes text = reply->message.exec_policy_reply.json;
    json_t *object = json_loadb((const char *)text.data, text.len, JSON_REJECT_DUPLICATES, NULL);
    wire_frame_free(reply);
    if (!json_is_object(object)) {
        cli_error(cli, "%s: the service's answer is not JSON", id);
        json_decref(object);
        return CLI_FAILED;
    }
    if (as_json) {
        _cleanup_free_ char *dump = json_dumps(object, JSON_INDENT(2) | JSON_ENSURE_ASCII);
        (void)puts(dump ? dump : "");
    } else {
        print_all(object);
    }
    int status = is_well(object) ? CLI_OK : CLI_FAILED;
    json_decref(object);
    return status;
}

static int lift(const struct cli *cli, struct client *client, const char *id, uint32_t flags)
{
    struct failure failure;
    struct wire_frame *reply;
    const struct wire_message request = {
        .type = WIRE_EXEC_LIFT,
        .exec_lift = {.workspace_flags = flags, .workspace = bytes_of_string(id)}};
    int r = cli_call(client, &request, &reply, &failure);
    if (r < 0) {
        cli_error(cli, "%s: %s", id, failure.text);
        return CLI_FAILED;
    }
    wire_frame_free(reply);
    return CLI_OK;
}

int cmd_policy(struct cli *cli, int argc, char **argv)
{
    uint32_t flags = 0;
    bool as_json = false, lifts = false;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":nh", options, NULL)) != -1) {
        if (option == 'n')
            flags = WIRE_WORKSPACE_BY_NAME;
        else if (option == OPTION_JSON)
            as_json = true;
        else if (option == OPTION_LIFT)
            lifts = true;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    if (optind + 1 != argc)
        return cli_usage_error(cli,
                               optind == argc ? "which workspace?" : "one workspace at a time");
    if (!workspace_ids_check(cli, argv + optind, THREAD_ID_MAX))
        return CLI_USAGE;
    _cleanup_here_ struct here here = {0};
    _cleanup_client_ struct client *client = NULL;
    cli_use_working_directory(cli, &here);
    if (cli_connect_warm(cli, &client) < 0)
        return CLI_FAILED;
    int status = lifts ? lift(cli, client, argv[optind], flags)
                       : show(cli, client, argv[optind], flags, as_json);
    return cli_finish_output(cli, status);
}
