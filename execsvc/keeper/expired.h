/* Commands whose verdicts became too old, so that who asks is told that there was one and its ID is
 * not run again: a hash of each, the latest EXPIRED_MAX of them, in a file of at most that many
 * numbers. It is not forced to the disk. */
#pragma once

#include <stdbool.h>

#include "base/table.h"

/* Half a MiB on the disk and 1 MiB in memory: stops who runs commands all day from filling either.
 * The oldest make room. */
#define EXPIRED_MAX 65536

struct expired {
    int fd;            /* -1: they are known in memory only */
    uint64_t count;    /* ever added */
    struct table keys; /* to itself */
};

/* Reads what there is in the directory of all commands. Without a file it works as well. */
void expired_open(int exec, struct expired *ret);
void expired_release(struct expired *e);

/* key: not 0. */
void expired_add(struct expired *e, uint64_t key);
bool expired_has(const struct expired *e, uint64_t key);
