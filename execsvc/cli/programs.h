/* Finding and running other programs. */
#pragma once

#include "base/buffer.h"

/* The absolute path of a program that can be run: beside this one, where an installation or a
 * build directory puts it, where it was installed, or in PATH. Owned by the caller. -ENOENT,
 * -ENOMEM. */
int program_find(const char *name, char **ret);

/* The program that connects over the network (cli_need_network): beside this one, where it was
 * installed, or where an installation has it as seen from this one, so that a prefix can be moved.
 * Owned by the caller. -ENOENT, -ENOMEM. */
#define PROGRAM_NETWORK "berth-network"
extern const char program_network_place[]; /* for sentences */
int program_find_network(char **ret);

/* The berthd that needs no libraries, to be put into containers: BERTH_STATIC_BERTHD if that is set
 * (an absolute path), else as program_find_network, and beside this one in a build directory. Not
 * every build has it. Owned by the caller. -ENOENT, -ENOMEM. */
#define PROGRAM_STATIC_BERTHD "berthd-static"
int program_find_static_berthd(char **ret);

/* As program_find, in PATH and the directories of system programs alone. */
int program_find_system(const char *name, char **ret);

/* Runs a program to its end with the given argv, standard input empty, and standard output and
 * error, at most PROGRAM_OUTPUT_MAX bytes, in *ret (may be NULL). Its exit status (>= 0; 128+n
 * for a signal), or why it could not be run. */
#define PROGRAM_OUTPUT_MAX 16384
int program_run(const char *path, char *const *argv, struct buffer *ret);
