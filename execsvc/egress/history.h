/* What the proxy has decided, as its log (decision.h) has it, for clients of the service. The log
 * is written by a process that has read what commands and servers chose, so nothing in it is
 * believed to be of any form. */
#pragma once

#include <jansson.h>

#include "base/buffer.h"
#include "wire/wire.h"

/* With the NUL. A workspace's ID is in the log escaped (log_escape), and cut there. */
#define HISTORY_WORKSPACE_SIZE 256

/* As a position: the latest. */
#define HISTORY_LATEST UINT64_MAX

/* Of the log in one answer; stops a client from having the service read for long. */
#define HISTORY_READ_MAX 65536

/* Reads the log of the directory of commands as EGRESS_LOG says: elements into *list, which ret's
 * items point into. shows: whether the client may learn of this workspace, by the log's name for
 * it. A negative errno; a log that is not there is an empty one. */
int history_read(int directory, const struct wire_egress_log *request,
                 bool (*shows)(void *context, const char *workspace), void *context,
                 struct buffer *list, struct wire_egress_decisions *ret);

/* A line of the log: 0, and *ret, an EGRESS_DECISION that points into *ret_object; the caller
 * releases that. -EINVAL: it is about something else, or makes no sense. */
int history_parse(struct bytes line, json_t **ret_object, struct wire_message *ret);
