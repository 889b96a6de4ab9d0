#include "store/fault.h"
#include "store/removal.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/dir.h"
#include "store/grip.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct removal {
    int top_fd;
    uint64_t deadline_ns;
    const atomic_bool *stop; /* may be NULL */
    uint64_t moved;          /* directories moved up so far: their new names */
    size_t done;             /* names removed, moved, or changed by others in this pass */
    int error;               /* the first */
};

static void note_error(struct removal *removal, int error)
{
    if (removal->error == 0)
        removal->error = error;
}

/* Opens a directory for reading its names, though its mode forbids it. */
static int open_directory(int dir_fd, const char *name, DIR **ret)
{
    _cleanup_close_ int path_fd =
        openat(dir_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (path_fd < 0)
        return -errno;
    struct stat st;
    if (fstat(path_fd, &st) < 0)
        return -errno;
    char path[GRIP_PATH_SIZE];
    /* Through the descriptor, so that no link put there meanwhile is changed instead. */
    if ((st.st_mode & S_IRWXU) != S_IRWXU)
        (void)chmod(grip_path(path_fd, path), S_IRWXU);
    return dir_open(path_fd, ".", ret);
}

/* Moves a directory that is not empty up to the top. Moving changes its "..", which needs
 * write permission on it. */
static int move_up(struct removal *removal, int dir_fd, const char *name)
{
    char to[32];
    for (;;) {
        (void)snprintf(to, sizeof to, "%llu", (unsigned long long)removal->moved++);
        if (renameat2(dir_fd, name, removal->top_fd, to, RENAME_NOREPLACE) == 0)
            return 0;
        if (errno == EACCES) {
            DIR *stream = NULL;
            int r = open_directory(dir_fd, name, &stream);
            dir_close(&stream);
            if (r < 0)
                return r;
            if (renameat2(dir_fd, name, removal->top_fd, to, RENAME_NOREPLACE) == 0)
                return 0;
        }
        if (errno != EEXIST)
            return -errno;
    }
}

/* Removes one name of a directory below the top. */
static int remove_name(struct removal *removal, int dir_fd, const char *name, bool directory)
{
    fault_point(FAULT_TRASH_ENTRY);
    if (!directory) {
        if (unlinkat(dir_fd, name, 0) == 0)
            return 0;
        if (errno != EISDIR && errno != EPERM) /* EPERM: some filesystems, for directories */
            return -errno;
    }
    if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0)
        return 0;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return -errno;
    return move_up(removal, dir_fd, name);
}

static int may_go_on(const struct removal *removal)
{
    if (removal->stop && atomic_load(removal->stop))
        return -ECANCELED;
    return clock_monotonic_ns() < removal->deadline_ns ? 0 : -ETIMEDOUT;
}

static void empty_directory(struct removal *removal, DIR *stream)
{
    const struct dirent *entry;
    while (may_go_on(removal) == 0 && dir_next(stream, &entry) == 1) {
        int r = remove_name(removal, dirfd(stream), entry->d_name, entry->d_type == DT_DIR);
        if (r == 0)
            removal->done++;
        else if (r != -ENOENT)
            note_error(removal, r);
    }
}

/* What others do to a name between two of our steps: removed, or something else in its place. */
static bool means_changed(int error)
{
    return error == -ENOENT || error == -ENOTDIR || error == -EISDIR || error == -ELOOP;
}

/* Removes one name of the top directory: a directory is emptied, but not of what it holds
 * that is moved up. */
static void remove_top_name(struct removal *removal, const char *name)
{
    if (unlinkat(removal->top_fd, name, 0) == 0 ||
        unlinkat(removal->top_fd, name, AT_REMOVEDIR) == 0) {
        removal->done++;
        return;
    }
    _cleanup_dir_ DIR *stream = NULL;
    int r = open_directory(removal->top_fd, name, &stream);
    if (r == 0) {
        empty_directory(removal, stream);
        if (unlinkat(removal->top_fd, name, AT_REMOVEDIR) == 0)
            removal->done++;
        else if (errno != ENOTEMPTY) /* filled meanwhile: the next pass */
            r = -errno;
    }
    if (means_changed(r))
        removal->done++;
    else if (r < 0)
        note_error(removal, r);
}

int removal_empty(int dir_fd, const atomic_bool *stop)
{
    struct removal removal = {
        .top_fd = dir_fd,
        .stop = stop,
        .deadline_ns = clock_monotonic_ns() + REMOVAL_SECONDS_MAX * NSEC_PER_SEC,
    };
    for (;;) {
        _cleanup_dir_ DIR *stream = NULL;
        int r = open_directory(dir_fd, ".", &stream);
        if (r < 0)
            return r;
        size_t left = 0;
        removal.done = 0;
        removal.error = 0;
        const struct dirent *entry;
        while ((r = dir_next(stream, &entry)) == 1) {
            left++;
            r = may_go_on(&removal);
            if (r < 0)
                return r;
            remove_top_name(&removal, entry->d_name);
        }
        if (r < 0)
            return r;
        if (left == 0)
            return 0;
        if (removal.done == 0)
            return removal.error ? removal.error : -ENOTEMPTY;
    }
}
