/* How `berth exec` tells a verdict beside its exit status: a line for people, an object for
 * programs. */
#pragma once

#include <jansson.h>

#include "exec/verdict.h"

/* The line for standard error, without a newline; empty when the command has had its own say (it
 * exited, or a signal ended it) and every mount has seen what it did. Control characters in it
 * are escaped. -ENOMEM. */
int exec_result_text(const struct wire_exec_exit *v, struct buffer *ret);

/* Output kept for --json. */
struct exec_capture {
    struct buffer data;
    uint64_t bytes; /* all there were */
};

/* Bytes of each stream that --json keeps; a command that prints for ever must not use up the
 * caller's memory. */
#define EXEC_CAPTURE_MAX (UINT64_C(16) * 1024 * 1024)

int exec_capture_append(struct exec_capture *c, struct bytes data);

/* verdict_json with the output that was kept. NULL: no memory. */
json_t *exec_result_json(const struct wire_exec_exit *v, int status, const struct exec_capture *out,
                         const struct exec_capture *err);
