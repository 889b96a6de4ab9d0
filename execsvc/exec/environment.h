/* What a command is given: its argument array, its environment, and the paths at which its
 * program may be. All of it is made before the fork, since a forked child of a threaded
 * process may not allocate. */
#pragma once

#include "base/failure.h"
#include "exec/strings.h"
#include "wire/wire.h"

/* The kernel's MAX_ARG_STRLEN, which counts the NUL: 131,071 bytes is the longest argument. */
#define ENVIRONMENT_STRING_MAX (128 * 1024 - 1)

#define ENVIRONMENT_DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* The clean base that every command starts from. Strings are borrowed. */
struct environment_base {
    const char *user;
    const char *home;
    struct bytes thread_id; /* BERTH_THREAD_ID, left out if it holds a NUL */
    const char *workspace;  /* BERTH_WORKSPACE: the directory name, which always fits */
    bool terminal;          /* TERM is set */
    const char *tmp;        /* TMPDIR; NULL: not set, that is /tmp */
    const char *working;    /* PWD, which compilers write down; NULL: not set */
    uint16_t proxy_port;    /* of an HTTP proxy on 127.0.0.1, in HTTP_PROXY and the like; 0: none */
};

/* The environment of a command: the base, then the caller's NAME=VALUE strings, of which the
 * last of a name counts. Nothing of this process's own environment is in it. -EINVAL (no
 * '=', empty name, NUL, a name reserved by the service), -E2BIG, -ENOMEM; the failure then
 * names the variable, not its value, which may be a secret. */
int environment_build(const struct environment_base *base, const struct wire_list *caller,
                      struct strings *ret, struct failure *ret_failure);

/* The value of name in an environment, or NULL. */
const char *environment_get(const struct strings *environment, const char *name);

/* The argument array. -EINVAL (empty array, NUL), -E2BIG, -ENOMEM. */
int environment_arguments(const struct wire_list *argv, struct strings *ret,
                          struct failure *ret_failure);

/* The paths to try for a program, in order: itself when it has a '/', else one for each
 * element of path (an empty element is the working directory, as in a shell). -ENOMEM. An
 * empty list: nothing can be found. */
int environment_programs(const char *program, const char *path, struct strings *ret);
