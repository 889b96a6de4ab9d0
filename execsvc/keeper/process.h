/* The process that the keeper lives in: berthd's own program in another mode. There is one for each
 * root, which the service starts when it first needs it and which outlives it: it ends when nothing
 * runs and no service has been connected for a while. It holds ROOT/exec/.lock, and services find
 * it at ROOT/exec/.socket; both are for the service's own user alone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/failure.h"
#include "base/log.h"
#include "exec/spawn.h"

/* After the last command and the last service. */
#define KEEPER_IDLE_S 5

/* The descriptor at which a keeper that is being started finds its first stream. */
#define KEEPER_FD 3

struct keeper_settings {
    const char *root; /* absolute */
    const char *name; /* of the service, in names of its own on this machine */
    uint64_t keep_s;
    enum log_level log_level;
    const char *cgroup_parent; /* of commands', see cgroup_base_open; NULL: found */
};

/* "berth-" and 16 bytes in hexadecimal: it becomes the name of directories. */
bool keeper_name_is_valid(const char *name);

/* Whether who is connected there is this process's user, or root. */
bool keeper_peer_is_ours(int fd);

/* Runs the keeper; returns when it has nothing left to do, or with a failure. -EBUSY: there is one.
 */
int keeper_process_run(const struct keeper_settings *settings, struct failure *ret_failure);

/* Where there is no keeper, removes what one of this name that was killed has left beyond the
 * root's directory. */
void keeper_sweep(const char *root, const char *name);

/* A stream to the root's keeper, owned by the caller. Whether anybody answers there is found out by
 * the caller. -ENOENT, -ECONNREFUSED: there is none. */
int keeper_find(const char *root, int *ret_fd);

/* Starts one, with these limits, which it gives to commands, and a stream to it. */
int keeper_start(const struct keeper_settings *settings, const struct spawn_limits *limits,
                 int *ret_fd);
