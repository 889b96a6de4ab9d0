/* Commands of a workspace, over the wire: one that is started or attached to is a call, whose
 * output and end are taken one event at a time, while input goes to it as it takes it. */
#pragma once

#include "base/buffer.h"
#include "gateway/upstream.h"

struct invocation;

/* Starts one (see EXEC). input: its first bytes, and its only ones if input_ends, for a request
 * with WIRE_EXEC_STDIN; copied. Errors of upstream_start. */
int invocation_start(struct upstream *u, const struct wire_exec *request, struct bytes input,
                     bool input_ends, struct invocation **ret, struct failure *ret_failure);

/* Attaches to one (see EXEC_ATTACH). */
int invocation_attach(struct upstream *u, const struct wire_exec_attach *request,
                      struct invocation **ret, struct failure *ret_failure);

enum invocation_event_kind {
    INVOCATION_STARTED,
    INVOCATION_OUTPUT,
    INVOCATION_ENDED, /* nothing follows */
};

struct invocation_event {
    enum invocation_event_kind kind;
    union {
        struct wire_exec_started started;
        struct wire_exec_output output;
        struct wire_exec_exit exit; /* or RUNNING: see EXEC_ATTACH and DETACH */
    };
};

/* The next event, whose views last until the next call of this function; sends input meanwhile. 0;
 * -EAGAIN after timeout_ms (< 0: never) without one; errors of upstream_finish: among them -ENOENT
 * and -ESTALE of EXEC_ATTACH, and -EACCES. */
int invocation_next(struct invocation *c, int timeout_ms, struct invocation_event *ret,
                    struct failure *ret_failure);

/* Input behind what was given before, or its end, once INVOCATION_STARTED has come: waits until all
 * but a window of it is on its way. Output that comes meanwhile waits; if the command waits for
 * that to be taken, so does this: for calls that take no output. -EPIPE: the command has ended. */
int invocation_feed(struct invocation *c, struct bytes data, bool end, struct failure *ret_failure);

int invocation_signal(struct invocation *c, int signal);
int invocation_resize(struct invocation *c, uint32_t rows, uint32_t columns);

/* Lets go of the command, and waits until the service has all that was fed: what it does then is
 * told at EXEC's linger_ms. Frees c. */
int invocation_leave(struct invocation *c, struct failure *ret_failure);

/* Frees c; if it has not ended, as invocation_leave without waiting. NULL is allowed. */
void invocation_free(struct invocation *c);
DEFINE_CLEANUP(struct invocation *, invocation_free);
#define _cleanup_invocation_ _cleanup_(invocation_free_pointer)

/* Nobody will ask for it again: its verdict has arrived. */
void invocation_forget(struct upstream *u, struct bytes workspace, uint32_t workspace_flags,
                       struct bytes id);
