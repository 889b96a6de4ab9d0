/* From an EXEC to what execve takes: the checks, the working directory, arguments, environment and
 * the places where the program may be. */
#pragma once

#include "exec/command.h"
#include "exec/strings.h"

/* Who commands run as. */
struct request_user {
    char *name; /* NULL without a user database entry */
    char *home;
};

/* -ENOMEM. */
int request_user_read(struct request_user *ret);
void request_user_release(struct request_user *user);

/* What of where they run shows in their environment (see cell_private, cell_proxy_port, view.h). */
struct request_place {
    const char *private; /* NULL: what there is in it is where it ought to be */
    const char *home;    /* NULL: the user's */
    uint16_t proxy_port;
    const char *path; /* of the workspace, when its caller has chosen it; else NULL */
};

/* A hash of what is run, where and with which variables: of the same request it is the same, in
 * every keeper. */
uint64_t request_words(const struct wire_exec *exec);

struct request {
    struct strings argv;
    struct strings environment;
    struct strings programs;
    char *directory; /* relative to the workspace's root */
};

/* A negative errno with *refusal, which is then a NOT_STARTED. Nothing is to be released then. */
int request_parse(const struct request_user *user, const struct request_place *place,
                  const struct wire_exec *exec, struct request *ret,
                  struct command_verdict *refusal);
void request_release(struct request *r);
#define _cleanup_request_ _cleanup_(request_release)
