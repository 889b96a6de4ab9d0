/* A cgroup (v2) for each command, below one directory of the service's own. A process is put into
 * its cgroup as it is made, and what it forks is in there too, whatever session or parent it takes;
 * the kernel kills the whole and says when it is empty. Everything here works without any
 * controller; limits need one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/failure.h"

struct cgroup_base;
struct cgroup;

/* Of all that is in one together; 0: none. */
struct cgroup_limits {
    uint64_t memory_bytes; /* what needs more is killed whole */
    uint64_t processes;    /* at a time */
    uint64_t cpu_percent;  /* of one processor */
};

/* Makes (or takes over, killing whatever a service that was killed has left in it) the directory
 * NAME in `parent`, or, when that is NULL, in this process's own cgroup, and tries there everything
 * that the rest needs. -EOPNOTSUPP: no cgroup v2, or a kernel before 5.14; -EACCES, -EROFS …: not
 * ours to write. */
int cgroup_base_open(const char *parent, const char *name, struct cgroup_base **ret,
                     struct failure *ret_failure);

/* Moves this process into a cgroup NAME below the one that it is in, whose path is *ret then: with
 * no process of its own it can hand controllers down, to what is made beside NAME. For a process
 * that was given its cgroup for itself, before it has made others. -EOPNOTSUPP: no cgroup v2;
 * -EACCES, -EROFS …: not ours to write. */
int cgroup_make_room(const char *name, char **ret, struct failure *ret_failure);

/* Removes the directory, and the cgroups in it that are empty. */
void cgroup_base_free(struct cgroup_base *base);

/* Removes what a process that was killed has left at this path (cgroup_base_path), and kills what
 * is in it. The directory's name must be this one. Nobody may be using it. */
void cgroup_remove_left(const char *path, const char *name);

/* Tries again to remove those that were not empty when they were freed. Cheap when there are none.
 */
void cgroup_base_sweep(struct cgroup_base *base);

/* As a path, for people. */
const char *cgroup_base_path(const struct cgroup_base *base);

/* What limits there can be: the controllers that are there for the commands' cgroups. */
bool cgroup_base_limits_memory(const struct cgroup_base *base);
bool cgroup_base_limits_pids(const struct cgroup_base *base);
bool cgroup_base_limits_cpu(const struct cgroup_base *base);

/* For people: why that controller is not there for the commands' cgroups. */
void cgroup_base_explain(const struct cgroup_base *base, const char *controller,
                         struct failure *ret_failure);

/* A new one, empty. One is kept ready for the next command. */
int cgroup_new(struct cgroup_base *base, struct cgroup **ret);

/* Removes it as soon as it is empty: now, or by a later sweep. */
void cgroup_free(struct cgroup *cgroup);

/* A descriptor of its directory, for clone3. Borrowed. */
int cgroup_fd(const struct cgroup *cgroup);

/* -EOPNOTSUPP without the controller. A command of which one process is killed for want of memory
 * is killed whole. */
int cgroup_limit_memory(struct cgroup *cgroup, uint64_t bytes);
int cgroup_limit_pids(struct cgroup *cgroup, uint64_t count);

/* percent: of one processor. In each tenth of a second it may run for that long, and waits for the
 * next one when it has. */
int cgroup_limit_cpu(struct cgroup *cgroup, uint64_t percent);

/* Calls `member` for each process in it or below, in no order; a process that moves or ends
 * meanwhile may be left out, or named twice. A negative errno. */
int cgroup_members(const struct cgroup *cgroup, void (*member)(void *context, pid_t pid),
                   void *context);

/* 1 or 0: whether there is a process in it or below that is no zombie. A negative errno. */
int cgroup_populated(const struct cgroup *cgroup);

/* Stops everything in it from running, or lets it go on. Takes effect in a while, and does not
 * hold what is stuck in the kernel; SIGKILL works as ever. */
int cgroup_freeze(struct cgroup *cgroup, bool frozen);
bool cgroup_frozen(const struct cgroup *cgroup);

/* Kills everything in it at once; what is forked at that moment is killed too. */
int cgroup_kill(struct cgroup *cgroup);

/* True if the kernel killed it whole, or is about to, since it needed more memory than its limit.
 */
bool cgroup_out_of_memory(const struct cgroup *cgroup);

/* Time on processors of all that ever was in it. A negative errno. */
int cgroup_cpu_ns(const struct cgroup *cgroup, uint64_t *ret);

/* What it is charged with: -ENOENT without the controller. */
int cgroup_memory(const struct cgroup *cgroup, uint64_t *ret);

/* Puts a process into the cgroup whose directory is fd, where clone3 could not put it there; 0: the
 * calling one. Async-signal-safe. */
int cgroup_join(int fd, pid_t pid);
