#include "keeper/request.h"

#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "exec/environment.h"
#include "keeper/keeper.h"
#include "names/thread_id.h"

/* Where a command sees its workspace. */
#define WORKSPACE_PATH "/workspace"

#define FLAGS_KNOWN                                                                         \
    (KEEPER_UNSYNCED | KEEPER_STOPPED | WIRE_EXEC_STDIN | WIRE_EXEC_MERGE | WIRE_EXEC_PTY | \
     WIRE_EXEC_DETACH | WIRE_EXEC_KEEP | WIRE_EXEC_DURABLE | WIRE_EXEC_PATH | WIRE_EXEC_PATH_ONLY)

/* A user database entry without a usable home. */
#define HOME_FALLBACK "/"

static uint64_t hash_part(uint64_t hash, const void *data, size_t len)
{
    const uint64_t size = len;
    return hash_bytes(hash_bytes(hash, &size, sizeof size), data, len);
}

uint64_t request_words(const struct wire_exec *exec)
{
    uint64_t hash = hash_part(HASH_START, exec->argv.data, exec->argv.len);
    hash = hash_part(hash, exec->env.data, exec->env.len);
    return hash_end(hash_part(hash, exec->cwd.data, exec->cwd.len));
}

int request_user_read(struct request_user *ret)
{
    const struct passwd *user = getpwuid(geteuid());
    struct request_user u = {
        .name = user ? strdup(user->pw_name) : NULL,
        .home = strdup(user && user->pw_dir[0] == '/' ? user->pw_dir : HOME_FALLBACK),
    };
    /* Without a user database entry, as in a minimal container, USER is not set. */
    if (!u.home || (user && !u.name)) {
        request_user_release(&u);
        return -ENOMEM;
    }
    *ret = u;
    return 0;
}

void request_user_release(struct request_user *user)
{
    free(user->name);
    free(user->home);
    *user = (struct request_user){0};
}

static bool have_nul(struct bytes b)
{
    return b.len > 0 && memchr(b.data, 0, b.len);
}

/* What follows prefix in path, when path is prefix or something under it. */
static bool strip_prefix(struct bytes path, struct bytes prefix, struct bytes *ret)
{
    while (prefix.len > 0 && prefix.data[prefix.len - 1] == '/')
        prefix.len--;
    if (prefix.len == 0 || path.len < prefix.len || memcmp(path.data, prefix.data, prefix.len) != 0)
        return false;
    struct bytes rest = bytes_of(path.data + prefix.len, path.len - prefix.len);
    if (rest.len > 0 && rest.data[0] != '/')
        return false;
    while (rest.len > 0 && rest.data[0] == '/')
        rest = bytes_of(rest.data + 1, rest.len - 1);
    *ret = rest;
    return true;
}

/* The working directory relative to the workspace. Absolute ones are names of the workspace
 * as its commands and its caller know it; there are no others for a working directory. */
static int relative_directory(const struct wire_exec *request, char **ret,
                              struct command_verdict *refusal)
{
    struct bytes cwd = request->cwd;
    if (have_nul(cwd)) {
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, -EINVAL,
                                    "working directory: holds a NUL byte");
        return -EINVAL;
    }
    if (cwd.len > 0 && cwd.data[0] == '/' &&
        !strip_prefix(cwd, bytes_of_string(WORKSPACE_PATH), &cwd) &&
        !strip_prefix(cwd, request->mount_path, &cwd)) {
        command_verdict_not_started(
            refusal, WIRE_STAGE_CWD, -ENOENT,
            "%.*s: %s (working directories are relative to the workspace, or under " WORKSPACE_PATH
            ")",
            (int)(cwd.len < 512 ? cwd.len : 512), (const char *)cwd.data, strerror(ENOENT));
        return -ENOENT;
    }
    char *directory = calloc(1, cwd.len + 1);
    if (!directory) {
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, -ENOMEM, "%s", strerror(ENOMEM));
        return -ENOMEM;
    }
    if (cwd.len > 0)
        memcpy(directory, cwd.data, cwd.len);
    *ret = directory;
    return 0;
}

/* What a shell that had gone there would have in PWD; false: it would find out. */
static bool shell_directory(const char *root, const char *directory, char ret[PATH_MAX])
{
    for (const char *at = directory; *at; at += strspn(at, "/")) {
        size_t len = strcspn(at, "/");
        if ((len == 1 && at[0] == '.') || (len == 2 && at[0] == '.' && at[1] == '.') ||
            (at[len] && (at[len + 1] == '/' || !at[len + 1])))
            return false;
        at += len;
    }
    int len = snprintf(ret, PATH_MAX, "%s%s%s", root, directory[0] ? "/" : "", directory);
    return len < PATH_MAX;
}

static int make_environment(const struct request_user *user, const struct request_place *place,
                            const struct wire_exec *exec, const char *directory,
                            struct strings *ret, struct failure *ret_failure)
{
    char name[THREAD_NAME_MAX + 1], home[PATH_MAX], tmp[PATH_MAX], working[PATH_MAX];
    int r = thread_id_to_name(exec->workspace, name);
    if (r < 0)
        return failure_set(ret_failure, r, "the workspace's thread ID: %s", strerror(-r));
    if (place->private) {
        (void)snprintf(home, sizeof home, "%s/home", place->private);
        (void)snprintf(tmp, sizeof tmp, "%s/tmp", place->private);
    }
    const struct environment_base base = {
        .user = user->name,
        .home = place->private ? home
                : place->home  ? place->home
                               : user->home,
        .tmp = place->private ? tmp : NULL,
        .working = place->path && shell_directory(place->path, directory, working) ? working : NULL,
        .proxy_port = place->proxy_port,
        .thread_id = exec->workspace,
        .workspace = name,
        .terminal = exec->flags & WIRE_EXEC_PTY,
    };
    return environment_build(&base, &exec->env, ret, ret_failure);
}

static int parse_strings(const struct request_user *user, const struct request_place *place,
                         const struct wire_exec *exec, struct request *q,
                         struct failure *ret_failure)
{
    if (exec->flags & ~(uint32_t)FLAGS_KNOWN)
        return failure_set(ret_failure, -EINVAL, "unknown flags");
    int r = environment_arguments(&exec->argv, &q->argv, ret_failure);
    if (r == 0)
        r = make_environment(user, place, exec, q->directory, &q->environment, ret_failure);
    if (r < 0)
        return r;
    r = environment_programs(q->argv.items[0], environment_get(&q->environment, "PATH"),
                             &q->programs);
    return r < 0 ? failure_set(ret_failure, r, "%s", strerror(-r)) : 0;
}

int request_parse(const struct request_user *user, const struct request_place *place,
                  const struct wire_exec *exec, struct request *ret,
                  struct command_verdict *refusal)
{
    _cleanup_request_ struct request q = {0};
    struct failure failure;
    int r = relative_directory(exec, &q.directory, refusal);
    if (r < 0)
        return r;
    r = parse_strings(user, place, exec, &q, &failure);
    if (r < 0) {
        command_verdict_not_started(refusal, WIRE_STAGE_REQUEST, r, "%s", failure.text);
        return r;
    }
    *ret = q;
    q = (struct request){0};
    return 0;
}

void request_release(struct request *r)
{
    strings_release(&r->argv);
    strings_release(&r->environment);
    strings_release(&r->programs);
    free(r->directory);
    *r = (struct request){0};
}
