/* The command line of `berth exec`. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/failure.h"
#include "cli/cli.h"

struct exec_options {
    const char *workspace;    /* -w: a thread ID; NULL: that of the working directory */
    const char *directory;    /* -C; NULL: the working directory's in the mount, else the root */
    const char **environment; /* NAME=VALUE; some are owned, see `owned` */
    size_t environment_count;
    char **owned; /* strings made for -e NAME */
    size_t owned_count;
    const char *id;
    const char *persist; /* --persist, and "0" for --no-persist; NULL: not given */
    uint64_t timeout_ms; /* 0: none */
    bool input;
    bool terminal;
    bool merge;
    bool json;
    char **command; /* NULL-terminated, never empty */
    size_t command_count;
};

/* Reads argv (argv[0] is the subcommand). 0; -EINVAL; -ECANCELED: help was asked for and
 * shown; -ENOMEM. An empty failure text: everything has been printed. Strings are borrowed from
 * argv. */
int exec_options_parse(const struct cli *cli, int argc, char **argv, struct exec_options *ret,
                       struct failure *ret_failure);
void exec_options_release(struct exec_options *o);
#define _cleanup_exec_options_ _cleanup_(exec_options_release)
