#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/exec_find.h"
#include "cli/exec_result.h"
#include "cli/here.h"
#include "cli/text.h"

const char ps_usage[] =
    "usage: berth ps [-a] [-q] [-w ID] [--json]\n"
    "Lists commands: those that run, and those that have ended and left processes behind. Each\n"
    "has an ID, by which it can be followed (logs), attached to, waited for and killed.\n"
    "\n"
    "  -a, --all            also those that have ended, as long as the service keeps them: of\n"
    "                       those without --id and --detach, whose client has the verdict, none\n"
    "  -q, --quiet          the IDs alone\n"
    "  -w, --workspace ID   of this workspace; else of all\n"
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

/* Its words, each as it would be read. */
static int append_words(struct buffer *b, struct bytes argv)
{
    size_t start = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i <= argv.len; i++) {
        if (i < argv.len && argv.data[i])
            continue;
        if (i == argv.len && i == start)
            break;
        if (start)
            r = buffer_append_u8(b, ' ');
        if (r == 0)
            r = text_escape(b, bytes_of(argv.data + start, i - start), TEXT_SENTENCE);
        start = i + 1;
    }
    return r;
}

static json_t *words_json(struct bytes argv)
{
    json_t *array = json_array();
    size_t start = 0;
    for (size_t i = 0; array && i <= argv.len; i++) {
        if ((i < argv.len && argv.data[i]) || (i == argv.len && i == start))
            continue;
        _cleanup_free_ char *word = text_copy(bytes_of(argv.data + start, i - start));
        (void)json_array_append_new(array, word ? text_json(word) : NULL);
        start = i + 1;
    }
    return array;
}

/* As of its end. */
static struct wire_exec_exit verdict_of(const struct wire_exec_command *c)
{
    return (struct wire_exec_exit){.verdict = c->verdict, .code = c->code, .signal = c->signal};
}

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

static void duration_text(uint64_t ns, char *text, size_t size)
{
    uint64_t s = ns / 1000000000;
    if (s < 60)
        (void)snprintf(text, size, "%" PRIu64 "s", s);
    else if (s < 3600)
        (void)snprintf(text, size, "%" PRIu64 "m%02us", s / 60, (unsigned)(s % 60));
    else if (s < 86400)
        (void)snprintf(text, size, "%" PRIu64 "h%02um", s / 3600, (unsigned)(s / 60 % 60));
    else
        (void)snprintf(text, size, "%" PRIu64 "d%02uh", s / 86400, (unsigned)(s / 3600 % 24));
}

static int print_row(struct listing *l, const struct wire_exec_command *c)
{
    _cleanup_buffer_ struct buffer workspace = {0}, id = {0}, words = {0};
    char state[32], age[32];
    int r = text_escape(&id, c->id, TEXT_VALUE);
    if (r == 0)
        r = text_escape(&workspace, c->workspace, TEXT_VALUE);
    if (r == 0)
        r = append_words(&words, c->argv);
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
    duration_text(c->duration_ns, age, sizeof age);
    (void)printf("%-16.*s  %-16.*s  %-12s  %7s  %9u  %.*s\n", (int)id.len, (const char *)id.data,
                 (int)workspace.len, (const char *)workspace.data, state, age, c->processes,
                 (int)words.len, (const char *)words.data);
    return 0;
}

static int add_json(struct listing *l, const struct wire_exec_command *c)
{
    _cleanup_free_ char *workspace = text_copy(c->workspace);
    _cleanup_free_ char *id = text_copy(c->id);
    char started[64];
    time_t t = (time_t)c->started_at.sec;
    struct tm tm;
    if (!gmtime_r(&t, &tm) || strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        (void)snprintf(started, sizeof started, "?");
    const struct wire_exec_exit verdict = verdict_of(c);
    bool running = c->verdict == WIRE_VERDICT_RUNNING;
    const char *state = wire_verdict_name(c->verdict);
    json_t *o =
        workspace && id
            ? json_pack(
                  "{s:o,s:o,s:s,s:I,s:I,s:I,s:o,s:s,s:I,s:o,s:I,s:I}", "id", text_json(id),
                  "workspace", text_json(workspace), "state", state ? state : "unknown", "pid",
                  (json_int_t)c->pid, "processes", (json_int_t)c->processes, "attached",
                  (json_int_t)c->attached, "command", words_json(c->argv), "started_at", started,
                  "duration_ms", (json_int_t)(c->duration_ns / 1000000), "exit_status",
                  running ? json_null() : json_integer(verdict_status(&verdict)), "stdout_bytes",
                  (json_int_t)c->stdout_bytes, "stderr_bytes", (json_int_t)c->stderr_bytes)
            : NULL;
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
    _cleanup_here_ struct here here = {0};
    _cleanup_client_ struct client *client = NULL;
    struct failure failure;
    cli_use_working_directory(cli, &here);
    if ((workspace && !at_place_use(cli, workspace, false)) || cli_connect_warm(cli, &client) < 0)
        return CLI_FAILED;
    l.array = l.json ? json_array() : NULL;
    int r = exec_each(client, workspace, NULL, on_command, &l, &failure);
    if (r == 0 && l.json) {
        (void)json_dumpf(l.array, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
        (void)putchar('\n');
    }
    json_decref(l.array);
    if (r < 0) {
        cli_error(cli, "%s", failure.text);
        return CLI_FAILED;
    }
    return cli_finish_output(cli, CLI_OK);
}
