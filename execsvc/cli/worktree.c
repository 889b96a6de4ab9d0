#include <fcntl.h>
#include <ftw.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "cli/create_source.h"

extern char **environ;

/* What git is told of another repository than the one that it is asked about here. */
static const char *const repository_variables[] = {"GIT_DIR",
                                                   "GIT_WORK_TREE",
                                                   "GIT_INDEX_FILE",
                                                   "GIT_OBJECT_DIRECTORY",
                                                   "GIT_COMMON_DIR",
                                                   "GIT_NAMESPACE",
                                                   "GIT_ALTERNATE_OBJECT_DIRECTORIES",
                                                   "GIT_PREFIX",
                                                   "GIT_CEILING_DIRECTORIES"};

/* Runs git in a directory; what it says on standard error is for the user, unless quiet. *ret: its
 * output's first line; NULL: its output is dropped. Its exit status, or a negative errno. */
static int git(const char *directory, const char *const *words, bool quiet, char **ret)
{
    const char *argv[32] = {"git", "-C", directory};
    size_t count = 3;
    for (; *words && count < ARRAY_SIZE(argv) - 1; words++)
        argv[count++] = *words;
    _cleanup_close_ int reads = -1, writes = -1;
    int ends[2], status;
    pid_t pid;
    posix_spawn_file_actions_t actions;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    reads = ends[0];
    writes = ends[1];
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, writes, STDOUT_FILENO);
    (void)posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (quiet)
        (void)posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int r = -posix_spawnp(&pid, "git", &actions, NULL, (char *const *)(uintptr_t)argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    close_fd(&writes);
    if (r < 0)
        return r;
    _cleanup_free_ char *line = NULL;
    size_t allocated = 0;
    FILE *output = fdopen(reads, "r");
    ssize_t len = output ? getline(&line, &allocated, output) : -1;
    if (output) {
        (void)take_fd(&reads);
        while (fgetc(output) != EOF)
            ;
        (void)fclose(output);
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    if (ret && len > 0 && line[len - 1] == '\n')
        line[len - 1] = '\0';
    if (ret)
        *ret = len > 0 ? take_ptr(line) : NULL;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
#define GIT(directory, ret, ...) \
    git(directory, (const char *const[]){__VA_ARGS__, NULL}, false, ret)
#define GIT_QUIET(directory, ret, ...) \
    git(directory, (const char *const[]){__VA_ARGS__, NULL}, true, ret)

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)remove(path);
    return 0;
}

void worktree_remove(char *path)
{
    if (!path)
        return;
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    free(path);
}

/* Passwords and tokens are the user's, not the agent's. */
static void strip_credentials(char *url)
{
    char *host = strstr(url, "://");
    char *at = host ? strchr(host + 3, '@') : NULL;
    char *slash = host ? strchr(host + 3, '/') : NULL;
    if (strncmp(url, "http", 4) == 0 && at && (!slash || at < slash))
        memmove(host + 3, at + 1, strlen(at + 1) + 1);
}

/* REF is what stands behind the last '@', if the whole is no directory. */
static int split(const char *spec, char **ret_repository, char **ret_ref)
{
    const char *at = strrchr(spec, '@');
    bool whole = access(spec, F_OK) == 0;
    *ret_repository = !whole && at ? strndup(spec, (size_t)(at - spec)) : strdup(spec);
    *ret_ref = !whole && at ? strdup(at + 1) : NULL;
    return !*ret_repository || (!whole && at && !*ret_ref) ? -ENOMEM : 0;
}

/* The commit, and the branch if it is one's. */
static int resolve(struct cli *cli, const char *repository, const char *ref, char **ret_commit,
                   char **ret_branch)
{
    _cleanup_free_ char *commit = NULL, *branch = NULL, *name = NULL, *full = NULL;
    if (ref && ref[0] == '-') {
        cli_error(cli, "%s: no such commit, branch or tag", ref);
        return -EINVAL;
    }
    if (asprintf(&name, "%s^{commit}", ref ? ref : "HEAD") < 0)
        return -ENOMEM;
    if (access(repository, X_OK) < 0) {
        int error = errno;
        cli_error(cli, "%s: %s", repository, strerror(error));
        return -error;
    }
    int r = GIT_QUIET(repository, &commit, "rev-parse", "--verify", "--quiet", "--end-of-options",
                      name);
    if (r == -ENOENT) {
        cli_error(cli, "git is not installed here");
        return r;
    }
    if (r != 0 || !commit) {
        bool is_repository = GIT_QUIET(repository, NULL, "rev-parse", "--git-dir") == 0;
        if (!is_repository)
            cli_error(cli,
                      "%s: no repository that git would read here; `git -C %s status` says why",
                      repository, repository);
        else if (ref)
            cli_error(cli, "%s: no such commit, branch or tag: %s", repository, ref);
        else
            cli_error(cli, "%s: no commit yet", repository);
        return -ENOENT;
    }
    if (!ref) {
        if (GIT(repository, &branch, "symbolic-ref", "--quiet", "--short", "HEAD") != 0)
            free(take_ptr(branch));
    } else if (asprintf(&full, "refs/heads/%s", ref) >= 0 &&
               GIT(repository, NULL, "show-ref", "--verify", "--quiet", full) == 0) {
        branch = strdup(ref);
    }
    *ret_commit = take_ptr(commit);
    *ret_branch = take_ptr(branch);
    return 0;
}

/* Commits there are the user's, as they would be here. */
static int copy_author(const char *repository, const char *path)
{
    static const char *const keys[] = {"user.name", "user.email"};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(keys); i++) {
        _cleanup_free_ char *value = NULL;
        if (GIT(repository, &value, "config", "--get", keys[i]) == 0 && value)
            r = GIT(path, NULL, "config", keys[i], value);
    }
    return r;
}

static int fill(struct cli *cli, const char *repository, const char *commit, const char *branch,
                const char *path)
{
    _cleanup_free_ char *top = NULL, *fetch = NULL, *origin = NULL;
    /* What is on no branch or tag can be had too, for it is the user's own. */
    static const char pack[] =
        "--upload-pack=git -c uploadpack.allowAnySHA1InWant=true upload-pack";
    if (GIT(repository, &top, "rev-parse", "--absolute-git-dir") != 0 || !top)
        return -EIO;
    if (asprintf(&fetch, "%s:refs/heads/%s", commit, branch ? branch : "berth-worktree") < 0)
        return -ENOMEM;
    /* No hooks, and nothing that stays in the user's own repository. */
    int r = GIT(path, NULL, "init", "--quiet", "--template=", "--initial-branch=berth-none");
    if (r == 0)
        r = GIT(path, NULL, "fetch", "--quiet", "--no-tags", "--update-shallow", pack, top, fetch);
    if (r == 0)
        r = branch ? GIT(path, NULL, "checkout", "--quiet", branch)
                   : GIT(path, NULL, "checkout", "--quiet", "--detach", "berth-worktree");
    if (r == 0 && !branch)
        r = GIT(path, NULL, "branch", "--quiet", "-D", "berth-worktree");
    if (r == 0 && GIT(repository, &origin, "config", "--get", "remote.origin.url") == 0 && origin) {
        strip_credentials(origin);
        r = GIT(path, NULL, "remote", "add", "origin", origin);
    }
    if (r == 0)
        r = copy_author(repository, path);
    if (r != 0)
        cli_error(cli, "%s: git could not copy it", repository);
    return r != 0 ? -EIO : 0;
}

int worktree_make(struct cli *cli, const char *spec, char **ret_path)
{
    _cleanup_free_ char *repository = NULL, *ref = NULL, *commit = NULL, *branch = NULL;
    char *path = NULL;
    const char *temporary = getenv("TMPDIR");
    for (size_t i = 0; i < ARRAY_SIZE(repository_variables); i++)
        (void)unsetenv(repository_variables[i]);
    int r = split(spec, &repository, &ref);
    if (r == 0)
        r = resolve(cli, repository, ref, &commit, &branch);
    if (r < 0)
        return r;
    if (asprintf(&path, "%s/berth-worktree-XXXXXX", temporary && *temporary ? temporary : "/tmp") <
        0)
        return -ENOMEM;
    if (!mkdtemp(path)) {
        r = -errno;
        cli_error(cli, "%s: %s", path, strerror(-r));
        free(path);
        return r;
    }
    r = fill(cli, repository, commit, branch, path);
    if (r < 0) {
        worktree_remove(path);
        return r;
    }
    *ret_path = path;
    return 0;
}
