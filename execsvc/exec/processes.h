/* What /proc tells of the processes of this machine (or of this pid namespace and those below). */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* pid and start time together name a process for good: the pid alone is used again. */
struct process {
    pid_t pid;
    pid_t parent;
    pid_t group;
    pid_t session;
    uint64_t start;
    uint64_t cpu_ticks; /* its own, and of children that it has waited for */
    uint64_t pages;     /* resident */
    bool ended;         /* a zombie, all of its threads */
    bool stopped;       /* by a signal or a tracer */
    bool member;        /* for the caller */
};

struct processes {
    struct process *items; /* by pid, ascending */
    size_t count;
    size_t allocated;
};

/* -ESRCH when there is none; -errno when /proc cannot be read. */
int process_read(pid_t pid, struct process *ret);

/* All there are. Not a picture of one moment: a process that is born, or whose parent ends, while
 * the list is read may be missing or have a parent that is. */
int processes_read(struct processes *ret);
void processes_release(struct processes *p);
#define _cleanup_processes_ _cleanup_(processes_release)

/* NULL when there is none. */
struct process *processes_find(const struct processes *p, pid_t pid);

/* Makes everything that descends from a member a member. */
void processes_mark_descendants(struct processes *p);

/* How a process ended that somebody else has reaped, as waitid would have said (si_code and
 * si_status); Linux 6.15 and later keep it for who holds a pidfd. -EAGAIN: it lives, or is not
 * reaped yet; -EOPNOTSUPP: the kernel does not say. */
int process_ended_status(int pidfd, siginfo_t *ret);

/* Sends the signal to this very process, never to a later one of its number. -ESRCH when it is
 * gone. */
int process_signal(const struct process *p, int signal);
