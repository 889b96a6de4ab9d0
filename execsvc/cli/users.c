#include "cli/users.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/dir.h"

static bool is_below(const char *path, const char *point)
{
    size_t len = strlen(point);
    return strncmp(path, point, len) == 0 && (path[len] == '/' || path[len] == 0);
}

/* A link of /proc is text the kernel makes; reading it asks no filesystem. */
static int link_below(int directory, const char *name, const char *point, char path[PATH_MAX])
{
    ssize_t len = readlinkat(directory, name, path, PATH_MAX - 1);
    if (len < 0)
        return -errno;
    path[len] = 0;
    return is_below(path, point);
}

static int find_descriptor(int process, const char *point, char path[PATH_MAX])
{
    _cleanup_dir_ DIR *dir = NULL;
    const struct dirent *entry;
    if (dir_open(process, "fd", &dir) < 0)
        return 0;
    while (dir_next(dir, &entry) == 1)
        if (link_below(dirfd(dir), entry->d_name, point, path) == 1)
            return 1;
    return 0;
}

static int find_mapping(int process, const char *point, char path[PATH_MAX])
{
    int fd = openat(process, "maps", O_RDONLY | O_CLOEXEC);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    _cleanup_free_ char *line = NULL;
    size_t size = 0;
    int found = 0;
    if (!file) {
        close_fd(&fd);
        return 0;
    }
    while (!found && getline(&line, &size, file) > 0) {
        char *at = strchr(line, '/');
        if (!at || strlen(at) >= PATH_MAX)
            continue;
        at[strcspn(at, "\n")] = 0;
        found = is_below(at, point);
        if (found)
            strcpy(path, at);
    }
    (void)fclose(file);
    return found;
}

static void read_name(int process, char *name, size_t size)
{
    _cleanup_close_ int fd = openat(process, "comm", O_RDONLY | O_CLOEXEC);
    ssize_t len = fd >= 0 ? read(fd, name, size - 1) : -1;
    len = len > 0 && name[len - 1] == '\n' ? len - 1 : len;
    name[len > 0 ? len : 0] = 0;
}

/* What the process has there first: NULL and *ret_seen false when we may not look. */
static const char *find_use(int process, const char *point, char path[PATH_MAX], bool *ret_seen)
{
    int r = link_below(process, "cwd", point, path);
    *ret_seen = r != -EACCES && r != -EPERM;
    if (r == 1)
        return "working directory";
    if (link_below(process, "root", point, path) == 1)
        return "root directory";
    if (link_below(process, "exe", point, path) == 1)
        return "program";
    if (find_descriptor(process, point, path))
        return "open file";
    return find_mapping(process, point, path) ? "mapped file" : NULL;
}

static int look_at(int proc, const char *pid, const char *point, struct mount_users *u)
{
    char path[PATH_MAX];
    char name[64];
    bool seen;
    _cleanup_close_ int process = openat(proc, pid, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (process < 0)
        return 0;
    const char *use = find_use(process, point, path, &seen);
    u->unseen += !seen;
    if (!use)
        return 0;
    u->count++;
    if (u->count > MOUNT_USERS_MAX)
        return 0;
    read_name(process, name, sizeof name);
    return buffer_printf(&u->text, "%spid %s (%s): %s %s", u->count > 1 ? "; " : "", pid, name, use,
                         path);
}

int mount_users_find(const char *point, struct mount_users *ret)
{
    _cleanup_mount_users_ struct mount_users u = {0};
    _cleanup_dir_ DIR *dir = opendir("/proc");
    const struct dirent *entry;
    char self[32];
    int r = dir ? 0 : -errno;
    (void)snprintf(self, sizeof self, "%d", (int)getpid());
    while (r >= 0 && (r = dir_next(dir, &entry)) == 1) {
        bool is_process = entry->d_name[0] >= '1' && entry->d_name[0] <= '9';
        if (!is_process || strcmp(entry->d_name, self) == 0)
            continue;
        r = look_at(dirfd(dir), entry->d_name, point, &u);
    }
    if (r < 0)
        return r;
    *ret = u;
    u = (struct mount_users){0};
    return 0;
}

void mount_users_release(struct mount_users *u)
{
    buffer_release(&u->text);
    *u = (struct mount_users){0};
}
