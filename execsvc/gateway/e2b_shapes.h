/* What requests of E2B's clients say, and what they are answered, as JSON. Pure. Fields are taken
 * by both names that protobuf's JSON has (symlinkTarget, symlink_target); numbers as numbers or
 * strings; enums as names or numbers; null is as if it were not there; others are ignored. */
#pragma once

#include <jansson.h>

#include "base/failure.h"
#include "wire/wire.h"

/* --- requests --------------------------------------------------------------------------------- */

/* A string, "" when it is not there. -EINVAL: it is something else. Borrowed from object. */
int e2b_text(const json_t *object, const char *name, const char **ret, struct failure *ret_failure);
int e2b_flag(const json_t *object, const char *name, bool *ret, struct failure *ret_failure);
int e2b_number(const json_t *object, const char *name, uint64_t max, uint64_t *ret,
               struct failure *ret_failure);

/* {process: {cmd, args, envs, cwd}, pty?, stdin, tag}; all borrowed from the object. */
struct e2b_start {
    const char *cwd;    /* "" is the home directory */
    struct buffer argv; /* wire lists */
    struct buffer env;
    uint32_t argv_count;
    uint32_t env_count;
    bool stdin_open;
    bool pty;
    uint32_t rows, columns;
};
int e2b_start_read(const json_t *request, struct e2b_start *ret, struct failure *ret_failure);

/* Variables that come before its own. */
int e2b_start_put_before(struct e2b_start *s, json_t *envs, struct failure *ret_failure);
void e2b_start_release(struct e2b_start *s);
#define _cleanup_start_ _cleanup_(e2b_start_release)

/* {process: {pid}}: the number. -EOPNOTSUPP: it is selected by a tag. */
int e2b_selector(const json_t *request, uint32_t *ret, struct failure *ret_failure);

/* {input: {stdin | pty: BASE64}}: appends the bytes. */
int e2b_input(const json_t *request, bool *ret_pty, struct buffer *ret,
              struct failure *ret_failure);

/* 15 or 9, or a name. */
int e2b_signal(const json_t *request, int *ret, struct failure *ret_failure);

/* {pty: {size: {cols, rows}}} */
int e2b_size(const json_t *request, uint32_t *ret_rows, uint32_t *ret_columns,
             struct failure *ret_failure);

/* --- numbers of commands ---------------------------------------------------------------------- */

/* Commands that were started here have numbers of ours, larger than any process's, so that one
 * leads to its ID and never to another command; those of other clients have their process's. */
#define E2B_PID_FIRST 0x40000000u
#define E2B_EXEC_ID_SIZE 16
void e2b_exec_id(uint32_t pid, char ret[E2B_EXEC_ID_SIZE]);
/* 0: it is none of ours. */
uint32_t e2b_exec_pid(struct bytes id);

/* --- answers ---------------------------------------------------------------------------------- */
/* Each appends JSON, without a line's end. -ENOMEM. */

int e2b_event_start(struct buffer *b, uint32_t pid);
enum e2b_stream { E2B_STDOUT, E2B_STDERR, E2B_PTY };
int e2b_event_data(struct buffer *b, enum e2b_stream stream, struct bytes data);

/* Of a verdict that is neither NOT_STARTED nor UNKNOWN nor RUNNING. A command that a signal ended
 * has exitCode -1. */
int e2b_event_end(struct buffer *b, const struct wire_exec_exit *exit);

/* {"code": CODE, "message": TEXT}, as Connect has it, and with a status of HTTP as the code. */
int e2b_error(struct buffer *b, const char *code, const char *text);
int e2b_status_error(struct buffer *b, int status, const char *text);

/* A file: path as its client would write it; target: of a link, or NULL. Bytes that are no UTF-8
 * come as U+FFFD. */
struct e2b_entry {
    const char *path;
    const char *target;
    const struct wire_attr *attr;
    const struct wire_attr *behind; /* of what a link leads to inside the workspace; else NULL */
    json_t *metadata;               /* borrowed, or NULL */
};
json_t *e2b_entry_json(const struct e2b_entry *entry); /* NULL: no memory */

/* A string of what may be no UTF-8. */
json_t *e2b_string(struct bytes text);

/* "file", "dir" or "symlink"; NULL: neither */
const char *e2b_file_type(uint32_t mode);

/* RFC 3339 with nanoseconds, UTC. */
json_t *e2b_time(const struct wire_time *t);
