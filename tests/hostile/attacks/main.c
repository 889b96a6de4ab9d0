/* Tries attacks, one a line of standard input: a name for the answer, an attack, and what it is to
 * be told, with spaces between. Each is a process of its own. Prints the name and what came of it:
 * "through", the name of an errno, "nothing", "killed", or "slow". */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attack.h"

#define ARGS_MAX 8
#define SECONDS 10

/* Exit statuses of one: its errno, or these. */
#define NO_SUCH_ATTACK 254

static const struct attack *const lists[] = {
    attacks_of_number,     attacks_on_descriptors, attacks_on_devices,    attacks_on_ipc,
    attacks_on_kernel,     attacks_on_mounts,      attacks_on_namespaces, attacks_on_paths,
    attacks_on_privileges, attacks_on_processes,   attacks_on_signals,    attacks_on_sockets,
    attacks_on_terminals,
};

static const struct attack *find(const char *name)
{
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const struct attack *a = lists[i]; a->name; a++)
            if (strcmp(a->name, name) == 0)
                return a;
    return NULL;
}

static _Noreturn void try_it(const char *name, char **args, int count)
{
    const struct attack *a = find(name);
    if (!a || a->args != count)
        _exit(NO_SUCH_ATTACK);
    (void)alarm(SECONDS);
    _exit(-a->run(args));
}

static void tell(const char *label, int status)
{
    const char *text = "killed";
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_SUCH_ATTACK)
        text = "no such attack";
    else if (WIFEXITED(status))
        text = WEXITSTATUS(status) == 0         ? "through"
               : WEXITSTATUS(status) == ENODATA ? "nothing"
                                                : strerrorname_np(WEXITSTATUS(status));
    else if (WTERMSIG(status) == SIGALRM)
        text = "slow";
    (void)printf("%s %s\n", label, text ? text : "?");
    (void)fflush(stdout);
}

int main(void)
{
    char *line = NULL;
    size_t allocated = 0;
    while (getline(&line, &allocated, stdin) > 0) {
        char *words[ARGS_MAX + 2] = {NULL};
        int count = 0;
        for (char *rest = line, *word; count < ARGS_MAX + 2 && (word = strsep(&rest, " \n"));)
            if (*word)
                words[count++] = word;
        if (count < 2)
            continue;
        pid_t pid = fork();
        if (pid == 0)
            try_it(words[1], words + 2, count - 2);
        int status = NO_SUCH_ATTACK << 8;
        while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        tell(words[0], status);
    }
    free(line);
    return 0;
}
