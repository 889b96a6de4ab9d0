#include "store/unnamed.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* A name of its own while it has none to stay: 16 digits behind this. */
#define PREFIX ".berth-put-"

struct unnamed {
    struct store *store;
    int dir_fd; /* in which it is called so, where there is no O_TMPFILE; -1: nowhere */
    char name[sizeof PREFIX + 16];
};

static int name_it(struct unnamed *u)
{
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return -EIO;
    (void)snprintf(u->name, sizeof u->name, PREFIX "%016" PRIx64, number);
    return 0;
}

/* O_TMPFILE is refused by filesystems that do not have it, and by kernels that do not. */
static bool is_missing(int error)
{
    return error == EOPNOTSUPP || error == EISDIR || error == EINVAL;
}

static int make_named(struct unnamed *u, int dir_fd, mode_t mode, int *ret_fd)
{
    _cleanup_close_ int dir = fcntl(dir_fd, F_DUPFD_CLOEXEC, 0);
    if (dir < 0)
        return -errno;
    *ret_fd = openat(dir, u->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (*ret_fd < 0)
        return -errno;
    u->dir_fd = take_fd(&dir);
    return 0;
}

int unnamed_make(const struct place *place, mode_t mode, int *ret_fd, struct unnamed **ret)
{
    struct unnamed *u = malloc(sizeof *u);
    char path[GRIP_PATH_SIZE];
    if (!u)
        return -ENOMEM;
    *u = (struct unnamed){.store = place->dir->workspace->store, .dir_fd = -1};
    int r = name_it(u);
    if (r == 0) {
        int fd = open(grip_path(place->grip.fd, path), O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
        r = fd < 0 ? -errno : 0;
        if (r == 0)
            *ret_fd = fd;
        else if (is_missing(-r))
            r = make_named(u, place->grip.fd, mode, ret_fd);
    }
    if (r < 0) {
        unnamed_drop(u);
        return r;
    }
    *ret = u;
    return 0;
}

/* By way of a name in dir_fd, since linkat replaces nothing. */
static int replace_from(struct unnamed *u, const char *path, int dir_fd, const struct place *to)
{
    if (linkat(AT_FDCWD, path, dir_fd, u->name, AT_SYMLINK_FOLLOW) < 0)
        return -errno;
    if (renameat(dir_fd, u->name, to->grip.fd, to->name) == 0)
        return 0;
    int r = -errno;
    (void)unlinkat(dir_fd, u->name, 0);
    return r;
}

int unnamed_place(struct unnamed *u, int fd, const struct place *to, bool keep)
{
    char path[GRIP_PATH_SIZE];
    if (u->dir_fd >= 0) {
        int r = renameat2(u->dir_fd, u->name, to->grip.fd, to->name, keep ? RENAME_NOREPLACE : 0);
        if (r < 0)
            return -errno;
        close_fd(&u->dir_fd);
        return 0;
    }
    (void)grip_path(fd, path);
    if (linkat(AT_FDCWD, path, to->grip.fd, to->name, AT_SYMLINK_FOLLOW) == 0)
        return 0;
    if (errno != EEXIST || keep)
        return -errno;
    /* In the service's own folder first, which is emptied when it starts: nothing stays in the
     * workspace, whenever it is killed. EXDEV: a project with a quota of its own, or a mount. */
    int r = replace_from(u, path, u->store->tmp_fd, to);
    return r == -EXDEV ? replace_from(u, path, to->grip.fd, to) : r;
}

void unnamed_drop(struct unnamed *u)
{
    if (!u)
        return;
    if (u->dir_fd >= 0)
        (void)unlinkat(u->dir_fd, u->name, 0);
    close_fd(&u->dir_fd);
    free(u);
}
