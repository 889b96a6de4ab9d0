#include "cli/programs.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"

static bool can_run(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* 1 when directory/name can be run. */
static int try_directory(const char *directory, size_t len, const char *name, char **ret)
{
    char *path;
    if (asprintf(&path, "%.*s/%s", (int)len, directory, name) < 0)
        return -ENOMEM;
    if (!can_run(path)) {
        free(path);
        return 0;
    }
    *ret = path;
    return 1;
}

/* Relative directories in PATH are left out: they would run what an untrusted workspace, as
 * the working directory, puts there. */
static int search(const char *directories, const char *name, char **ret)
{
    for (const char *at = directories; at;) {
        size_t len = strcspn(at, ":");
        int r = at[0] == '/' ? try_directory(at, len, name, ret) : 0;
        if (r != 0)
            return r < 0 ? r : 0;
        at = at[len] ? at + len + 1 : NULL;
    }
    return -ENOENT;
}

int program_find_system(const char *name, char **ret)
{
    int r = search(getenv("PATH"), name, ret);
    return r == -ENOENT ? search("/usr/bin:/bin:/usr/sbin:/sbin", name, ret) : r;
}

static int own_directory(char ret[PATH_MAX])
{
    ssize_t len = readlink("/proc/self/exe", ret, PATH_MAX - 1);
    if (len <= 0)
        return len < 0 ? -errno : -ENOENT;
    ret[len] = '\0';
    *strrchr(ret, '/') = '\0';
    return 0;
}

/* In the directory that `way` ("/../lib") leads to from this program's. */
static int search_from_own(const char *way, const char *name, char **ret)
{
    char self[PATH_MAX];
    _cleanup_free_ char *directory = NULL;
    if (own_directory(self) < 0)
        return -ENOENT;
    if (asprintf(&directory, "%s%s", self, way) < 0)
        return -ENOMEM;
    int r = try_directory(directory, strlen(directory), name, ret);
    return r > 0 ? 0 : r < 0 ? r : -ENOENT;
}

/* Beside this program, or in the directory that it was installed into. */
static int search_own(const char *directory, const char *name, char **ret)
{
    int r = search_from_own("", name, ret);
    if (r != -ENOENT)
        return r;
    r = try_directory(directory, strlen(directory), name, ret);
    return r > 0 ? 0 : r < 0 ? r : -ENOENT;
}

int program_find(const char *name, char **ret)
{
    int r = search_own(BERTH_BINDIR, name, ret);
    return r == -ENOENT ? search(getenv("PATH"), name, ret) : r;
}

const char program_network_place[] = BERTH_LIBEXECDIR "/" PROGRAM_NETWORK;

/* How the one installed directory is reached from the other, wherever both were moved to. */
static int relative(const char *from, const char *to, char ret[PATH_MAX])
{
    size_t same = 0, len = 0;
    for (size_t i = 0; from[i] && from[i] == to[i]; i++)
        if (from[i] == '/')
            same = i;
    ret[0] = '\0';
    for (const char *at = from + same; at && len + 4 < PATH_MAX; at = strchr(at + 1, '/'))
        len += (size_t)snprintf(ret + len, PATH_MAX - len, "/..");
    return snprintf(ret + len, PATH_MAX - len, "%s", to + same) < (int)(PATH_MAX - len)
               ? 0
               : -ENAMETOOLONG;
}

/* Where an installation has it, and where it is from this program's directory. */
static int search_libexec(const char *name, char **ret)
{
    char way[PATH_MAX];
    int r = search_own(BERTH_LIBEXECDIR, name, ret);
    if (r != -ENOENT || relative(BERTH_BINDIR, BERTH_LIBEXECDIR, way) < 0)
        return r;
    return search_from_own(way, name, ret);
}

int program_find_network(char **ret)
{
    return search_libexec(PROGRAM_NETWORK, ret);
}

int program_find_static_berthd(char **ret)
{
    const char *named = getenv("BERTH_STATIC_BERTHD");
    if (!named || !named[0]) {
        int r = search_libexec(PROGRAM_STATIC_BERTHD, ret);
        return r == -ENOENT ? search_from_own("/../server", PROGRAM_STATIC_BERTHD, ret) : r;
    }
    if (named[0] != '/' || !can_run(named))
        return -ENOENT;
    *ret = strdup(named);
    return *ret ? 0 : -ENOMEM;
}

static int spawn(const char *path, char *const *argv, int output, pid_t *ret)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return -ENOMEM;
    if (posix_spawnattr_init(&attributes) != 0) {
        (void)posix_spawn_file_actions_destroy(&actions);
        return -ENOMEM;
    }
    /* We ignore PIPE, and what is ignored would stay so in the program. */
    (void)sigemptyset(&defaults);
    (void)sigaddset(&defaults, SIGPIPE);
    int r = posix_spawnattr_setsigdefault(&attributes, &defaults);
    r = r ? r : posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    r = r ? r : posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    r = r ? r : posix_spawn_file_actions_adddup2(&actions, output, 1);
    r = r ? r : posix_spawn_file_actions_adddup2(&actions, output, 2);
    r = r ? r : posix_spawn(ret, path, &actions, &attributes, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)posix_spawnattr_destroy(&attributes);
    return -r;
}

static int read_output(int fd, struct buffer *ret)
{
    for (;;) {
        char data[4096];
        ssize_t n = read(fd, data, sizeof data);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : 0;
        if (ret && ret->len + (size_t)n <= PROGRAM_OUTPUT_MAX) {
            int r = buffer_append(ret, data, (size_t)n);
            if (r < 0)
                return r;
        }
    }
}

int program_run(const char *path, char *const *argv, struct buffer *ret)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    _cleanup_close_ int reader = fds[0];
    _cleanup_close_ int writer = fds[1];
    pid_t pid;
    int r = spawn(path, argv, writer, &pid);
    if (r < 0)
        return r;
    close_fd(&writer);
    r = read_output(reader, ret);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    if (r < 0)
        return r;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
