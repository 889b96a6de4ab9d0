/* The requests by which a command is started and attached to. */
#pragma once

#include "base/buffer.h"
#include "cli/exec_options.h"
#include "cli/exec_run.h"
#include "wire/wire.h"

struct exec_request {
    struct wire_message message;
    /* private: what it refers to */
    struct buffer argv, env;
};

/* EXEC. Strings are borrowed. -ENOMEM, -EOVERFLOW. */
int exec_request_start(const struct exec_options *o, const struct exec_place *place, const char *id,
                       struct exec_request *ret);

/* EXEC_ATTACH, from these offsets. */
void exec_request_attach(const struct exec_place *place, const char *id, uint32_t flags,
                         uint64_t from_stdout, uint64_t from_stderr, struct exec_request *ret);

void exec_request_release(struct exec_request *r);
#define _cleanup_exec_request_ _cleanup_(exec_request_release)
