#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/mounts.h"
#include "cli/reasons.h"
#include "cli/status.h"
#include "cli/text.h"

const char status_usage[] =
    "usage: berth status [--json]\n"
    "Shows the service and the Berth mounts of this machine. Fails when the service does not\n"
    "answer; whether every mount is well is for `berth doctor` to say.\n"
    "\n"
    "      --json   one object: \"url\", \"service\" (all that the service tells; null and\n"
    "               \"error\" when it cannot be reached), and \"mounts\", each with "
    "\"mountpoint\",\n"
    "               \"state\" (connected, disconnected, dead, silent, foreign, unknown), and\n"
    "               what it tells. berth-status(5) describes all of it\n"
    "\n"
    "Examples\n"
    "  berth status\n"
    "  berth status --json | jq '.mounts[].stats.round_trips'\n";

enum { OPTION_JSON = 256 };

static const struct option options[] = {
    {"json", no_argument, NULL, OPTION_JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

/* --- collecting -------------------------------------------------------------------- */

/* The service's own object. A negative errno with a sentence. */
static int ask_service(struct cli *cli, json_t **ret, struct failure *f)
{
    _cleanup_client_ struct client *client = NULL;
    int r = cli_connect_alone(cli, &client, f);
    return r < 0 ? r : status_ask(client, ret, f);
}

/* --- printing ---------------------------------------------------------------------- */

static void print_text(const char *text)
{
    _cleanup_buffer_ struct buffer escaped = {0};
    if (text && text_escape(&escaped, bytes_of_string(text), TEXT_SENTENCE) == 0)
        (void)fwrite(escaped.data, 1, escaped.len, stdout);
}

static int64_t number(json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

static void print_duration(int64_t seconds)
{
    if (seconds < 120)
        (void)printf("%" PRId64 " s", seconds);
    else if (seconds < 7200)
        (void)printf("%" PRId64 " min", seconds / 60);
    else if (seconds < 172800)
        (void)printf("%" PRId64 " h", seconds / 3600);
    else
        (void)printf("%" PRId64 " days", seconds / 86400);
}

/* Rules in force and what they left out; nothing where there are none. */
static void print_visibility(const char *indent, const char *name, int64_t rules, json_t *counts)
{
    int64_t unlisted = number(counts, "unlisted"), hidden = number(counts, "hidden");
    if (!rules && !unlisted && !hidden)
        return;
    (void)printf("%s", indent);
    if (name) {
        (void)printf("workspace ");
        print_text(name);
        (void)printf(": ");
    }
    if (rules)
        (void)printf("%" PRId64 " rule%s of visibility; left out of listings: ", rules,
                     plural(rules));
    else
        (void)printf("left out of listings by rules of mounts: ");
    (void)printf("%" PRId64 " unlisted, %" PRId64 " hidden\n", unlisted, hidden);
}

static void print_service_visibility(json_t *visibility)
{
    print_visibility("  ", NULL, number(visibility, "rules"), visibility);
    size_t i;
    json_t *w;
    json_array_foreach(json_object_get(visibility, "workspaces"), i, w)
    {
        print_visibility("    ", json_string_value(json_object_get(w, "name")), number(w, "rules"),
                         w);
    }
}

static void print_changes(json_t *changes)
{
    const char *mode = json_string_value(json_object_get(changes, "mode"));
    if (!mode)
        return;
    if (strcmp(mode, "none") == 0)
        (void)printf("  changes by commands are not noticed: mounts keep nothing they were told\n");
    else
        (void)printf("  changes noticed by %s, %" PRId64 " so far, %" PRId64 " us behind\n", mode,
                     number(changes, "noticed"), number(changes, "behind_us"));
    int64_t lost = number(changes, "overflows"), refused = number(changes, "watches_refused"),
            written = number(changes, "written");
    if (strcmp(mode, "inotify") == 0)
        (void)printf("  %" PRId64 " of %" PRId64 " watches in use%s\n", number(changes, "watches"),
                     number(changes, "watches_max"),
                     refused ? "; there were too few, and some files are asked for each time" : "");
    if (written)
        (void)printf("  %" PRId64
                     " file%s that others have open for writing: asked for each time\n",
                     written, plural(written));
    if (lost)
        (void)printf("  %" PRId64
                     " time%s more changed than the kernel could report: mounts forgot "
                     "all they knew\n",
                     lost, plural(lost));
}

/* Words of an array, with commas between. */
static void print_words(json_t *words)
{
    size_t i;
    json_t *word;
    json_array_foreach(words, i, word)
    {
        (void)printf("%s", i ? ", " : "");
        print_text(json_string_value(word));
    }
}

static void print_missing(void *what, const char *names, const char *reason)
{
    (void)printf("  %s ", (const char *)what);
    print_text(names);
    (void)printf(": ");
    print_text(reason);
    (void)putchar('\n');
}

/* finding: {"holds": false, "text": why not, …} */
static const char *why_not(const json_t *finding)
{
    const char *text = json_string_value(json_object_get(finding, "text"));
    if (!json_is_false(json_object_get(finding, "holds")))
        return NULL;
    return text ? text : "";
}

/* What one is told who was not granted everything. */
static void print_little(json_t *service)
{
    json_t *granted = json_object_get(service, "granted");
    (void)printf("\n  granted to ");
    print_text(json_string_value(json_object_get(granted, "id")));
    (void)printf(": ");
    print_words(json_object_get(granted, "verbs"));
    (void)printf("; workspaces ");
    print_words(json_object_get(granted, "workspaces"));
    if (json_object_get(granted, "expires")) {
        char when[40];
        text_time(number(granted, "expires"), false, when, sizeof when);
        (void)printf("; until %s", when);
    }
    (void)putchar('\n');
    if (json_object_get(service, "level")) {
        (void)printf("  commands can be confined at the level ");
        print_text(json_string_value(json_object_get(service, "level")));
        (void)printf(", berth-policy(5)\n");
    }
    reasons_each(json_object_get(service, "confinement"), why_not, print_missing,
                 (char[]){"missing is"});
}

static void print_egress(json_t *egress)
{
    if (!egress)
        return;
    int64_t open = number(egress, "connections");
    (void)printf("  the proxy of commands %s", json_is_true(json_object_get(egress, "running"))
                                                   ? "runs"
                                                   : "does not run, nobody needs it");
    (void)printf(": %" PRId64 " connection%s; %" PRId64 " allowed, %" PRId64 " refused, %" PRId64
                 " failed so far; %" PRId64 " bytes out, %" PRId64 " in\n",
                 open, plural(open), number(egress, "allowed"), number(egress, "refused"),
                 number(egress, "failed"), number(egress, "bytes_up"),
                 number(egress, "bytes_down"));
}

static void print_fenced(json_t *fenced)
{
    size_t i;
    json_t *one;
    json_array_foreach(fenced, i, one)
    {
        (void)printf("  FENCED: ");
        print_text(json_string_value(json_object_get(one, "workspace")));
        (void)printf(": ");
        print_text(json_string_value(json_object_get(one, "why")));
        (void)printf("; no command is started there until `berth policy --lift`\n");
    }
}

/* Only what is missing. */
static void print_bounds(json_t *bounds)
{
    reasons_each(bounds, why_not, print_missing, (char[]){"NOT CONFINED by"});
}

/* Nothing where all is well. */
static void print_access(json_t *access)
{
    const char *error = json_string_value(json_object_get(access, "error"));
    if (!error)
        return;
    (void)printf("  NOBODY IS LET IN but the service's own user: ");
    print_text(error);
    (void)putchar('\n');
}

static void print_service(json_t *service)
{
    (void)printf("  berthd ");
    print_text(json_string_value(json_object_get(service, "version")));
    if (!json_object_get(service, "pid")) {
        print_little(service);
        return;
    }
    (void)printf(", pid %" PRId64 ", up ", number(service, "pid"));
    print_duration(number(service, "uptime_seconds"));
    (void)printf(", %" PRId64 " MiB of memory\n  ", number(service, "resident_bytes") >> 20);
    const char *root = json_string_value(json_object_get(service, "root"));
    if (root) {
        (void)printf("root ");
        print_text(root);
        (void)printf("\n  ");
    }
    int64_t workspaces = number(service, "workspaces"), files = number(service, "handles");
    int64_t commands = number(json_object_get(service, "exec"), "running");
    int64_t connections = number(json_object_get(service, "connections"), "open");
    (void)printf("%" PRId64 " workspace%s, %" PRId64 " command%s running, %" PRId64
                 " connection%s, %" PRId64 " open file%s\n",
                 workspaces, plural(workspaces), commands, plural(commands), connections,
                 plural(connections), files, plural(files));
    print_access(json_object_get(service, "access"));
    const char *level = json_string_value(json_object_get(service, "level"));
    if (level) {
        (void)printf("  commands can be confined at the level ");
        print_text(level);
        (void)printf(", berth-policy(5)\n");
    }
    print_fenced(json_object_get(service, "fenced"));
    print_egress(json_object_get(service, "egress"));
    print_bounds(json_object_get(service, "service_confinement"));
    print_changes(json_object_get(service, "changes"));
    print_service_visibility(json_object_get(service, "visibility"));
}

static void print_locks(json_t *stats)
{
    int64_t held = number(stats, "locks"), lost = number(stats, "locks_lost");
    if (held)
        (void)printf("    locks held by %" PRId64 " owner%s\n", held, plural(held));
    if (lost)
        (void)printf("    LOST with the connection: locks of %" PRId64
                     " owner%s; their open files answer EIO\n",
                     lost, plural(lost));
}

static void print_driver(json_t *stats)
{
    int64_t known = number(stats, "inodes"), trips = number(stats, "round_trips");
    int64_t again = number(stats, "reconnects");
    (void)printf("\n    berthfs pid %" PRId64 ", %" PRId64 " file%s known, %" PRId64
                 " open, %" PRId64 " round trip%s, %" PRId64 " reconnection%s",
                 number(stats, "pid"), known, plural(known), number(stats, "handles"), trips,
                 plural(trips), again, plural(again));
}

/* disconnected=serve. */
static void print_served(json_t *stats)
{
    char when[40];
    if (!json_is_true(json_object_get(stats, "serving")))
        return;
    text_time(number(stats, "served_as_of"), false, when, sizeof when);
    (void)printf("\n    DISCONNECTED: serving what it knew as of %s; the rest fails, and so does "
                 "writing",
                 when);
}

/* What is known beside what the kernel has asked for. */
static void print_held(json_t *stats)
{
    int64_t entries = number(stats, "read_ahead"), files = number(stats, "content");
    int64_t used = number(stats, "content_used"), unused = number(stats, "content_unused");
    int64_t bytes = number(stats, "read_ahead_bytes") + number(stats, "content_bytes");
    if (entries || files || used || unused)
        (void)printf(
            "    held in memory: %" PRId64 " entr%s, content of %" PRId64 " file%s, %" PRId64
            " KiB; opened of what came in advance: %" PRId64 ", gone unopened: %" PRId64 "\n",
            entries, entries == 1 ? "y" : "ies", files, plural(files), bytes / 1024, used, unused);
}

/* Of a mount of several services. */
static void print_members(json_t *mount)
{
    size_t i;
    json_t *member;
    int64_t left_out = number(mount, "members_left_out");
    json_array_foreach(json_object_get(mount, "members"), i, member)
    {
        char when[40];
        const char *state = json_string_value(json_object_get(member, "state"));
        const char *why = json_string_value(json_object_get(member, "why"));
        text_time(number(member, "since"), false, when, sizeof when);
        (void)printf("    ");
        print_text(json_string_value(json_object_get(member, "name")));
        (void)printf("  ");
        print_text(state);
        (void)printf(" since %s  ", when);
        print_text(json_string_value(json_object_get(member, "url")));
        if (json_object_get(member, "lag_ms"))
            (void)printf("  changes known as of %" PRId64 " ms ago", number(member, "lag_ms"));
        else if (state && strcmp(state, "connected") == 0)
            (void)printf("  changes are not reported");
        if (why) {
            (void)printf("\n      ");
            print_text(why);
        }
        const char *same = json_string_value(json_object_get(member, "says_it_is"));
        if (same) {
            (void)printf("\n      it says that it is the same service as ");
            print_text(same);
        }
        (void)putchar('\n');
    }
    if (left_out > 0)
        (void)printf("    and %" PRId64 " more\n", left_out);
}

static void print_mount(json_t *mount)
{
    (void)printf("  ");
    print_text(json_string_value(json_object_get(mount, "mountpoint")));
    (void)printf("  ");
    print_text(json_string_value(json_object_get(mount, "state")));
    (void)printf("\n    ");
    print_text(json_string_value(json_object_get(mount, "url")));
    const char *workspace = json_string_value(json_object_get(mount, "workspace"));
    const char *hex = json_string_value(json_object_get(mount, "workspace_hex"));
    if (workspace || hex) {
        (void)printf("\n    workspace ");
        print_text(workspace ? workspace : hex);
        (void)printf("%s", workspace ? "" : " (hexadecimal)");
    }
    json_t *stats = json_object_get(mount, "stats");
    if (json_object_get(mount, "members")) {
        (void)putchar('\n');
        print_members(mount);
        return;
    }
    if (stats)
        print_driver(stats);
    print_served(stats);
    const char *error = json_string_value(json_object_get(mount, "error"));
    if (error) {
        (void)printf("\n    ");
        print_text(error);
    }
    (void)putchar('\n');
    print_visibility("    ", NULL, number(json_object_get(mount, "visibility"), "rules"), stats);
    print_held(stats);
    int64_t refused = number(stats, "links_refused");
    if (refused)
        (void)printf("    symbolic links refused: %" PRId64 " time%s\n", refused, plural(refused));
    print_locks(stats);
}

static void print_all(json_t *all)
{
    json_t *service = json_object_get(all, "service");
    const char *error = json_string_value(json_object_get(all, "error"));
    json_t *mounts = json_object_get(all, "mounts");
    (void)printf("Service ");
    print_text(json_string_value(json_object_get(all, "url")));
    (void)putchar('\n');
    if (json_is_object(service))
        print_service(service);
    else
        (void)printf("  not reached\n");
    if (error) {
        (void)printf("  ");
        print_text(error);
        (void)putchar('\n');
    }
    (void)printf("Mounts%s\n", json_array_size(mounts) ? "" : ": none");
    for (size_t i = 0; i < json_array_size(mounts); i++)
        print_mount(json_array_get(mounts, i));
}

static int collect(struct cli *cli, json_t *all)
{
    json_t *service = NULL;
    json_t *mounts = NULL;
    struct failure failure;
    int asked = ask_service(cli, &service, &failure);
    int r = json_object_set_new(all, "url", text_json(cli->settings.url));
    r |= json_object_set_new(all, "service", service ? service : json_null());
    r |= json_object_set_new(all, "error", asked < 0 ? text_json(failure.text) : json_null());
    int counted = mounts_json(&mounts);
    if (counted < 0)
        return counted;
    r |= json_object_set_new(all, "mounts", mounts);
    return r ? -ENOMEM : 0;
}

int cmd_status(struct cli *cli, int argc, char **argv)
{
    bool json = false;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (option == OPTION_JSON)
            json = true;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    if (optind < argc)
        return cli_usage_error(cli, "%s: status takes no arguments", argv[optind]);
    if (!cli_load_settings(cli))
        return CLI_FAILED;
    json_t *all = json_object();
    int r = all ? collect(cli, all) : -ENOMEM;
    int status = CLI_FAILED;
    if (r < 0) {
        cli_error(cli, "%s", strerror(-r));
    } else {
        if (json) {
            (void)json_dumpf(all, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
            (void)putchar('\n');
        } else {
            print_all(all);
        }
        bool answered = json_is_object(json_object_get(all, "service"));
        status = cli_finish_output(cli, answered ? CLI_OK : CLI_FAILED);
    }
    json_decref(all);
    return status;
}
