#include "config/paths.h"

#include <errno.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

#define SOCKET_NAME "berthd.sock"
#define PASSWD_BUFFER_SIZE 16384

static int no_memory(struct failure *f)
{
    return failure_set(f, -ENOMEM, "out of memory");
}

__attribute__((format(printf, 3, 4))) static int print(char **ret, struct failure *f,
                                                       const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = NULL;
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0)
        return no_memory(f);
    *ret = text;
    return 0;
}

/* As the XDG base directory specification wants: relative values are ignored. */
static const char *xdg_directory(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] == '/' ? value : NULL;
}

static int home_directory(char **ret, struct failure *f)
{
    const char *home = getenv("HOME");
    if (home && home[0] == '/')
        return print(ret, f, "%s", home);
    _cleanup_free_ char *buffer = malloc(PASSWD_BUFFER_SIZE);
    if (!buffer)
        return no_memory(f);
    struct passwd entry;
    struct passwd *found = NULL;
    int error = getpwuid_r(geteuid(), &entry, buffer, PASSWD_BUFFER_SIZE, &found);
    if (error == 0 && found && found->pw_dir && found->pw_dir[0] == '/')
        return print(ret, f, "%s", found->pw_dir);
    return failure_set(f, -ENOENT,
                       "this user has no home directory. Set HOME, or name the files with options");
}

/* Somebody else could have made the directory, to listen there in our name. others: the bits that
 * it must not have. */
static int check_private(const char *path, mode_t others, bool *ret_exists, struct failure *f)
{
    struct stat st;
    if (lstat(path, &st) < 0) {
        int error = errno;
        *ret_exists = false;
        if (error == ENOENT)
            return 0;
        return failure_set(f, -error, "%s: %s", path, strerror(error));
    }
    *ret_exists = true;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & others))
        return failure_set(f, -EPERM,
                           "%s: this must be a directory that belongs to you, with mode %04o; "
                           "another user may have put it there. Remove it, or set "
                           "XDG_RUNTIME_DIR",
                           path, (unsigned)(0777 & ~others));
    return 0;
}

/* *ret_shared: the directory is below /tmp, where everybody may write. */
static int runtime_dir(char **ret, bool *ret_shared, struct failure *f)
{
    const char *xdg = xdg_directory("XDG_RUNTIME_DIR");
    *ret_shared = !xdg && geteuid() != 0;
    if (xdg)
        return print(ret, f, "%s/berth", xdg);
    if (geteuid() == 0)
        return print(ret, f, "/run/berth");
    return print(ret, f, "/tmp/berth-%u", (unsigned)geteuid());
}

int paths_runtime_dir(char **ret, struct failure *ret_failure)
{
    _cleanup_free_ char *path = NULL;
    bool shared;
    int r = runtime_dir(&path, &shared, ret_failure);
    bool exists;
    if (r == 0 && shared)
        r = check_private(path, 077, &exists, ret_failure);
    if (r == 0)
        *ret = take_ptr(path);
    return r;
}

int paths_socket(char **ret, struct failure *ret_failure)
{
    _cleanup_free_ char *dir = NULL;
    int r = paths_runtime_dir(&dir, ret_failure);
    return r < 0 ? r : print(ret, ret_failure, "%s/" SOCKET_NAME, dir);
}

int paths_default_url(char **ret, struct failure *ret_failure)
{
    _cleanup_free_ char *socket = NULL;
    int r = paths_socket(&socket, ret_failure);
    return r < 0 ? r : print(ret, ret_failure, "unix:%s", socket);
}

int paths_make_socket_dir(struct failure *ret_failure)
{
    _cleanup_free_ char *dir = NULL;
    int r = paths_runtime_dir(&dir, ret_failure);
    if (r < 0)
        return r;
    /* In /run/berth others find the socket of the machine's service. */
    mode_t others = geteuid() == 0 && !xdg_directory("XDG_RUNTIME_DIR") ? 022 : 077;
    if (mkdir(dir, 0700) < 0 && errno != EEXIST) {
        int error = -errno;
        return failure_set(ret_failure, error,
                           "%s: cannot make the directory: %s. Check XDG_RUNTIME_DIR, or name a "
                           "socket with --listen",
                           dir, strerror(-error));
    }
    /* Again, since it may have been made by somebody else meanwhile. */
    bool exists;
    return check_private(dir, others, &exists, ret_failure);
}

int paths_service_root(char **ret, struct failure *ret_failure)
{
    if (geteuid() == 0)
        return print(ret, ret_failure, "/var/lib/berth");
    const char *xdg = xdg_directory("XDG_STATE_HOME");
    if (xdg)
        return print(ret, ret_failure, "%s/berth", xdg);
    _cleanup_free_ char *home = NULL;
    int r = home_directory(&home, ret_failure);
    return r < 0 ? r : print(ret, ret_failure, "%s/.local/state/berth", home);
}

int paths_cache_dir(char **ret, struct failure *ret_failure)
{
    const char *xdg = xdg_directory("XDG_CACHE_HOME");
    if (xdg)
        return print(ret, ret_failure, "%s/berth", xdg);
    if (geteuid() == 0)
        return print(ret, ret_failure, "/var/cache/berth");
    _cleanup_free_ char *home = NULL;
    int r = home_directory(&home, ret_failure);
    return r < 0 ? r : print(ret, ret_failure, "%s/.cache/berth", home);
}

/* What programs of this user keep on this machine. */
static int client_state(const char *name, char **ret, struct failure *f)
{
    const char *xdg = xdg_directory("XDG_STATE_HOME");
    if (xdg)
        return print(ret, f, "%s/berth-client/%s", xdg, name);
    if (geteuid() == 0)
        return print(ret, f, "/var/lib/berth-client/%s", name);
    _cleanup_free_ char *home = NULL;
    int r = home_directory(&home, f);
    return r < 0 ? r : print(ret, f, "%s/.local/state/berth-client/%s", home, name);
}

int paths_places_dir(char **ret, struct failure *ret_failure)
{
    return client_state("places", ret, ret_failure);
}

int paths_joined_slots(char **ret, struct failure *ret_failure)
{
    return client_state("joined", ret, ret_failure);
}

int paths_config_file(char **ret, struct failure *ret_failure)
{
    _cleanup_free_ char *file = NULL;
    const char *xdg = xdg_directory("XDG_CONFIG_HOME");
    int r = 0;
    if (xdg) {
        r = print(&file, ret_failure, "%s/berth/berth.json", xdg);
    } else {
        _cleanup_free_ char *home = NULL;
        r = home_directory(&home, ret_failure);
        if (r == 0)
            r = print(&file, ret_failure, "%s/.config/berth/berth.json", home);
        else if (r == -ENOENT)
            r = 0; /* a service account without a home still has /etc */
    }
    if (r < 0)
        return r;
    if (!file || access(file, F_OK) < 0) {
        free(take_ptr(file));
        r = print(&file, ret_failure, "/etc/berth/berth.json");
        if (r < 0)
            return r;
        if (access(file, F_OK) < 0)
            free(take_ptr(file));
    }
    *ret = take_ptr(file);
    return 0;
}

int paths_make_directory(char *path, struct failure *ret_failure)
{
    for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash)
            *slash = '\0';
        int error = mkdir(path, slash ? 0755 : 0700) < 0 ? errno : 0;
        if (slash)
            *slash = '/';
        if (error && error != EEXIST)
            return failure_set(ret_failure, -error, "%s: cannot make the directory: %s", path,
                               strerror(error));
        if (!slash)
            return 0;
    }
}

int paths_absolute(const char *path, const char *base, char **ret, struct failure *ret_failure)
{
    if (path[0] == '/')
        return print(ret, ret_failure, "%s", path);
    if (path[0] == '~' && path[1] == '/') {
        _cleanup_free_ char *home = NULL;
        int r = home_directory(&home, ret_failure);
        return r < 0 ? r : print(ret, ret_failure, "%s%s", home, path + 1);
    }
    if (base)
        return print(ret, ret_failure, "%s/%s", base, path);
    _cleanup_free_ char *here = getcwd(NULL, 0);
    if (!here) {
        int error = -errno;
        return failure_set(ret_failure, error, "%s: the working directory cannot be told: %s", path,
                           strerror(-error));
    }
    return print(ret, ret_failure, "%s/%s", here, path);
}
