#include "cli/exec_options.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/units.h"

/* Longest timeout: a year, as the service has it. */
#define TIMEOUT_MAX_SECONDS (365.0 * 24 * 3600)

#define EXEC_ID_MAX WIRE_EXEC_ID_MAX

#define REATTACH_MAX_SECONDS (24 * 3600)

enum {
    OPTION_ID = 256,
    OPTION_TIMEOUT,
    OPTION_MERGE,
    OPTION_JSON,
    OPTION_PERSIST,
    OPTION_NO_PERSIST,
    OPTION_DETACH,
    OPTION_ON_DISCONNECT,
    OPTION_MAX_OUTPUT,
    OPTION_MEMORY,
    OPTION_PROCESSES,
    OPTION_REATTACH,
    OPTION_PATH
};

static const struct option long_options[] = {
    {"workspace", required_argument, NULL, 'w'},
    {"directory", required_argument, NULL, 'C'},
    {"env", required_argument, NULL, 'e'},
    {"interactive", no_argument, NULL, 'i'},
    {"tty", no_argument, NULL, 't'},
    {"id", required_argument, NULL, OPTION_ID},
    {"timeout", required_argument, NULL, OPTION_TIMEOUT},
    {"merge", no_argument, NULL, OPTION_MERGE},
    {"json", no_argument, NULL, OPTION_JSON},
    {"persist", required_argument, NULL, OPTION_PERSIST},
    {"no-persist", no_argument, NULL, OPTION_NO_PERSIST},
    {"detach", no_argument, NULL, OPTION_DETACH},
    {"on-disconnect", required_argument, NULL, OPTION_ON_DISCONNECT},
    {"max-output", required_argument, NULL, OPTION_MAX_OUTPUT},
    {"memory", required_argument, NULL, OPTION_MEMORY},
    {"processes", required_argument, NULL, OPTION_PROCESSES},
    {"reattach", required_argument, NULL, OPTION_REATTACH},
    {"path", required_argument, NULL, OPTION_PATH},
    {"cwd", required_argument, NULL, 'C'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const struct option shell_options[] = {
    {"workspace", required_argument, NULL, 'w'},
    {"directory", required_argument, NULL, 'C'},
    {"env", required_argument, NULL, 'e'},
    {"shell", required_argument, NULL, 's'},
    {"path", required_argument, NULL, OPTION_PATH},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static int parse_timeout(const char *text, uint64_t *ret_ms, struct failure *ret_failure)
{
    if (!units_duration(text, TIMEOUT_MAX_SECONDS, ret_ms) || *ret_ms == 0)
        return failure_set(ret_failure, -EINVAL,
                           "--timeout: %s is not a number of seconds above 0, or a time as 5m",
                           text);
    return 0;
}

/* -e NAME=VALUE, or -e NAME for the value it has here (nothing if it has none). */
static int add_variable(struct exec_options *o, const char *text, struct failure *ret_failure)
{
    if (text[0] == 0 || text[0] == '=')
        return failure_set(ret_failure, -EINVAL, "-e: a variable without a name");
    if (!strchr(text, '=')) {
        const char *value = getenv(text);
        if (!value)
            return 0;
        size_t size = strlen(text) + 1 + strlen(value) + 1;
        char *variable = malloc(size);
        if (!variable)
            return failure_set(ret_failure, -ENOMEM, "%s", strerror(ENOMEM));
        (void)snprintf(variable, size, "%s=%s", text, value);
        o->owned[o->owned_count++] = variable;
        text = variable;
    }
    o->environment[o->environment_count++] = text;
    return 0;
}

static int parse_reattach(const char *text, uint32_t *ret_s, struct failure *ret_failure)
{
    uint64_t ms;
    if (!units_duration(text, REATTACH_MAX_SECONDS, &ms))
        return failure_set(ret_failure, -EINVAL,
                           "--reattach: %s is not a number of seconds, 0 to %d, or a time as 5m",
                           text, REATTACH_MAX_SECONDS);
    *ret_s = (uint32_t)((ms + 999) / 1000);
    return 0;
}

static int parse_size(const char *option, const char *text, uint64_t *ret,
                      struct failure *ret_failure)
{
    if (!units_size(text, ret))
        return failure_set(ret_failure, -EINVAL,
                           "%s: %s is not a number of bytes (k, M, G and T are known)", option,
                           text);
    return 0;
}

static int parse_processes(const char *text, uint64_t *ret, struct failure *ret_failure)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (end == text || *end || errno || n <= 0)
        return failure_set(ret_failure, -EINVAL, "--processes: %s is not a number above 0", text);
    *ret = (uint64_t)n;
    return 0;
}

static int parse_on_disconnect(struct exec_options *o, const char *text,
                               struct failure *ret_failure)
{
    o->keep = strcmp(text, "continue") == 0;
    if (!o->keep && strcmp(text, "kill") != 0)
        return failure_set(ret_failure, -EINVAL, "--on-disconnect: continue or kill, not %s", text);
    return 0;
}

static int parse_path(const char *text, enum exec_path *ret, struct failure *ret_failure)
{
    static const char *const names[] = {
        [EXEC_PATH_AUTO] = "auto", [EXEC_PATH_LOCAL] = "local", [EXEC_PATH_REMOTE] = "remote"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(text, names[i]) == 0) {
            *ret = (enum exec_path)i;
            return 0;
        }
    return failure_set(ret_failure, -EINVAL, "--path: auto, local or remote, not %s", text);
}

static int parse_one(struct exec_options *o, int option, struct failure *ret_failure)
{
    if (option == 'w')
        o->workspace = optarg;
    else if (option == 'C')
        o->directory = optarg;
    else if (option == 'e')
        return add_variable(o, optarg, ret_failure);
    else if (option == 'i')
        o->input = true;
    else if (option == 't')
        o->terminal = true;
    else if (option == OPTION_ID)
        o->id = optarg;
    else if (option == OPTION_TIMEOUT)
        return parse_timeout(optarg, &o->timeout_ms, ret_failure);
    else if (option == OPTION_MERGE)
        o->merge = true;
    else if (option == OPTION_JSON)
        o->json = true;
    else if (option == OPTION_DETACH)
        o->detach = true;
    else if (option == OPTION_ON_DISCONNECT)
        return parse_on_disconnect(o, optarg, ret_failure);
    else if (option == OPTION_MAX_OUTPUT)
        return parse_size("--max-output", optarg, &o->max_output, ret_failure);
    else if (option == OPTION_MEMORY)
        return parse_size("--memory", optarg, &o->memory_max, ret_failure);
    else if (option == OPTION_PROCESSES)
        return parse_processes(optarg, &o->processes_max, ret_failure);
    else if (option == OPTION_REATTACH)
        return parse_reattach(optarg, &o->reattach_s, ret_failure);
    else if (option == OPTION_PATH)
        return parse_path(optarg, &o->path, ret_failure);
    else if (option == 's')
        o->shell = optarg;
    else if (option == OPTION_PERSIST)
        o->persist = optarg;
    else if (option == OPTION_NO_PERSIST)
        o->persist = "0";
    return 0;
}

static int check(const struct exec_options *o, bool shell, struct failure *ret_failure)
{
    if (shell && o->command_count > 1)
        return failure_set(ret_failure, -EINVAL,
                           "one workspace at a time; for a command in one see `berth help exec`");
    if (!shell && o->command_count == 0)
        return failure_set(ret_failure, -EINVAL,
                           "no command given: berth exec [-w ID] -- CMD [ARG…]");
    if (o->id && (strlen(o->id) == 0 || strlen(o->id) > EXEC_ID_MAX))
        return failure_set(ret_failure, -EINVAL, "--id: 1 to %d bytes", EXEC_ID_MAX);
    if (o->workspace && strlen(o->workspace) == 0)
        return failure_set(ret_failure, -EINVAL, "-w: an empty thread ID");
    if (o->terminal && o->json)
        return failure_set(ret_failure, -EINVAL, "-t and --json exclude each other");
    return 0;
}

int exec_options_parse(const struct cli *cli, int argc, char **argv, bool shell,
                       struct exec_options *ret, struct failure *ret_failure)
{
    /* No more variables than arguments. */
    struct exec_options o = {.output = true,
                             .follow = true,
                             .forwards = true,
                             .reattach_s = EXEC_REATTACH_DEFAULT_S,
                             .environment = calloc((size_t)argc + 1, sizeof *o.environment),
                             .owned = calloc((size_t)argc + 1, sizeof *o.owned)};
    int r =
        o.environment && o.owned ? 0 : failure_set(ret_failure, -ENOMEM, "%s", strerror(ENOMEM));
    opterr = 0;
    while (r == 0) {
        /* '+': options behind the command's name are its own. */
        int option = getopt_long(argc, argv, shell ? "+:w:C:e:s:h" : "+:w:C:e:ith",
                                 shell ? shell_options : long_options, NULL);
        if (option < 0)
            break;
        if (option == 'h') {
            (void)cli_show_help(cli);
            r = failure_set(ret_failure, -ECANCELED, "%s", "");
        } else if (option == '?' || option == ':') {
            (void)cli_option_error(cli, option, argv);
            r = failure_set(ret_failure, -EINVAL, "%s", "");
        } else {
            r = parse_one(&o, option, ret_failure);
        }
    }
    if (r == 0) {
        o.command = (const char *const *)(argv + optind);
        o.command_count = (size_t)(argc - optind);
        r = check(&o, shell, ret_failure);
    }
    if (r < 0) {
        exec_options_release(&o);
        return r;
    }
    *ret = o;
    return 0;
}

void exec_options_release(struct exec_options *o)
{
    for (size_t i = 0; o->owned && i < o->owned_count; i++)
        free(o->owned[i]);
    free(o->owned);
    free(o->environment);
    *o = (struct exec_options){0};
}
