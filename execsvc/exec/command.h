/* One running command on an event loop: its streams, its end, its timeout, its removal. It
 * knows nothing of networks or clients, so that it can run in a process of its own.
 *
 * Flow control is by refusal: output is read from the command only as far as the owner has
 * room, so a slow reader stops its own command at a full pipe and costs no memory here.
 *
 * The command ends when its leader has ended and its streams are at their end, or 100 ms
 * later if processes that the leader left behind hold them open. What was in the pipes
 * when the leader ended is delivered in any case, however long the owner takes.
 *
 * The process must ignore SIGPIPE. */
#pragma once

#include <event2/event.h>

#include "exec/kill.h"
#include "exec/spawn.h"

struct cell;
struct command;
struct confinement;
struct view;

/* All borrowed until command_start returns. */
struct command_options {
    char *const *programs; /* see struct spawn_options */
    char *const *argv;
    char *const *envp;
    int root;
    const char *cwd;
    uint32_t flags; /* WIRE_EXEC_STDIN, WIRE_EXEC_MERGE, WIRE_EXEC_PTY */
    uint32_t rows;  /* of the terminal; 0: 24 by 80 */
    uint32_t columns;
    uint64_t timeout_ms;           /* 0: none */
    const char *timeout_text;      /* of the verdict TIMED_OUT, or NULL; a constant */
    struct cgroup_limits together; /* see kill_set_limit */
    const struct spawn_limits *limits;
    struct confinement *confinement; /* NULL: see kill_set_new. Must outlive the command */
    struct cell *cell;               /* see kill_set_new */
    struct view *view;
    const char *root_path; /* see struct spawn_options */
};

/* How it ended. Fields as in EXEC_EXIT. text is bytes: paths in it are as they were given. */
struct command_verdict {
    enum wire_verdict verdict;
    int code; /* EXITED: the status; NOT_STARTED: what a shell would report, 126 or 127, or 125 */
    int signal;
    bool core;
    enum wire_exec_stage stage;
    int error;             /* negative errno */
    size_t removed;        /* of a termination's receipt, as the next two */
    size_t left;           /* processes that did not die */
    enum wire_means means; /* NONE: nothing was terminated */
    uint64_t stdout_bytes;
    uint64_t stderr_bytes;
    uint64_t duration_ns; /* from the fork to the end of the leader */
    uint64_t timeout_ms;
    char text[1024];
};

/* Fills in a NOT_STARTED verdict. error: negative errno. */
void command_verdict_not_started(struct command_verdict *v, enum wire_exec_stage stage, int error,
                                 const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Made from the event loop, never from within command_start. The command may be freed in
 * `ended` and in no other callback. */
struct command_events {
    /* execve has succeeded. Not called for a command that did not start. */
    void (*started)(void *context, pid_t pid);
    /* How many bytes of this stream's output can be taken now. 0: none are read until
     * command_resume. */
    size_t (*room)(void *context, uint32_t stream);
    /* At most room() bytes, at most WIRE_CHUNK_MAX. offset counts from 0 in each stream (1 or
     * 2). */
    void (*output)(void *context, uint32_t stream, uint64_t offset, struct bytes data);
    /* bytes of command_input have been passed on, or dropped because nobody reads them. */
    void (*input_taken)(void *context, size_t bytes);
    /* Last callback. All output has been delivered. */
    void (*ended)(void *context, const struct command_verdict *verdict);
    void *context;
};

/* Starts it. A negative errno and the verdict (NOT_STARTED; -ENOMEM as well) when that fails
 * at once; later failures come through `ended`. */
int command_start(struct event_base *base, const struct command_options *options,
                  const struct command_events *events, struct command **ret,
                  struct command_verdict *ret_verdict);

/* Kills what still runs, children that the leader left behind too, reaps, closes, frees. No
 * callback is made. */
void command_free(struct command *c);

/* How many processes that belong to it live, after its end too: what its leader left behind goes on
 * until command_free. */
size_t command_processes(struct command *c);

/* Everything that belongs to it, to be terminated after its end. Borrowed. */
struct kill_set *command_kill_set(struct command *c);

/* There is room again. */
void command_resume(struct command *c);

/* Bytes of output delivered so far, of stream 1 or 2. */
uint64_t command_output_bytes(const struct command *c, uint32_t stream);

/* From now on output is read and dropped; its bytes are still counted. */
void command_discard_output(struct command *c);

/* Bytes for standard input; end closes it behind them. Kept until the command reads: the
 * caller bounds what it hands in by input_taken. -EPIPE: started without WIRE_EXEC_STDIN;
 * -ENOMEM; nothing was taken over then. */
int command_input(struct command *c, struct bytes data, bool end);

/* Sends a signal to the process group. TSTP becomes STOP: the group has no parent in its
 * session, and the kernel ignores TSTP then. -EINVAL for a number that is none. */
int command_signal(struct command *c, uint32_t signal);

/* -ENOTTY without a terminal. */
int command_resize(struct command *c, uint32_t rows, uint32_t columns);

/* Ends it for a reason of ours: TERM to all that belongs to it, after a grace of 2 s KILL. The
 * verdict is `why` with text, unless the leader has ended before. */
void command_terminate(struct command *c, enum wire_verdict why, const char *text);

/* The same with another grace. */
void command_terminate_within(struct command *c, uint64_t grace_ms, enum wire_verdict why,
                              const char *text);
