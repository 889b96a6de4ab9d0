#include "cli/help.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/distance.h"

/* What people type who come from other tools. */
static const struct {
    const char *word;
    const char *command;
} habits[] = {
    {"stat", "status"},     {"list", "ls"},          {"delete", "rm"},       {"remove", "rm"},
    {"del", "rm"},          {"new", "create"},       {"add", "create"},      {"init", "create"},
    {"unmount", "umount"},  {"run", "exec"},         {"sh", "shell"},        {"enter", "shell"},
    {"log", "logs"},        {"jobs", "ps"},          {"info", "status"},     {"check", "doctor"},
    {"diagnose", "doctor"}, {"prune", "visibility"}, {"hide", "visibility"},
};

const char help_options[] =
    "  --url URL           the service: unix:/path, https://host:port,\n"
    "                      http://loopback:port, or 'exec:COMMAND …', whose input\n"
    "                      and output are the stream\n"
    "  --service NAME      the service that the configuration file calls so, with\n"
    "                      its own token and certificates\n"
    "  --token-file FILE   bearer token for https and http (its first line)\n"
    "  --ca-file FILE      authority that signed the service's certificate\n"
    "  --cert-file FILE    our own certificate, if the service asks for one\n"
    "  --key-file FILE     and its key\n"
    "  --config FILE       instead of ~/.config/berth/berth.json\n"
    "  --persist SECONDS   how long berth exec holds a connection for the next\n"
    "                      command (600)\n"
    "  --no-persist        not at all\n"
    "  --version\n";

void help_print_overview(void)
{
    (void)fputs("usage: berth [OPTION…] COMMAND [ARG…]\n"
                "Works with the workspaces of a Berth service: directories on another machine or\n"
                "in a container, mounted here, in which commands run beside the files.\n"
                "\n"
                "Commands\n",
                stdout);
    for (const struct cli_command *c = cli_commands; c->name; c++)
        if (c->summary)
            (void)printf("  %-10s %s\n", c->name, c->summary);
    (void)fputs("\n"
                "Options, before the command\n",
                stdout);
    (void)fputs(help_options, stdout);
    (void)fputs("\n"
                "Each has a variable too: BERTH_URL, BERTH_SERVICE, BERTH_TOKEN_FILE (or\n"
                "BERTH_TOKEN), BERTH_CA_FILE, BERTH_CERT_FILE, BERTH_KEY_FILE. Without any of "
                "them, berth talks\n"
                "to the service of this machine.\n"
                "\n"
                "To begin\n"
                "  berth create demo                 make a workspace\n"
                "  berth mount ~/berth               see all of them as directories\n"
                "  cd ~/berth/demo\n"
                "  berth exec -- make                run a command beside the files\n"
                "  berth doctor                      when something does not work\n"
                "\n"
                "`berth help COMMAND` explains one command, with examples.\n",
                stdout);
}

void help_print_command(const struct cli_command *command)
{
    (void)fputs(command->usage, stdout);
}

struct nearest {
    const char *command;
    size_t edits;
};

static void consider(struct nearest *n, const char *word, const char *name, const char *command)
{
    size_t edits = word_distance(word, name);
    /* The start of a name, as people abbreviate, is as near as one edit. */
    if (strlen(word) >= 2 && strncmp(name, word, strlen(word)) == 0)
        edits = edits < 1 ? edits : 1;
    /* Half of the word changed is no likeness. */
    if (edits < n->edits && edits * 2 <= strlen(name))
        *n = (struct nearest){command, edits};
}

const char *help_suggest(const char *word)
{
    struct nearest n = {.edits = SIZE_MAX};
    for (const struct cli_command *c = cli_commands; c->name; c++)
        if (c->summary)
            consider(&n, word, c->name, c->name);
    for (size_t i = 0; i < ARRAY_SIZE(habits); i++)
        consider(&n, word, habits[i].word, habits[i].command);
    return n.command;
}
