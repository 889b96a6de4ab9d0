/* A command that runs elsewhere (exec_run.h), between the files that are about it. */
#pragma once

#include <event2/event.h>

#include "cli/exec_input.h"
#include "cli/exec_result.h"
#include "cli/exec_run.h"
#include "cli/exec_terminal.h"
#include "cli/local_output.h"
#include "client/connector.h"

/* Those of ours that are the command's. */
#define EXEC_SIGNALS 7

struct exec_run;

struct exec_stream {
    struct exec_run *run;
    struct local_output *output;
    struct exec_capture capture; /* with --json; output then carries the object alone */
    uint64_t received;           /* the offset that comes next */
    uint64_t missing;            /* below it, bytes that were not kept */
    bool anywhere;               /* what comes first is where it begins */
    uint32_t number;
};

struct exec_run {
    struct cli *cli;
    const struct exec_options *options;
    const struct exec_place *place;
    char id[WIRE_EXEC_ID_MAX + 1];
    struct event_base *base;
    struct client *client; /* NULL: lost, and being made again */
    uint64_t tag;
    uint64_t epoch; /* of the service that was first asked */
    uint64_t setup_ns;
    const char *way;
    struct connector *connector;
    struct event *connected;
    struct event *patience;
    struct event *notice;
    int event_fd;
    char loss[256];
    uint64_t pending_signals; /* typed while there was no connection */
    struct exec_stream streams[2];
    size_t owed; /* credit to give back */

    bool started;
    bool finished; /* no more messages; only local output is waited for */
    bool failed;   /* local output failed: never a success */
    int status;

    struct exec_input *input; /* NULL: none */
    struct buffer path;       /* where it sees its workspace, as a string; empty: not known */
    struct buffer path_text;

    struct exec_terminal terminal;
    struct event *signals[EXEC_SIGNALS];
    struct event *stop;
    uint64_t stop_latest_ns; /* see exec_signals_stop_soon */
    struct event *grace;     /* of a TERM; NULL: the command takes the time it takes */
    int interrupts;
    int terminations;
};

void exec_run_error(const struct exec_run *run, const char *what, const char *why);

/* Ends when what is to be written here has been. */
void exec_run_finish(struct exec_run *run, int status);

/* Ends now: nobody knows how the command did. */
void exec_run_give_up(struct exec_run *run, const char *why);

/* Nothing has come from the service since the connection was lost. */
bool exec_run_is_away(const struct exec_run *run);

/* To the command; without a connection, when there is one again. */
void exec_run_signal(struct exec_run *run, int signal);

/* --- exec_signals.c ------------------------------------------------------------------------- */

/* Events for those that are not ignored. -ENOMEM. */
int exec_signals_begin(struct exec_run *run);

/* Tells the command the size of our terminal. */
void exec_signals_send_size(struct exec_run *run);

/* This process stops when nothing has come for a moment. */
void exec_signals_stop_soon(struct exec_run *run);
