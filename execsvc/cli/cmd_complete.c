#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "access/grants_file.h"
#include "base/buffer.h"
#include "cli/cli.h"
#include "cli/exec_find.h"
#include "cli/help.h"
#include "cli/here.h"
#include "cli/text.h"
#include "config/services.h"

/* A key was pressed: better nothing than a pause. */
#define CONNECT_TIMEOUT_MS 2000

/* What completions of a shell ask: `berth complete -- WORD…`, with all words behind berth, the last
 * of which is to be completed. Answers a candidate a line, with a tab and a description if there
 * is one; nothing: the shell may look for files. Not a command for people. */
struct completion {
    struct cli *cli;
    const char *word;
    size_t done; /* bytes of the word before what is offered: of a list, up to its last comma */
};

static void offer(const struct completion *c, struct bytes value, struct bytes text)
{
    const char *word = c->word + c->done;
    size_t len = strlen(word);
    if (value.len < len || memcmp(value.data, word, len) != 0 || value.len == 0)
        return;
    /* What would end the line, or drive the terminal, is for people to type. */
    for (size_t i = 0; i < value.len; i++)
        if (value.data[i] < ' ' || value.data[i] == 0x7f)
            return;
    (void)printf("%.*s%.*s", (int)c->done, c->word, (int)value.len, (const char *)value.data);
    if (text.len)
        (void)printf("\t%.*s", (int)text.len, (const char *)text.data);
    (void)putchar('\n');
}

static void offer_string(const struct completion *c, const char *value, const char *text)
{
    offer(c, bytes_of_string(value), bytes_of_string(text));
}

static void offer_commands(const struct completion *c)
{
    for (const struct cli_command *command = cli_commands; command->name; command++)
        if (command->summary)
            offer_string(c, command->name, command->summary);
}

/* --- options, as the help page has them ------------------------------------------------ */

/* "  -w, --workspace ID    text", "      --json   text" or "  -o WORDS   text". The option, and
 * where its line goes on. */
static bool parse_option(const char *line, char *letter, struct bytes *ret_name,
                         const char **ret_rest)
{
    *letter = 0;
    if (strncmp(line, "  -", 3) == 0 && line[3] && line[4] == ',') {
        *letter = line[3];
        line += 6;
    } else if (strncmp(line, "  -", 3) == 0 && line[3] != '-' && line[4] == ' ') {
        *letter = line[3];
        *ret_name = bytes_of(line + 2, 2);
        *ret_rest = line + 4;
        return true;
    } else if (strncmp(line, "      --", 8) == 0) {
        line += 6;
    } else if (strncmp(line, "  --", 4) == 0) {
        line += 2;
    } else {
        return false;
    }
    size_t len = 2 + strcspn(line + 2, " \n,");
    *ret_name = bytes_of(line, len);
    *ret_rest = line + len;
    return strncmp(line, "--", 2) == 0 && len > 2;
}

/* Where texts are on help pages, at the least. */
#define TEXT_INDENT 20

/* What is explained of an option behind two spaces. value: it takes one. */
static struct bytes explanation(const char *rest, bool *value)
{
    size_t end = strcspn(rest, "\n");
    const char *gap = memmem(rest, end, "  ", 2);
    *value = rest[0] == ' ' && rest[1] != ' ' && end > 1;
    /* It may stand below, indented as texts are. */
    const char *next = rest + end + (rest[end] == '\n');
    size_t indent = strspn(next, " ");
    if (!gap && indent >= TEXT_INDENT)
        return bytes_of(next + indent, strcspn(next + indent, "\n"));
    if (!gap)
        return (struct bytes){0};
    size_t at = (size_t)(gap - rest);
    at += strspn(gap, " ");
    return bytes_of(rest + at, at < end ? end - at : 0);
}

typedef void option_fn(const struct completion *c, char letter, struct bytes name,
                       struct bytes text, bool value, void *context);

static void each_option(const struct completion *c, const char *usage, option_fn *each,
                        void *context)
{
    for (const char *line = usage; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        struct bytes name;
        const char *rest;
        char letter;
        bool value;
        if (!parse_option(line, &letter, &name, &rest))
            continue;
        struct bytes text = explanation(rest, &value);
        each(c, letter, name, text, value, context);
    }
}

static void offer_option(const struct completion *c, char letter, struct bytes name,
                         struct bytes text, bool value, void *context)
{
    if (name.len > 2)
        offer(c, name, text);
}

/* On help pages lists of words that go behind an option stand like this: "       ro      text", and
 * "       timeout=SECONDS text", of which the value is not offered. */
#define WORD_INDENT 7

static void offer_words(const struct completion *c, const char *usage)
{
    for (const char *line = usage; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        char word[64];
        size_t indent = strspn(line, " ");
        const char *at = line + indent;
        size_t len = strcspn(at, " \n");
        size_t name = strcspn(at, "= \n");
        bool is_word = name < len || strncmp(at + len, "  ", 2) == 0;
        if (indent != WORD_INDENT || !is_word || len >= sizeof word)
            continue;
        if (name < len && at[name + 1] >= 'A' && at[name + 1] <= 'Z')
            len = name + 1;
        (void)snprintf(word, sizeof word, "%.*s", (int)len, at);
        at += strcspn(at, " \n");
        at += strspn(at, " ");
        offer(c, bytes_of_string(word), bytes_of(at, strcspn(at, "\n")));
    }
}

static void offer_options(const struct completion *c, const char *usage)
{
    each_option(c, usage, offer_option, NULL);
    offer_string(c, "--help", "explains it");
}

struct option_search {
    const char *word; /* "-w" or "--workspace" */
    bool takes_value;
    char letter;
    struct bytes name;
};

static void match_option(const struct completion *c, char letter, struct bytes name,
                         struct bytes text, bool value, void *context)
{
    struct option_search *s = context;
    size_t len = strlen(s->word);
    bool is_long = bytes_equal(name, bytes_of_string(s->word));
    /* Of several letters in one word the last one takes the value. */
    bool is_short =
        len >= 2 && s->word[0] == '-' && s->word[1] != '-' && letter && s->word[len - 1] == letter;
    if (!is_long && !is_short)
        return;
    s->takes_value = value;
    s->letter = letter;
    s->name = name;
}

/* --- what the service knows -------------------------------------------------------------- */

static struct client *reach(struct cli *cli)
{
    struct client *client;
    struct failure f;
    struct here here = {0};
    cli->passive = true;
    cli->flags.connect_timeout_ms = CONNECT_TIMEOUT_MS;
    bool loaded = (cli->url_given || cli_use_working_directory(cli, &here)) &&
                  client_settings_load(&cli->flags, &cli->settings, &f) == 0;
    cli->settings_loaded = loaded;
    bool reached = loaded && cli_reach_warm(cli, &client, &f) == 0;
    here_release(&here);
    return reached ? client : NULL;
}

static void offer_workspaces(const struct completion *c)
{
    _cleanup_client_ struct client *client = reach(c->cli);
    const struct wire_message request = {.type = WIRE_WORKSPACE_LIST};
    struct wire_frame *reply;
    struct failure f;
    if (!client || cli_call(client, &request, &reply, &f) < 0)
        return;
    uint32_t offset = 0;
    struct bytes element;
    while (wire_list_next(&reply->message.workspaces.items, &offset, &element)) {
        struct wire_message m;
        if (wire_decode(WIRE_WORKSPACE, element, &m) == 0)
            offer(c, m.workspace.thread_id, (struct bytes){0});
    }
    wire_frame_free(reply);
}

struct exec_offer {
    const struct completion *completion;
    bool ended; /* those too */
};

static int offer_exec(void *context, const struct wire_exec_command *command)
{
    const struct exec_offer *o = context;
    bool running = command->verdict == WIRE_VERDICT_RUNNING;
    if (!o->ended && !running && !command->processes)
        return 0;
    _cleanup_buffer_ struct buffer text = {0};
    size_t first = strnlen((const char *)command->argv.data, command->argv.len);
    int r = text_escape(&text, command->workspace, TEXT_VALUE);
    if (r == 0)
        r = buffer_printf(&text, ": ");
    if (r == 0)
        r = text_escape(&text, bytes_of(command->argv.data, first), TEXT_SENTENCE);
    if (r == 0)
        offer(o->completion, command->id, buffer_view(&text));
    return r;
}

static void offer_execs(const struct completion *c, bool ended)
{
    struct exec_offer o = {.completion = c, .ended = ended};
    _cleanup_client_ struct client *client = reach(c->cli);
    struct failure f;
    if (client)
        (void)exec_each(client, NULL, NULL, offer_exec, &o, &f);
}

static void offer_mounts(const struct completion *c)
{
    _cleanup_mount_table_ struct mount_table table = {0};
    if (mount_table_read(&table) < 0)
        return;
    for (size_t i = 0; i < table.count; i++)
        if (mount_row_is_berth(&table.rows[i]))
            offer_string(c, table.rows[i].point, table.rows[i].source);
}

/* --- where in the line -------------------------------------------------------------------- */

static void offer_signals(const struct completion *c)
{
    for (int i = 1; i < NSIG; i++)
        if (sigabbrev_np(i))
            offer_string(c, sigabbrev_np(i), sigdescr_np(i));
}

static bool is_any(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

/* The same with the last word of a list. */
static struct completion last_of_list(const struct completion *c)
{
    const char *comma = strrchr(c->word, ',');
    struct completion last = *c;
    last.done = comma ? (size_t)(comma + 1 - c->word) : 0;
    return last;
}

static void offer_verbs(const struct completion *c)
{
    const struct completion last = last_of_list(c);
    offer_string(&last, "read", "look at files");
    offer_string(&last, "write", "change files");
    offer_string(&last, "exec", "run commands");
    offer_string(&last, "admin", "make and remove workspaces");
}

/* Of the access file; file: as it is named in the line, or NULL. */
static void offer_grants(const struct completion *c, const char *file)
{
    const struct service_flags flags = {.config_file = c->cli->flags.config_file,
                                        .access_file = file};
    _cleanup_service_settings_ struct service_settings settings = {0};
    _cleanup_grants_ struct grants grants = {0};
    struct stat st;
    struct failure f;
    if (service_settings_load(&flags, &settings, &f) < 0 || !settings.access_file ||
        grants_load(settings.access_file, &grants, &st, &f) < 0)
        return;
    for (size_t i = 0; i < grants.count; i++)
        offer_string(c, grants.list[i]->id, grants.list[i]->note ? grants.list[i]->note : "");
}

static void offer_services(const struct completion *c)
{
    _cleanup_service_list_ struct service_list l = {0};
    struct failure f;
    if (service_list_load(c->cli->flags.config_file, &l, &f) < 0)
        return;
    for (size_t i = 0; i < l.count; i++)
        offer_string(c, l.entries[i].name, l.entries[i].url);
}

static void offer_value(const struct completion *c, const struct cli_command *command,
                        const struct option_search *option)
{
    const char *name = command->name;
    if (bytes_equal(option->name, bytes_of_string("--workspace"))) {
        offer_workspaces(c);
    } else if (bytes_equal(option->name, bytes_of_string("--on-disconnect"))) {
        offer_string(c, "continue", "the command goes on");
        offer_string(c, "kill", "it is ended after a while");
    } else if (bytes_equal(option->name, bytes_of_string("--signal"))) {
        offer_signals(c);
    } else if (bytes_equal(option->name, bytes_of_string("--id")) && strcmp(name, "exec") == 0) {
        offer_execs(c, false);
    } else if (bytes_equal(option->name, bytes_of_string("--profile"))) {
        offer_string(c, "ide", "what an IDE need not see");
    } else if (bytes_equal(option->name, bytes_of_string("--service"))) {
        offer_services(c);
    } else if (bytes_equal(option->name, bytes_of_string("--verb"))) {
        offer_verbs(c);
    } else if (bytes_equal(option->name, bytes_of_string("-o")) && strcmp(name, "mount") == 0) {
        const struct completion last = last_of_list(c);
        offer_words(&last, command->usage);
    }
}

/* What stands behind create, list or revoke. */
static void offer_token_word(const struct completion *c, char **words, int count)
{
    const char *file = NULL;
    bool revokes = false;
    for (int i = 0; i + 1 < count; i++) {
        if (strcmp(words[i], "--access-file") == 0)
            file = words[++i];
        else if (strncmp(words[i], "--access-file=", 14) == 0)
            file = words[i] + 14;
        else if (strcmp(words[i], "revoke") == 0)
            revokes = true;
        else if (words[i][0] != '-')
            return;
    }
    if (revokes) {
        offer_grants(c, file);
        return;
    }
    offer_string(c, "create", "let somebody in");
    offer_string(c, "list", "show who may do what");
    offer_string(c, "revoke", "let somebody in no more");
}

static void offer_word(const struct completion *c, const char *command)
{
    static const char *const of_workspaces[] = {"rm",  "shell", "visibility", "policy", "label",
                                                "ttl", "stop",  "start",      NULL};
    static const char *const of_running[] = {"kill", "attach", NULL};
    static const char *const of_all[] = {"logs", "wait", NULL};
    if (is_any(command, of_workspaces)) {
        offer_workspaces(c);
    } else if (is_any(command, of_running)) {
        offer_execs(c, false);
    } else if (is_any(command, of_all)) {
        offer_execs(c, true);
    } else if (strcmp(command, "umount") == 0) {
        offer_mounts(c);
    } else if (strcmp(command, "help") == 0) {
        offer_commands(c);
    } else if (strcmp(command, "connection") == 0) {
        offer_string(c, "ls", "show those there are");
        offer_string(c, "stop", "end those that are held");
    }
}

/* count > 0 words behind the command, the last of which is to be completed. */
static void complete_command(const struct completion *c, const struct cli_command *command,
                             char **words, int count)
{
    struct option_search last = {0};
    for (int i = 0; i + 1 < count; i++) {
        /* Behind it are the words of a command that runs elsewhere. */
        bool own = strcmp(command->name, "exec") == 0 &&
                   (strcmp(words[i], "--") == 0 || (words[i][0] != '-' && !last.takes_value));
        if (own)
            return;
        last = (struct option_search){.word = words[i]};
        if (words[i][0] == '-')
            each_option(c, command->usage, match_option, &last);
    }
    if (last.takes_value)
        offer_value(c, command, &last);
    else if (c->word[0] == '-')
        offer_options(c, command->usage);
    else if (strcmp(command->name, "token") == 0)
        offer_token_word(c, words, count);
    else
        offer_word(c, command->name);
}

int cmd_complete(struct cli *cli, int argc, char **argv)
{
    int at = argc > 1 && strcmp(argv[1], "--") == 0 ? 2 : 1;
    if (at >= argc)
        return CLI_USAGE;
    const struct completion c = {.cli = cli, .word = argv[argc - 1]};
    /* Options before the command are meant for this one, too. */
    bool service = false;
    while (at < argc - 1 && argv[at][0] == '-') {
        service = at == argc - 2 && strcmp(argv[at], "--service") == 0;
        at += cli_take_word(cli, argv[at], at + 1 < argc - 1 ? argv[at + 1] : NULL);
    }
    if (service) {
        offer_services(&c);
        return cli_finish_output(cli, CLI_OK);
    }
    if (at >= argc - 1) {
        if (at == argc - 1 && c.word[0] == '-')
            offer_options(&c, help_options);
        else if (at == argc - 1)
            offer_commands(&c);
        return CLI_OK;
    }
    const struct cli_command *command = cli_find_command(argv[at]);
    if (command && command->summary)
        complete_command(&c, command, argv + at + 1, argc - at - 1);
    return cli_finish_output(cli, CLI_OK);
}
