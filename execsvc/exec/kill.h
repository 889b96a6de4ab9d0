/* Everything that belongs to one command, found and removed: its leader, what descends from it,
 * whatever sessions, groups and parents those have chosen, for as long as any of it lives, which
 * may be long after the command has ended.
 *
 * Two means, chosen when the set is made:
 * - WIRE_MEANS_CGROUP: a cgroup (v2) of its own, which no process of the command was ever outside
 *   of; the kernel kills it whole and says when it is empty;
 * - WIRE_MEANS_SUBREAPER: a process of ours between the service and the leader, which everything
 *   that loses its parent comes back to, and which ends when nothing is left below it. It can be
 *   killed by a command that may signal it; attribution is then lost, and the set says so by
 *   WIRE_MEANS_TREE: what was seen before, the leader's group and session, and what descends from
 *   those. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "confine/cgroup.h"
#include "exec/spawn.h"

struct kill_set;
struct cell;
struct confinement;
struct view;

/* An empty set, to be filled by kill_set_spawn. confinement: borrowed for the set's life; NULL: a
 * subreaper and nothing else. cell: where the leader starts, held for as long; NULL: where this
 * process is. view: of that cell, likewise, or NULL. Without a cgroup where there ought to be one,
 * it is by subreaper. -ENOMEM. */
int kill_set_new(struct confinement *confinement, struct cell *cell, struct view *view,
                 struct kill_set **ret);

/* Kills whatever is left, without waiting for it to be gone, and forgets it. */
void kill_set_free(struct kill_set *set);

/* For everything in it together, before kill_set_spawn. -EOPNOTSUPP: by subreaper, or without the
 * controller. */
int kill_set_limit(struct kill_set *set, const struct cgroup_limits *limits);

/* Starts the leader inside of the set: spawn_start with its place filled in. Once in a set's life.
 * The set keeps ret->pidfd and ret->monitor, which are borrowed then. */
int kill_set_spawn(struct kill_set *set, const struct spawn_options *options,
                   struct spawn_child *ret, enum wire_exec_stage *ret_stage);

/* Readable when kill_set_wait may have an answer. Borrowed; another one when kill_set_wait has
 * found that the process that watched the leader was killed. */
int kill_set_ended_fd(const struct kill_set *set);

/* The process that watches the leader goes on if it was stopped, as a command that may signal it
 * can do. */
void kill_set_wake(const struct kill_set *set);

/* How the leader ended, as waitid says (si_code and si_status). -EAGAIN while it runs; -ECHILD if
 * nobody can say any more: the process that watched it was killed, and the kernel does not tell. */
int kill_set_wait(struct kill_set *set, siginfo_t *ret);

/* Sends a signal to the leader's process group, or to the leader alone while it has none. -ESRCH
 * when the group is gone, or (by subreaper) when the leader has ended. */
int kill_set_signal_group(struct kill_set *set, int signal);

/* Sends a signal to everything. */
void kill_set_signal(struct kill_set *set, int signal);

/* Kills everything that is there now. What forks all the time is held still first, for a bounded
 * time; call again until kill_set_alive says 0. */
void kill_set_kill(struct kill_set *set);

/* True is proof that nothing is left (unless attribution was lost), and final. Cheap, but
 * once after the leader's end, when it may take a few milliseconds. */
bool kill_set_is_empty(struct kill_set *set);

/* How many processes live; 0 when it is empty, and never else. Zombies do not count. What is seen
 * is remembered, for the receipt. */
size_t kill_set_alive(struct kill_set *set);

struct kill_receipt {
    size_t removed; /* of all that were seen alive, those that are gone */
    size_t left;    /* those that live, as of the last look */
    enum wire_means means;
};

void kill_set_receipt(const struct kill_set *set, struct kill_receipt *ret);

/* Stops everything in it from running, or lets it go on. It takes a moment; what is killed is
 * killed all the same. -EOPNOTSUPP: by subreaper, where what is stopped can be told to go on by
 * others. */
int kill_set_freeze(struct kill_set *set, bool frozen);
/* Nothing in it runs. */
bool kill_set_is_frozen(const struct kill_set *set);

/* Whether the kernel killed it whole for want of memory (by cgroup, with a limit). */
bool kill_set_out_of_memory(const struct kill_set *set);

struct kill_set_usage {
    uint64_t cpu_ns;
    uint64_t memory_bytes;
};

/* What it uses: by cgroup all that ever was in it, else those of it that live and that somebody has
 * counted (kill_set_alive), which is done here if nobody has. -ESRCH: nothing lives, or is known.
 */
int kill_set_usage(struct kill_set *set, struct kill_set_usage *ret);
