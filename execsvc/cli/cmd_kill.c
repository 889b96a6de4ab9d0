#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/exec_find.h"
#include "cli/held.h"
#include "cli/text.h"

const char kill_usage[] =
    "usage: berth kill [-s SIGNAL] [--grace SECONDS] [-w ID] EXEC…\n"
    "Ends commands and everything that belongs to them, what their first process has left behind\n"
    "too: TERM, after the grace period KILL. Returns when nothing is left of them, and says how\n"
    "many processes that were and how they were found; fails when something could not be ended.\n"
    "\n"
    "  -s, --signal SIGNAL  sends this signal to the command's process group instead, and does\n"
    "                       not wait; a name (INT, SIGHUP) or a number; also -INT, -9\n"
    "      --grace SECONDS  from TERM to KILL (2); 0: KILL at once\n"
    "  -w, --workspace ID   where the command runs; needed if several have the same ID, and for\n"
    "                       a provider's workspace that is not connected\n"
    "\n"
    "Examples\n"
    "  berth kill 4f2a90c1d5e6b7a8\n"
    "  berth kill -s HUP server\n";

#define GRACE_DEFAULT_MS 2000
#define GRACE_MAX_S 3600

enum { OPTION_GRACE = 256 };

static const struct option options[] = {
    {"signal", required_argument, NULL, 's'},
    {"grace", required_argument, NULL, OPTION_GRACE},
    {"workspace", required_argument, NULL, 'w'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

/* 0: there is none. */
static int signal_number(const char *text)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (end != text)
        return *end == '\0' && n > 0 && n <= 64 ? (int)n : 0;
    const char *name = strncmp(text, "SIG", 3) == 0 ? text + 3 : text;
    for (int i = 1; i < NSIG; i++) {
        const char *known = sigabbrev_np(i);
        if (known && strcmp(known, name) == 0)
            return i;
    }
    return 0;
}

/* -9 and -KILL, as kill(1) takes them: the word is taken out of argv. A word that is no signal is
 * left for getopt to complain of. */
static int take_signal_word(int *argc, char **argv)
{
    for (int i = 1; i < *argc && strcmp(argv[i], "--") != 0; i++) {
        int signal = argv[i][0] == '-' ? signal_number(argv[i] + 1) : 0;
        const char *before = argv[i - 1];
        bool is_value = strcmp(before, "-w") == 0 || strcmp(before, "-s") == 0 ||
                        (before[0] == '-' && before[1] == '-');
        if (!signal || is_value)
            continue;
        memmove(argv + i, argv + i + 1, (size_t)(*argc - i) * sizeof *argv);
        (*argc)--;
        return signal;
    }
    return 0;
}

/* *client: where it was found. */
static int find(struct at_places *at, struct client **client, const char *workspace, const char *id,
                struct exec_found *ret, struct failure *f)
{
    _cleanup_place_ struct place p = {0};
    int r = *client ? exec_find(*client, workspace, id, ret, f)
                    : failure_set(f, -ENOENT, "%s: no such command; see `berth ps --all`", id);
    r = exec_find_held(at->cli, workspace, id, r, &p, f);
    if (r <= 0)
        return r;
    struct which w = {.key = p.name, .by_name = true};
    r = at_places_connect(at, &w, client);
    return r < 0 ? failure_set(f, r, "%s: its workspace cannot be reached", id)
                 : exec_find(*client, workspace, id, ret, f);
}

/* client: to the service that is used anyway, or NULL. */
static int kill_one(struct at_places *at, struct client *client, const char *workspace,
                    const char *id, int signal, uint64_t grace_ms)
{
    _cleanup_exec_found_ struct exec_found found = {0};
    struct cli *cli = at->cli;
    struct failure f;
    struct wire_frame *reply;
    int r = find(at, &client, workspace, id, &found, &f);
    if (r == 0) {
        const struct wire_message request = {
            .type = WIRE_EXEC_KILL,
            .exec_kill = {.signal = (uint32_t)signal,
                          .grace_ms = grace_ms,
                          .workspace = bytes_of_string(found.workspace),
                          .id = bytes_of_string(found.id),
                          .by = bytes_of_string("berth kill")}};
        r = cli_call(client, &request, &reply, &f);
    }
    if (r < 0) {
        if (r == -ESRCH)
            cli_error(cli, "%s: nothing of it lives any more", id);
        else
            cli_error(cli, "%s", f.text);
        return CLI_FAILED;
    }
    const struct wire_exec_killed *k = &reply->message.exec_killed;
    const char *means = wire_means_name(k->means);
    int status = k->left ? CLI_FAILED : CLI_OK;
    _cleanup_buffer_ struct buffer shown = {0};
    if (signal == 0 && text_escape(&shown, bytes_of_string(id), TEXT_SENTENCE) == 0)
        (void)printf("%.*s: %u process%s removed (%s)\n", (int)shown.len, (const char *)shown.data,
                     k->removed, k->removed == 1 ? "" : "es", means ? means : "?");
    _cleanup_free_ char *text = text_copy(k->text);
    if (k->left)
        cli_error(cli, "%s: %u process%s could not be ended%s%s", id, k->left,
                  k->left == 1 ? "" : "es", text && *text ? ": " : "", text ? text : "");
    wire_frame_free(reply);
    return status;
}

int cmd_kill(struct cli *cli, int argc, char **argv)
{
    const char *workspace = NULL;
    int signal = take_signal_word(&argc, argv);
    uint64_t grace_ms = GRACE_DEFAULT_MS;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":s:w:h", options, NULL)) != -1) {
        if (option == 's') {
            signal = signal_number(optarg);
            if (!signal)
                return cli_usage_error(cli, "%s: no such signal", optarg);
        } else if (option == OPTION_GRACE) {
            if (!units_duration(optarg, GRACE_MAX_S, &grace_ms))
                return cli_usage_error(cli, "--grace: %s is not a number of seconds, 0 to %d",
                                       optarg, GRACE_MAX_S);
        } else if (option == 'w') {
            workspace = optarg;
        } else if (option == 'h') {
            return cli_show_help(cli);
        } else {
            return cli_option_error(cli, option, argv);
        }
    }
    if (optind == argc)
        return cli_usage_error(cli, "no command's ID given; `berth ps` shows them");
    _cleanup_client_ struct client *client = NULL;
    _cleanup_at_places_ struct at_places at = {.cli = cli};
    char id[WHICH_ID_SIZE];
    if (!at_place_use_id(cli, &workspace, id))
        return CLI_FAILED;
    int r = workspace ? cli_connect_warm(cli, &client) : held_connect_own(cli, true, &client);
    if (r < 0)
        return CLI_FAILED;
    int status = CLI_OK;
    for (int i = optind; i < argc; i++)
        if (kill_one(&at, client, workspace, argv[i], signal, grace_ms) != CLI_OK)
            status = CLI_FAILED;
    return cli_finish_output(cli, status);
}
