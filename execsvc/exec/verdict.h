/* A verdict as programs are told it: an exit status, and an object. */
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

int verdict_status(const struct wire_exec_exit *v);

/* {"verdict", "exit_status", "code", "signal", "core", "stage", "error", "errno", "text",
 *  "removed", "left", "means", "duration_ms", "timeout_ms", "fs_seq", "coherence"}. Fields that do
 * not apply are null. status: of the program that tells it. NULL: no memory. */
json_t *verdict_json(const struct wire_exec_exit *v, int status);

/* Adds {NAME, "NAME_encoding", "NAME_bytes", "NAME_truncated", "NAME_dropped"}: output of which
 * there were so many bytes, the last so many not kept. -ENOMEM. */
int verdict_add_output(json_t *object, const char *name, struct bytes data, uint64_t bytes,
                       uint64_t dropped);

/* Output as a string, in an encoding: "utf-8" or, for bytes that are none, "base64". NULL: no
 * memory. */
json_t *verdict_output_json(struct bytes data, const char **ret_encoding);
