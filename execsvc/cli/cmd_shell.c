#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/exec_place.h"
#include "cli/exec_result.h"

const char shell_usage[] =
    "usage: berth shell [-e K=V]… [-s PROGRAM] [ID | PATH]\n"
    "       berth shell [-e K=V]… [-s PROGRAM] -w ID [DIR]\n"
    "Opens a login shell in a workspace, in a terminal like this one: that of the working\n"
    "directory, of a PATH on a mount, or of a thread ID. Exits with the shell's status. When the\n"
    "connection is lost the shell waits for it, and goes on where it was. If standard input is\n"
    "no terminal, the shell has none either: it reads commands from there, to the end.\n"
    "\n"
    "  -s, --shell PROGRAM   instead of bash, or sh where there is none\n"
    "  -e, --env K=V         sets a variable; -e K passes on the one set here\n"
    "      --path WHERE      as of exec\n"
    "  -w, --workspace ID    the workspace; the word, if there is one, is a directory in it\n"
    "\n"
    "Examples\n"
    "  cd ~/berth/demo/src && berth shell\n"
    "  berth shell demo\n"
    "  echo 'make && make install' | berth shell demo\n"
    "  berth shell -s /usr/bin/fish ~/berth/demo\n";

/* A workspace's image need not have bash, nor a user database that names a shell. */
static const char find_shell[] = "command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l";

/* What may be no thread ID by mistake: a word that leads somewhere, as people write paths. */
static bool looks_like_path(const char *word)
{
    return word[0] == '/' || strcmp(word, ".") == 0 || strcmp(word, "..") == 0 ||
           strncmp(word, "./", 2) == 0 || strncmp(word, "../", 3) == 0;
}

/* The word: *ret_path is where it is on a mount, or NULL. */
static int take_word(struct cli *cli, const char *word, struct exec_options *o,
                     const char **ret_path)
{
    struct failure failure;
    *ret_path = NULL;
    if (!word)
        return 0;
    if (o->workspace) {
        if (o->directory) {
            (void)cli_usage_error(cli, "%s: the directory is given twice, by -C too", word);
            return -EINVAL;
        }
        o->directory = word;
        return 0;
    }
    struct here found = {0};
    int r = here_find(word, &found, &failure);
    here_release(&found);
    if (r == 0) {
        *ret_path = word;
    } else if (looks_like_path(word)) {
        cli_error(cli, "%s; a thread ID that looks like a path is named with -w", failure.text);
        return r;
    } else {
        o->workspace = word;
    }
    return 0;
}

int cmd_shell(struct cli *cli, int argc, char **argv)
{
    _cleanup_exec_options_ struct exec_options options = {0};
    _cleanup_here_ struct here here = {0};
    _cleanup_buffer_ struct buffer directory = {0};
    struct exec_place place;
    struct failure failure;
    struct client *client;
    if (!exec_hold_standard_descriptors())
        return EXEC_STATUS_NOT_STARTED;
    int r = exec_options_parse(cli, argc, argv, true, &options, &failure);
    if (r == -ECANCELED)
        return CLI_OK;
    if (r < 0) {
        if (failure.text[0])
            (void)cli_usage_error(cli, "%s", failure.text);
        return EXEC_STATUS_NOT_STARTED;
    }
    const char *path;
    if (take_word(cli, options.command_count ? options.command[0] : NULL, &options, &path) < 0)
        return EXEC_STATUS_NOT_STARTED;
    const char *const words[] = {"sh", "-c", find_shell};
    const char *const program[] = {options.shell, "-l"};
    options.command = options.shell ? program : words;
    options.command_count = options.shell ? 2 : 3;
    options.input = true;
    options.terminal = options.ends_at_term = isatty(STDIN_FILENO);
    if (exec_place_find(cli, &options, path, &here, &directory, &place) < 0 ||
        cli_connect_warm(cli, &client) < 0)
        return EXEC_STATUS_NOT_STARTED;
    return exec_run(cli, client, &options, &place);
}
