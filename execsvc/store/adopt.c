#include "store/adopt.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dir.h"

enum left {
    LEFT_ANYHOW,
    LEFT_EMPTY, /* a directory without names, but for those with a dot, or a file without content */
};

/* What a start that was cut off leaves, and what a filesystem of its own has. */
static const struct {
    const char *name;
    enum left left;
} known[] = {
    {"berthd.log", LEFT_ANYHOW}, {"berthd.sock", LEFT_ANYHOW}, {"lock", LEFT_ANYHOW},
    {"lost+found", LEFT_ANYHOW}, {"start.lock", LEFT_ANYHOW},  {"token-key", LEFT_ANYHOW},
    {"exec", LEFT_EMPTY},        {"inodes", LEFT_EMPTY},       {"leases", LEFT_EMPTY},
    {"restores", LEFT_EMPTY},    {"snapshots", LEFT_EMPTY},    {"tmp", LEFT_EMPTY},
    {"trash", LEFT_EMPTY},       {"workspaces", LEFT_EMPTY},
};

/* 1: it is. Names with a dot are those of what is half-made. */
static int is_empty(int root_fd, const char *name)
{
    _cleanup_dir_ DIR *stream = NULL;
    struct stat st;
    if (fstatat(root_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode))
        return S_ISREG(st.st_mode) && st.st_size == 0;
    const struct dirent *entry;
    int r = dir_open(root_fd, name, &stream);
    while (r >= 0 && (r = dir_next(stream, &entry)) == 1)
        if (entry->d_name[0] != '.')
            return 0;
    return r < 0 ? r : 1;
}

static int is_ours(int root_fd, const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (strcmp(name, known[i].name) == 0)
            return known[i].left == LEFT_ANYHOW ? 1 : is_empty(root_fd, name);
    return strcmp(name, SERVICE_FILE ".new") == 0 || strcmp(name, "token-key.new") == 0;
}

int adopt_check(int root_fd, const char *root, struct failure *ret_failure)
{
    _cleanup_dir_ DIR *stream = NULL;
    if (faccessat(root_fd, SERVICE_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    const struct dirent *entry;
    int r = dir_open(root_fd, ".", &stream);
    while (r >= 0 && (r = dir_next(stream, &entry)) == 1)
        if (entry->d_name[0] != '.' && (r = is_ours(root_fd, entry->d_name)) == 0)
            return failure_set(ret_failure, -EEXIST,
                               "%s is no service's directory: it has no " SERVICE_FILE
                               ", and %s is in it already. Give an empty one with --root",
                               root, entry->d_name);
    return r == 0 ? 0 : failure_set(ret_failure, r, "cannot read %s: %s", root, strerror(-r));
}
