/* The command line of `berth exec`. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/failure.h"
#include "cli/cli.h"

/* Where the command sees its workspace. */
enum exec_path {
    EXEC_PATH_AUTO,   /* where it is mounted here, if that can be */
    EXEC_PATH_LOCAL,  /* there, or it is not started */
    EXEC_PATH_REMOTE, /* where the service has it */
};

struct exec_options {
    const char *workspace;    /* -w: a thread ID; NULL: that of the working directory */
    const char *directory;    /* -C; NULL: the working directory's in the mount, else the root */
    const char **environment; /* NAME=VALUE; some are owned, see `owned` */
    size_t environment_count;
    char **owned; /* strings made for -e NAME */
    size_t owned_count;
    const char *id;
    const char *shell;   /* of berth shell: the program, or NULL */
    const char *persist; /* --persist, and "0" for --no-persist; NULL: not given */
    uint64_t timeout_ms; /* 0: none */
    enum exec_path path;
    bool input;
    bool terminal;
    bool merge;
    bool json;
    bool detach;
    bool keep;           /* it goes on when this client is gone */
    uint32_t reattach_s; /* for how long a lost connection is made again */
    uint64_t max_output; /* bytes of each stream that the service keeps; 0: as it likes */
    uint64_t memory_max; /* bytes, of all its processes; 0: no limit, as the next */
    uint64_t processes_max;

    /* What is not for the command line of exec. */
    bool only_new;              /* output from now on */
    bool attaches;              /* to the command `id`, instead of starting one */
    bool output;                /* is shown */
    bool follow;                /* to its end */
    bool forget;                /* it need not be kept when its verdict has come */
    bool forwards;              /* signals, and it waits for this reader */
    bool ends_at_term;          /* soon, though it may ignore TERM, as shells in terminals do */
    const char *const *command; /* of a shell: the workspace or path, if there is a word */
    size_t command_count;
};

#define EXEC_REATTACH_DEFAULT_S 60

/* Reads argv (argv[0] is the subcommand; shell: which one). 0; -EINVAL; -ECANCELED: help was asked
 * for and shown; -ENOMEM. An empty failure text: everything has been printed. Strings are borrowed
 * from argv. */
int exec_options_parse(const struct cli *cli, int argc, char **argv, bool shell,
                       struct exec_options *ret, struct failure *ret_failure);
void exec_options_release(struct exec_options *o);
#define _cleanup_exec_options_ _cleanup_(exec_options_release)
