/* Each message that touches files, as a client sends it to names that somebody else swaps. */
#pragma once

#include "store_fixture.h"

/* A name that is outside alone. */
#define RACE_OUTSIDE_NAME "only-outside"

/* Of the names that messages use those that end in 0 are there outside, to be opened or removed,
 * and those that end in 1 are not, to be made. */
#define RACE_OUTSIDE_FILES "victim", "file0", "link0", "hard0", "moved0", "node0", RACE_OUTSIDE_NAME
#define RACE_OUTSIDE_DIRECTORY "directory0"

struct race_scene {
    struct fixture *f;
    uint64_t d, e;     /* d, d/e */
    uint64_t victim;   /* d/e/victim as it was before the race */
    uint64_t target;   /* that, or what is found by its name now */
    uint64_t handle;   /* on target, for the messages that need one */
    unsigned round;    /* counts */
    unsigned answered; /* positive replies */
    unsigned refused;
};

/* Sends the i-th kind of message, with all that it needs, and checks the answers: ordinary errors,
 * and nothing of a canary. False after the last. */
bool race_message(struct race_scene *s, size_t i);

/* False for a message that touches files and is not among them. */
bool race_covers(enum wire_type type);
