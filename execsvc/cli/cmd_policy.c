#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/policy_text.h"
#include "cli/reasons.h"
#include "cli/text.h"
#include "cli/workspace_id.h"

const char policy_usage[] =
    "usage: berth policy [-n] [--json] [ID]\n"
    "       berth policy [-n] [--json] --set FILE [ID]\n"
    "       berth policy [-n] --lift [ID]\n"
    "Shows what the commands of a workspace may do, as it is asked for, and what a probe that is\n"
    "run there now finds to hold them. A policy is a JSON document; berth-policy(5). In a mount .\n"
    "is the workspace in which one stands, and so is none.\n"
    "\n"
    "With --set it is changed, if it can be had: what the document leaves out stays as it is. A\n"
    "list of hosts holds at once, for commands that run as well, whose connections to hosts that\n"
    "are not on it any more end. All else holds for commands that are started from then on; those\n"
    "that go on as they were started are named. It takes the right to administer the workspace.\n"
    "\n"
    "Each command looks for the same before its program begins. When what it finds is not what "
    "was\n"
    "made, it is not started, and the workspace is fenced: no command is started there until\n"
    "somebody lifts the fence, whereupon everything that holds its commands is made anew.\n"
    "\n"
    "  -n, --name      ID is a directory name\n"
    "      --set FILE  changes the policy; - is standard input\n"
    "      --lift      lifts the fence; commands that live must have been ended\n"
    "      --json      prints one JSON object\n"
    "\n"
    "Exit status: 1 when commands cannot be started there, what holds them has been changed, or\n"
    "the policy could not be changed, which is as it was then.\n"
    "\n"
    "Examples\n"
    "  berth policy demo\n"
    "  berth policy --json demo | jq .measured.level\n"
    "  echo '{\"network\": {\"allow\": [\"pypi.org:443\"]}}' | berth policy --set - demo\n"
    "  berth policy --lift demo\n";

enum { OPTION_JSON = 256, OPTION_LIFT, OPTION_SET };

static const struct option options[] = {
    {"name", no_argument, NULL, 'n'},         {"json", no_argument, NULL, OPTION_JSON},
    {"lift", no_argument, NULL, OPTION_LIFT}, {"set", required_argument, NULL, OPTION_SET},
    {"help", no_argument, NULL, 'h'},         {0},
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

/* What a list allows, a row each. */
static void print_list(const char *name, const char *word, const json_t *list,
                       const json_t *measured)
{
    _cleanup_free_ char *right = text_of(measured);
    size_t i;
    json_t *one;
    print_row(name, word, right);
    json_array_foreach(list, i, one)
    {
        _cleanup_free_ char *text = text_of(one);
        (void)printf("%-12s   %s\n", "", text ? text : "?");
    }
}

static void print_access(const char *name, const json_t *asked, const json_t *measured)
{
    const json_t *value = json_object_get(asked, name);
    const json_t *hosts = json_object_get(value, "allow"), *paths = json_object_get(value, "read");
    const json_t *found = json_object_get(measured, name);
    if (hosts)
        print_list(name, "by a proxy", hosts, found);
    else if (paths)
        print_list(name, "own, and to read", paths, found);
    else
        print_values(name, value, found);
}

/* A level is what the machine can do for each workspace, whatever this one's policy asks for. */
static void print_required(const json_t *words, const json_t *level)
{
    _cleanup_buffer_ struct buffer all = {0};
    const char *has = json_string_value(level);
    char right[64] = "-";
    size_t i;
    json_t *one;
    int r = 0;
    json_array_foreach(words, i, one)
    {
        _cleanup_free_ char *word = text_of(one);
        r = r == 0 ? buffer_printf(&all, "%s%s", i ? ", " : "", word ? word : "?") : r;
    }
    if (r == 0)
        r = buffer_append(&all, "", 1);
    if (has)
        (void)snprintf(right, sizeof right, "the machine's level is %.20s", has);
    print_row("require", r == 0 && all.len > 1 ? (const char *)all.data : "-", right);
}

static void print_limits(const json_t *asked, const json_t *facts)
{
    static const char *const names[] = {"memory", "pids",      "cpu",        "cpu_time", "disk",
                                        "files",  "file_size", "open_files", "wall_time"};
    const json_t *found = json_object_get(facts, "limits");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *limit = json_object_get(asked, names[i]);
        const json_t *measured = json_object_get(found, names[i]);
        /* The others are of each command's, and not those of a probe. */
        bool asked_for = limit && !json_is_null(limit);
        _cleanup_free_ char *left = text_of(limit);
        _cleanup_free_ char *right = text_of(measured);
        if (asked_for || right)
            print_row(names[i], left, right ? right : "set for each command");
    }
}

static const char *why_missing(const json_t *value)
{
    const char *text = json_string_value(value);
    return text ? text : "?";
}

static void print_missing(void *context, const char *names, const char *reason)
{
    _cleanup_buffer_ struct buffer escaped = {0};
    if (text_escape(&escaped, bytes_of_string(reason), TEXT_SENTENCE) == 0)
        (void)printf("missing      %s: %.*s\n", names, (int)escaped.len,
                     (const char *)escaped.data);
}

static void print_all(const json_t *object)
{
    const json_t *asked = json_object_get(object, "asked");
    const json_t *measured = json_object_get(object, "measured");
    const json_t *facts = json_object_get(measured, "facts");
    static const char *const told[] = {"fenced", "refused"};
    print_row("", "asked", "measured");
    print_required(json_object_get(asked, "require"), json_object_get(measured, "level"));
    print_access("filesystem", asked, measured);
    print_access("network", asked, measured);
    print_limits(json_object_get(asked, "limits"), facts);
    print_values("capabilities", NULL, json_object_get(facts, "capabilities"));
    print_values("no_new_privs", NULL, json_object_get(facts, "no_new_privs"));
    print_values("seccomp", NULL, json_object_get(facts, "seccomp"));
    print_values("mounts", NULL, json_object_get(facts, "mounts"));
    print_values("interfaces", NULL, json_object_get(facts, "interfaces"));
    reasons_each(json_object_get(measured, "missing"), why_missing, print_missing, NULL);
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

/* What was changed, and which commands go on as before. */
static void print_change(const json_t *object)
{
    const json_t *kept = json_object_get(object, "kept");
    json_int_t count = json_integer_value(json_object_get(object, "kept_count"));
    size_t i;
    json_t *one;
    if (json_array_size(json_object_get(object, "changed")) == 0)
        (void)puts("nothing is changed");
    json_array_foreach(json_object_get(object, "changed"), i, one)
    {
        const char *field = json_string_value(one);
        _cleanup_free_ char *name = text_of(one);
        _cleanup_free_ char *value =
            text_of(field ? json_object_get(json_object_get(object, "asked"), field) : NULL);
        (void)printf("%-12s %s\n", name ? name : "?", value ? value : "?");
    }
    json_array_foreach(kept, i, one)
    {
        _cleanup_free_ char *id = text_of(one);
        (void)printf("%-12s %s goes on as it was started\n", "kept", id ? id : "?");
    }
    if (count > (json_int_t)json_array_size(kept))
        (void)printf("%-12s and others, %lld in all\n", "kept", (long long)count);
}

static bool is_well(const json_t *object)
{
    const json_t *measured = json_object_get(object, "measured");
    return measured && !json_object_get(object, "fenced") && !json_object_get(object, "refused") &&
           !json_object_get(measured, "changed") && !json_object_get(measured, "unknown");
}

/* --- calls ----------------------------------------------------------------------------------- */

/* file: where a policy is from that may be wrong, or NULL. */
static void tell_error(const struct cli *cli, const char *id, int error, const char *file,
                       const struct failure *f)
{
    bool of_policy = error == -EINVAL || error == -EOPNOTSUPP ||
                     strncmp(f->text, "filesystem.", strlen("filesystem.")) == 0;
    if (file && of_policy)
        cli_error(cli, "%s: %s: %s", id, policy_text_name(file), f->text);
    else
        cli_error(cli, "%s: %s", id, f->text);
}

/* The JSON object that the service answers with. NULL: an error has been shown. */
static json_t *ask(const struct cli *cli, struct client *client, const char *id, const char *file,
                   const struct wire_message *request)
{
    struct failure failure;
    struct wire_frame *reply;
    int r = cli_call(client, request, &reply, &failure);
    if (r < 0) {
        tell_error(cli, id, r, file, &failure);
        return NULL;
    }
    struct bytes text = reply->message.exec_policy_reply.json;
    json_t *object = json_loadb((const char *)text.data, text.len, JSON_REJECT_DUPLICATES, NULL);
    wire_frame_free(reply);
    if (json_is_object(object))
        return object;
    cli_error(cli, "%s: the service's answer is not JSON", id);
    json_decref(object);
    return NULL;
}

static void print_json(const json_t *object)
{
    _cleanup_free_ char *dump = json_dumps(object, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    (void)puts(dump ? dump : "");
}

static int show(const struct cli *cli, struct client *client, const char *id, uint32_t flags,
                bool as_json)
{
    const struct wire_message request = {
        .type = WIRE_EXEC_POLICY,
        .exec_policy = {.workspace_flags = flags, .workspace = bytes_of_string(id)}};
    json_t *object = ask(cli, client, id, NULL, &request);
    if (!object)
        return CLI_FAILED;
    if (as_json)
        print_json(object);
    else
        print_all(object);
    int status = is_well(object) ? CLI_OK : CLI_FAILED;
    json_decref(object);
    return status;
}

static int set(const struct cli *cli, struct client *client, const char *id, uint32_t flags,
               const char *file, struct bytes policy, bool as_json)
{
    const struct wire_message request = {.type = WIRE_EXEC_POLICY_SET,
                                         .exec_policy_set = {.workspace_flags = flags,
                                                             .workspace = bytes_of_string(id),
                                                             .policy = policy}};
    json_t *object = ask(cli, client, id, file, &request);
    if (!object)
        return CLI_FAILED;
    if (as_json)
        print_json(object);
    else
        print_change(object);
    json_decref(object);
    return CLI_OK;
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
        tell_error(cli, id, r, NULL, &failure);
        return CLI_FAILED;
    }
    wire_frame_free(reply);
    return CLI_OK;
}

int cmd_policy(struct cli *cli, int argc, char **argv)
{
    uint32_t flags = 0;
    bool as_json = false, lifts = false;
    const char *file = NULL;
    _cleanup_buffer_ struct buffer policy = {0};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":nh", options, NULL)) != -1) {
        if (option == 'n')
            flags = WIRE_WORKSPACE_BY_NAME;
        else if (option == OPTION_JSON)
            as_json = true;
        else if (option == OPTION_LIFT)
            lifts = true;
        else if (option == OPTION_SET)
            file = optarg;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    if (optind + 1 < argc)
        return cli_usage_error(cli, "one workspace at a time");
    if (!workspace_ids_check(cli, argv + optind, THREAD_ID_MAX))
        return CLI_USAGE;
    if (lifts && file)
        return cli_usage_error(cli, "--set and --lift go one after the other");
    if (file && policy_text_read(cli, file, &policy) < 0)
        return CLI_USAGE;
    _cleanup_client_ struct client *client = NULL;
    struct which w = {.key = argv[optind], .by_name = flags};
    if (!at_place_use(cli, &w))
        return argv[optind] ? CLI_FAILED : CLI_USAGE;
    if (cli_connect_warm(cli, &client) < 0)
        return CLI_FAILED;
    const char *id = w.key;
    flags = which_flags(&w);
    int status = lifts  ? lift(cli, client, id, flags)
                 : file ? set(cli, client, id, flags, file, buffer_view(&policy), as_json)
                        : show(cli, client, id, flags, as_json);
    return cli_finish_output(cli, status);
}
