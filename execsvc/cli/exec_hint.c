#include "cli/exec_hint.h"

#include <string.h>

/* Of the shell itself: there are no programs of these names, or not everywhere. */
static const char *const builtins[] = {
    ".",    "alias", "bg",     "cd",    "declare", "eval",  "exec", "exit",  "export", "fg",
    "for",  "if",    "jobs",   "local", "popd",    "pushd", "read", "set",   "shift",  "source",
    "trap", "type",  "ulimit", "umask", "unalias", "unset", "wait", "while",
};

static bool is_for_a_shell(const char *word)
{
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
        if (strcmp(word, builtins[i]) == 0)
            return true;
    return strpbrk(word, " \t\n;|&<>") != NULL || (word[0] != '=' && strchr(word, '='));
}

const char *exec_hint(const struct exec_options *o)
{
    if (o->attaches || o->command_count == 0)
        return "";
    if (o->command_count > 1 && strcmp(o->command[1], "--") == 0)
        return " (a workspace? It is named by -w, before the command)";
    return is_for_a_shell(o->command[0]) ? " (for a shell line: sh -c '…')" : "";
}

int exec_hint_workspace(const struct exec_options *o, struct buffer *text)
{
    const char *at = o->workspace ? strrchr(o->workspace, '@') : NULL;
    if (!at || at == o->workspace || !at[1])
        return 0;
    return buffer_printf(text, " (NAME@SERVICE is a name in a mount: berth --service %s … -w %.*s)",
                         at + 1, (int)(at - o->workspace), o->workspace);
}
