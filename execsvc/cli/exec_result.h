/* How `berth exec` tells a verdict: its exit status, a line for people, an object for
 * programs. */
#pragma once

#include <jansson.h>

#include "base/buffer.h"
#include "wire/wire.h"

/* Exit statuses that are not the command's; documented and stable. */
enum exec_status {
    EXEC_STATUS_UNKNOWN = 120, /* the outcome is not known */
    EXEC_STATUS_TIMED_OUT = 124,
    EXEC_STATUS_NOT_STARTED = 125,
    EXEC_STATUS_SIGNAL = 128, /* plus the signal's number */
};

int exec_result_status(const struct wire_exec_exit *v);

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

/* {"verdict", "exit_status", "code", "signal", "core", "stage", "error", "errno", "text",
 *  "removed", "left", "means", "duration_ms", "timeout_ms", "fs_seq", "coherence", "stdout",
 *  "stdout_encoding", "stdout_bytes", "stdout_truncated", "stdout_dropped", and the same for
 * stderr}. Fields that do not apply are null. An encoding is "utf-8" or, for bytes that are none,
 * "base64". status: of the program that prints it. NULL: no memory. */
json_t *exec_result_json(const struct wire_exec_exit *v, int status, const struct exec_capture *out,
                         const struct exec_capture *err);
