#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cleanup.h"
#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/life.h"
#include "cli/text.h"
#include "cli/workspace_id.h"

const char label_usage[] =
    "usage: berth label [OPTION…] [ID [KEY=VALUE|KEY-]…]\n"
    "Sets labels of a workspace, and takes away those with a '-' behind them, all at once; others\n"
    "stay. Without any, prints those it has, one a line. In a mount . is the workspace in which "
    "one\n"
    "stands, and so is none.\n"
    "\n"
    "  -n, --name         ID is a directory name, as `berth ls -q` and the mount show it\n"
    "      --json         prints what `berth ls --json` has of the workspace afterwards\n"
    "      --revision N   only if it has this revision, which every change makes another one\n"
    "\n"
    "Examples\n"
    "  berth label demo team=search ticket=42\n"
    "  berth label demo ticket-\n"
    "  berth label --json demo | jq -r .labels.team\n"
    "  berth ls --label team=search\n";

const char ttl_usage[] =
    "usage: berth ttl [OPTION…] [ID [TIME|never]]\n"
    "Says when a workspace is removed by itself: TIME from now. It is not while it is in use: "
    "while\n"
    "a command runs in it, or a mount holds something of it. Without a time, prints what was "
    "said.\n"
    "\n"
    "  -n, --name         ID is a directory name, as `berth ls -q` and the mount show it\n"
    "      --idle TIME    when it has not been used for so long; never: not for that\n"
    "      --json         prints what `berth ls --json` has of the workspace afterwards\n"
    "\n"
    "TIME is a number of seconds, or has ms, s, m, h, d or w behind it. In a mount . is the\n"
    "workspace in which one stands, and so is none.\n"
    "\n"
    "Examples\n"
    "  berth ttl demo 7d\n"
    "  berth ttl --idle 2h demo\n"
    "  berth ttl --idle never demo never     it stays until `berth rm`\n";

const char stop_usage[] =
    "usage: berth stop [OPTION…] [ID…]\n"
    "Ends all commands of workspaces, and lets none be started in them until `berth start`. Files\n"
    "stay, and so do verdicts and output; mounts go on. In a mount . is the workspace in which "
    "one\n"
    "stands, and so is none.\n"
    "\n"
    "  -n, --name         the words are directory names, as `berth ls -q` and the mount show them\n"
    "\n"
    "Examples\n"
    "  berth stop demo\n"
    "  berth ls --state stopped\n";

const char start_usage[] =
    "usage: berth start [OPTION…] [ID…]\n"
    "Lets commands be started again in workspaces that were stopped.\n"
    "\n"
    "  -n, --name         the words are directory names, as `berth ls -q` and the mount show them\n"
    "\n"
    "Examples\n"
    "  berth start demo\n";

enum { OPTION_JSON = 256, OPTION_IDLE, OPTION_REVISION };

static const struct option label_options[] = {
    {"name", no_argument, NULL, 'n'},
    {"json", no_argument, NULL, OPTION_JSON},
    {"revision", required_argument, NULL, OPTION_REVISION},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const struct option ttl_options[] = {
    {"name", no_argument, NULL, 'n'},
    {"json", no_argument, NULL, OPTION_JSON},
    {"idle", required_argument, NULL, OPTION_IDLE},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const struct option state_options[] = {
    {"name", no_argument, NULL, 'n'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

/* --- output ---------------------------------------------------------------------- */

static int print_pair(struct bytes first, struct bytes second)
{
    _cleanup_buffer_ struct buffer a = {0};
    _cleanup_buffer_ struct buffer b = {0};
    int r = text_escape(&a, first, TEXT_VALUE);
    if (r == 0)
        r = text_escape(&b, second, TEXT_VALUE);
    if (r == 0)
        (void)printf("%.*s=%.*s\n", (int)a.len, (const char *)a.data, (int)b.len,
                     (const char *)b.data);
    return r;
}

static int print_labels(const struct wire_workspace *w)
{
    json_t *labels = json_loadb((const char *)w->labels.data, w->labels.len, 0, NULL);
    const char *key;
    json_t *value;
    int r = labels ? 0 : -EPROTO;
    json_object_foreach(labels, key, value)
    {
        if (r == 0)
            r = print_pair(bytes_of_string(key), bytes_of_string(json_string_value(value)));
    }
    json_decref(labels);
    return r;
}

static int print_ends(const struct wire_workspace *w)
{
    char when[64] = "never";
    if (w->expires_at.sec)
        text_time(w->expires_at.sec, false, when, sizeof when);
    (void)printf("ends:  %s\n", when);
    if (w->idle_ms)
        (void)printf("idle:  %g s\n", (double)w->idle_ms / 1000);
    else
        (void)puts("idle:  never");
    text_time(w->used_at.sec, false, when, sizeof when);
    (void)printf("used:  %s\n", when);
    return 0;
}

static int print_json(const struct wire_workspace *w)
{
    json_t *object = life_json(w);
    if (!object)
        return -ENOMEM;
    (void)json_dumpf(object, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    (void)putchar('\n');
    json_decref(object);
    return 0;
}

/* --- one workspace --------------------------------------------------------------- */

static int run(struct cli *cli, char *word, struct wire_workspace_set *q, bool json,
               int (*print)(const struct wire_workspace *w))
{
    _cleanup_client_ struct client *client = NULL;
    struct wire_frame *reply;
    struct which w = {.key = word, .by_name = q->flags};
    if (!at_place_use(cli, &w))
        return word ? CLI_FAILED : CLI_USAGE;
    q->key = bytes_of_string(w.key);
    q->flags = which_flags(&w);
    if (at_place_connect(cli, &client) < 0 || life_call(cli, client, q, &reply) < 0)
        return CLI_FAILED;
    const struct wire_workspace *now = &reply->message.workspace;
    int r = json ? print_json(now) : q->valid == 0 ? print(now) : 0;
    wire_frame_free(reply);
    if (r < 0)
        cli_error(cli, "%s", strerror(-r));
    return cli_finish_output(cli, r < 0 ? CLI_FAILED : CLI_OK);
}

static bool check_key(const struct cli *cli, char *word, uint32_t flags)
{
    char *words[] = {word, NULL};
    return !word || workspace_ids_check(cli, words, flags ? THREAD_NAME_MAX : THREAD_ID_MAX);
}

static void json_release(json_t **object)
{
    json_decref(*object);
}

int cmd_label(struct cli *cli, int argc, char **argv)
{
    struct wire_workspace_set q = {0};
    _cleanup_(json_release) json_t *labels = json_object();
    _cleanup_free_ char *text = NULL;
    bool json = false;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":nh", label_options, NULL)) != -1) {
        if (option == 'n')
            q.flags = WIRE_WORKSPACE_BY_NAME;
        else if (option == OPTION_JSON)
            json = true;
        else if (option == OPTION_REVISION && (q.revision = strtoull(optarg, NULL, 10)) == 0)
            return cli_usage_error(cli, "--revision %s: not a number from 1", optarg);
        else if (option == 'h')
            return cli_show_help(cli);
        else if (option != OPTION_REVISION)
            return cli_option_error(cli, option, argv);
    }
    if (!check_key(cli, argv[optind], q.flags))
        return CLI_USAGE;
    for (char **word = argv + optind + (optind < argc); *word; word++)
        if (!life_add_label(labels, *word, true))
            return cli_usage_error(cli, "%s: neither KEY=VALUE nor KEY-", *word);
    if (json_object_size(labels) > 0)
        q.valid = WIRE_WORKSPACE_SET_MERGE;
    text = json_dumps(labels, JSON_COMPACT);
    q.labels = bytes_of_string(text);
    if (q.labels.len > WIRE_LABELS_MAX)
        return cli_usage_error(cli, "labels: more than %d bytes in all", WIRE_LABELS_MAX);
    return run(cli, argv[optind], &q, json, print_labels);
}

int cmd_ttl(struct cli *cli, int argc, char **argv)
{
    struct wire_workspace_set q = {0};
    bool json = false;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":nh", ttl_options, NULL)) != -1) {
        if (option == 'n') {
            q.flags = WIRE_WORKSPACE_BY_NAME;
        } else if (option == OPTION_JSON) {
            json = true;
        } else if (option == OPTION_IDLE) {
            if (!life_duration(cli, "--idle", optarg, &q.idle_ms))
                return CLI_USAGE;
            q.valid |= WIRE_WORKSPACE_SET_IDLE;
        } else if (option == 'h') {
            return cli_show_help(cli);
        } else {
            return cli_option_error(cli, option, argv);
        }
    }
    if (argc - optind > 2)
        return cli_usage_error(cli, "%s: ttl takes a workspace and a time", argv[optind + 2]);
    if (!check_key(cli, argv[optind], q.flags))
        return CLI_USAGE;
    if (optind < argc && argv[optind + 1]) {
        if (!life_duration(cli, "ttl", argv[optind + 1], &q.ttl_ms))
            return CLI_USAGE;
        q.valid |= WIRE_WORKSPACE_SET_TTL;
    }
    return run(cli, argv[optind], &q, json, print_ends);
}

/* --- several --------------------------------------------------------------------- */

static int set_state(struct cli *cli, int argc, char **argv, enum wire_workspace_state state)
{
    struct wire_workspace_set q = {.valid = WIRE_WORKSPACE_SET_STATE, .state = state};
    int option, status = CLI_OK;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":nh", state_options, NULL)) != -1) {
        if (option == 'n')
            q.flags = WIRE_WORKSPACE_BY_NAME;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    static char *here[] = {NULL, NULL};
    char **ids = optind < argc ? argv + optind : here;
    bool by_name = q.flags;
    if (!workspace_ids_check(cli, ids, by_name ? THREAD_NAME_MAX : THREAD_ID_MAX))
        return CLI_USAGE;
    _cleanup_at_places_ struct at_places at = {.cli = cli};
    do {
        struct wire_frame *reply;
        struct client *client;
        struct which w = {.key = *ids, .by_name = by_name};
        int r = at_places_connect(&at, &w, &client);
        if (r < 0 && !*ids)
            return CLI_USAGE;
        q.key = bytes_of_string(w.key);
        q.flags = which_flags(&w);
        if (r == 0)
            r = life_call(cli, client, &q, &reply);
        if (r == 0)
            wire_frame_free(reply);
        else
            status = CLI_FAILED;
        if (r == -ENOTCONN && !at.other.place_url)
            break;
    } while (*ids && *++ids);
    return status;
}

int cmd_stop(struct cli *cli, int argc, char **argv)
{
    return set_state(cli, argc, argv, WIRE_WORKSPACE_STOPPED);
}

int cmd_start(struct cli *cli, int argc, char **argv)
{
    return set_state(cli, argc, argv, WIRE_WORKSPACE_RUNNING);
}
