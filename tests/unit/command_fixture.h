/* A command on an event loop, without a service, and what it does. */
#pragma once

#include "unit.h"

#include "base/buffer.h"
#include "confine/confinement.h"
#include "exec/command.h"

/* By which means commands are removed, for all tests of this process. */
extern bool with_cgroup;
extern bool with_namespace;

struct run {
    struct event_base *base;
    struct command *command;
    struct spawn_limits limits;
    char directory[64];
    int root;
    struct confinement *confinement; /* NULL: by subreaper */
    struct cell *cell;
    struct command_verdict verdict;
    bool started;
    bool ended;
    size_t room;        /* what on_room answers */
    size_t taken;       /* input */
    bool stop_at_start; /* leave the loop when it runs */
    struct buffer output[2];
};

enum wire_means means(void);
int set_up(void **state);
int tear_down(void **state);
struct command_events events_of(struct run *run);
int start(struct run *run, const char *const *argv, const struct command_options *extra);
void wait_for_start(struct run *run);
void loop_to_end(struct run *run);
void wait_for_end(struct run *run);
void run_with(struct run *run, const struct command_options *extra, const char *script);
void run_script(struct run *run, const char *script);
void run_program(struct run *run, const char *program);
/* Loops for a while, for what must not happen, or has no event to wait for. */
void loop_for(struct run *run, uint64_t ms);
void assert_output(struct run *run, size_t i, const char *expected);
void assert_exited(const struct run *run, int code);
void assert_not_started(const struct run *run, enum wire_exec_stage stage, int error, int code);
void write_file(const struct run *run, const char *name, const char *text, mode_t mode);
