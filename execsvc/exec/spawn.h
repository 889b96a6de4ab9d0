/* Starting one child process: fork, set-up, execve, with every failure of the set-up reported
 * as {stage, errno} over a close-on-exec pipe. Never blocks on what the child does: the
 * report is read when its descriptor becomes readable. */
#pragma once

#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "exec/monitor.h"
#include "wire/wire.h"

/* What a command gets that this process may have changed for itself. */
struct spawn_limits {
    struct rlimit nofile;
    struct rlimit core;
    int nice;
    bool reset_oom_score; /* the service is protected from the OOM killer; commands are not */
};

/* The limits in force now, to be read before the service raises its own. */
void spawn_limits_read(struct spawn_limits *ret);

/* For a child that is to be this program in another role: gives it back those limits, the priority
 * and no blocked signal, and becomes it. Ends with status 127 otherwise. Async-signal-safe. */
_Noreturn void spawn_self(const struct spawn_limits *limits, char *const argv[]);

/* Lets the calling thread, and what it forks, run before commands that leave no processor idle, so
 * that timeouts and kills are on time; commands get their own priority back. Where that is not
 * permitted nothing happens. */
void spawn_raise_priority(void);

/* As many descriptors as the hard limit has; commands get their own limit back. */
void spawn_raise_descriptors(void);

struct restraint;
struct sandbox;

/* Where the child begins its life. */
struct spawn_place {
    int cgroup;                        /* directory of its cgroup, or -1 */
    bool monitored;                    /* below a monitor of its own; no cgroup then */
    const struct sandbox *sandbox;     /* NULL: among this process's own */
    int mounts;                        /* see sandbox_join; -1 without a sandbox */
    const struct restraint *restraint; /* NULL: none */
};

/* All borrowed until spawn_start returns. */
struct spawn_options {
    char *const *programs; /* tried in order, as a shell searches PATH */
    char *const *argv;
    char *const *envp;
    int root;              /* directory that cwd is relative to, and beneath */
    const char *cwd;       /* "" is root itself */
    const char *root_path; /* of root in a sandbox; NULL: as it is here */
    int streams[3];        /* become descriptors 0, 1 and 2; the same one may stand several times */
    bool terminal;         /* streams[0] is a terminal, and becomes the controlling one */
    const struct spawn_limits *limits;
    const struct spawn_place *place; /* NULL: neither cgroup nor monitor */
};

/* Descriptors are owned by the caller. */
struct spawn_child {
    pid_t pid;  /* leader of a new session and process group, both of this number */
    int pidfd;  /* readable when the child has ended */
    int report; /* readable when spawn_report_read has an answer */
    struct monitor monitor;
};

#define SPAWN_CHILD_NONE \
    ((struct spawn_child){.pid = -1, .pidfd = -1, .report = -1, .monitor = MONITOR_NONE})

/* Starts the child. 0, or a negative errno and the stage (PIPES, FORK or CONFINE). The caller
 * reaps: waitid(P_PIDFD) for the child or, if there is one, its monitor, which reaps the child. */
int spawn_start(const struct spawn_options *options, struct spawn_child *ret,
                enum wire_exec_stage *ret_stage);

struct spawn_report {
    enum wire_exec_stage stage; /* NONE: the program runs (or the child was killed before) */
    int error;                  /* negative errno */
    uint32_t program;           /* EXECVE: index in programs of the one that failed; CONFINE (with
                                   exists) and ATTEST: see restraint_step_name */
    bool exists; /* EXECVE with -ENOENT: the file is there, but what it needs to run is not */
};

/* 0 and *ret, or -EAGAIN while the set-up goes on. */
int spawn_report_read(int report, struct spawn_report *ret);
