#include "store/restore.h"

#include "base/dir.h"
#include "base/log.h"
#include "store/fault.h"
#include "store/grip.h"
#include "store/trash.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define TREE "tree"
#define ROOT "root" /* since TREE is changed by what is moved out of it */
#define OLD "old"
#define GONE "gone" /* OLD when everything has been moved there */

static int open_directory(int at_fd, const char *name, int *ret)
{
    *ret = openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return *ret < 0 ? -errno : 0;
}

/* To move a directory changes its "..", for which its owner may have to give himself the right. */
static int move_name(int from_fd, int to_fd, const char *name)
{
    struct stat st;
    char path[GRIP_PATH_SIZE];
    if (renameat(from_fd, name, to_fd, name) == 0)
        return 0;
    if (errno != EACCES)
        return errno == ENOENT ? 0 : -errno; /* whoever writes there has removed it himself */
    _cleanup_close_ int fd = openat(from_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || chmod(grip_path(fd, path), S_IRWXU) < 0)
        return -errno;
    int r = renameat(from_fd, name, to_fd, name) < 0 ? -errno : 0;
    (void)chmod(path, st.st_mode & 07777);
    return r;
}

static int move_all(int from_fd, int to_fd)
{
    size_t moved;
    do {
        _cleanup_dir_ DIR *stream = NULL;
        const struct dirent *entry;
        int r = dir_open(from_fd, ".", &stream);
        for (moved = 0; r >= 0 && (r = dir_next(stream, &entry)) == 1; moved++) {
            r = move_name(from_fd, to_fd, entry->d_name);
            if (r == 0)
                fault_point(FAULT_RESTORE_NAME);
        }
        if (r < 0)
            return r;
    } while (moved > 0); /* what others have made meanwhile, too */
    return fsync(from_fd) < 0 || fsync(to_fd) < 0 ? -errno : 0;
}

/* The root itself: its owner, mode, attributes and times, in this order. */
static int copy_root(int from_fd, int to_fd)
{
    struct stat st;
    if (fstat(from_fd, &st) < 0 || fchown(to_fd, st.st_uid, st.st_gid) < 0 ||
        fchmod(to_fd, st.st_mode & 07777) < 0)
        return -errno;
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, st.st_mtim};
    return futimens(to_fd, times) < 0 ? -errno : 0;
}

static int finish(struct store *store, const char *name)
{
    char trash[40];
    _cleanup_close_ int restore = -1, workspace = -1, tree = -1, fresh = -1, root = -1, old = -1;
    _cleanup_meta_ struct meta meta = {0};
    int r = open_directory(store->restores_fd, name, &restore);
    if (r == 0)
        r = open_directory(restore, TREE, &fresh);
    if (r == 0)
        r = open_directory(restore, ROOT, &root);
    if (r == 0)
        r = open_directory(store->workspaces_fd, name, &workspace);
    if (r == 0)
        r = meta_read(workspace, &meta);
    if (r == 0)
        r = open_directory(workspace, TREE, &tree);
    if (r == 0 && faccessat(restore, GONE, F_OK, AT_SYMLINK_NOFOLLOW) < 0) {
        r = open_directory(restore, OLD, &old);
        if (r == 0)
            r = move_all(tree, old);
        if (r == 0 && (renameat(restore, OLD, restore, GONE) < 0 || fsync(restore) < 0))
            r = -errno;
        if (r == 0)
            fault_point(FAULT_RESTORE_EMPTIED);
    }
    if (r == 0)
        r = move_all(fresh, tree);
    if (r == 0)
        r = copy_root(root, tree);
    if (r == 0 && fsync(tree) < 0)
        r = -errno;
    if (r < 0)
        return r;
    fault_point(FAULT_RESTORE_FILLED);
    (void)snprintf(trash, sizeof trash, "restore-%u", meta.slot);
    /* What an earlier one left there may not have been deleted yet. */
    r = trash_take(store, store->restores_fd, name, trash);
    if (r == 0)
        fault_point(FAULT_RESTORE_ENDED);
    if (r == 0 && fsync(store->restores_fd) < 0)
        r = -errno;
    if (r == 0)
        trash_wake(store->trash);
    return r;
}

int restore_run(struct store *store, struct workspace *workspace, const char *temporary)
{
    _cleanup_close_ int fd = -1, fresh = -1, root = -1;
    int r = open_directory(store->tmp_fd, temporary, &fd);
    if (r == 0 && (mkdirat(fd, ROOT, 0700) < 0 || mkdirat(fd, OLD, 0700) < 0))
        r = -errno;
    if (r == 0)
        r = open_directory(fd, TREE, &fresh);
    if (r == 0)
        r = open_directory(fd, ROOT, &root);
    if (r == 0)
        r = copy_root(fresh, root);
    if (r == 0 && (fsync(root) < 0 || fsync(fd) < 0))
        r = -errno;
    if (r == 0)
        r = store_rename_new(store->tmp_fd, temporary, store->restores_fd, workspace->name);
    if (r < 0)
        return r;
    if (fsync(store->restores_fd) < 0)
        r = -errno;
    fault_point(FAULT_RESTORE_BEGUN);
    if (r == 0)
        r = finish(store, workspace->name);
    if (r < 0) {
        log_error("%s: a restore is not finished, and goes on when the service starts again: %s",
                  workspace->name, strerror(-r));
        return -EIO;
    }
    return 0;
}

void restore_resume_all(struct store *store)
{
    _cleanup_dir_ DIR *stream = NULL;
    const struct dirent *entry;
    int r = dir_open(store->restores_fd, ".", &stream);
    while (r >= 0 && (r = dir_next(stream, &entry)) == 1) {
        int error = finish(store, entry->d_name);
        if (error < 0)
            log_error("%s: its restore cannot be finished: %s", entry->d_name, strerror(-error));
    }
    if (r < 0)
        log_error("restores that were begun cannot be read: %s", strerror(-r));
}
