#include "store/file_copy.h"

#include "base/cleanup.h"
#include "base/file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

/* Bytes between two looks at whether it is still wanted. */
#define PORTION ((size_t)8 << 20)

/* Where the kernel does not copy by itself. */
#define BUFFER_SIZE ((size_t)256 << 10)

/* One portion through our own memory. Returns the bytes, 0 at the end. */
static ssize_t copy_by_hand(int from_fd, int to_fd, off_t at, size_t len)
{
    _cleanup_free_ uint8_t *buffer = malloc(BUFFER_SIZE);
    size_t got;
    if (!buffer)
        return -ENOMEM;
    int r =
        file_read_at(from_fd, buffer, len < BUFFER_SIZE ? len : BUFFER_SIZE, (uint64_t)at, &got);
    if (r < 0)
        return r;
    for (size_t done = 0; done < got;) {
        ssize_t n = pwrite(to_fd, buffer + done, got - done, at + (off_t)done);
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return (ssize_t)got;
}

static ssize_t copy_portion(int from_fd, int to_fd, off_t at, size_t len)
{
    off_t from = at, to = at;
    ssize_t n = copy_file_range(from_fd, &from, to_fd, &to, len, 0);
    return n >= 0 ? n : copy_by_hand(from_fd, to_fd, at, len);
}

static int copy_extent(int from_fd, int to_fd, off_t at, off_t end,
                       bool (*cancelled)(void *context), void *context)
{
    while (at < end) {
        if (cancelled && cancelled(context))
            return -ECANCELED;
        size_t len = (size_t)(end - at) < PORTION ? (size_t)(end - at) : PORTION;
        ssize_t n = copy_portion(from_fd, to_fd, at, len);
        if (n < 0)
            return (int)n;
        if (n == 0)
            return 0;
        at += n;
    }
    return 0;
}

int file_copy(int from_fd, int to_fd, uint64_t size, bool (*cancelled)(void *context),
              void *context, bool *ret_shared)
{
    if (ioctl(to_fd, FICLONE, from_fd) == 0) {
        *ret_shared = true;
        /* It may have grown since it was looked at. */
        return ftruncate(to_fd, (off_t)size) < 0 ? -errno : 0;
    }
    *ret_shared = false;
    off_t at = 0, limit = (off_t)size;
    while (at < limit) {
        off_t data = lseek(from_fd, at, SEEK_DATA);
        if (data < 0)
            return errno == ENXIO ? 0 : -errno; /* nothing but a hole is left */
        off_t hole = lseek(from_fd, data, SEEK_HOLE);
        if (hole < 0)
            return errno == ENXIO ? 0 : -errno; /* it was made shorter */
        int r = copy_extent(from_fd, to_fd, data, hole < limit ? hole : limit, cancelled, context);
        if (r < 0)
            return r;
        at = hole;
    }
    return 0;
}

bool file_copy_shares(int dir_fd)
{
    _cleanup_close_ int from = openat(dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    _cleanup_close_ int to = openat(dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return from >= 0 && to >= 0 && file_write_all(from, "x", 1) == 0 &&
           ioctl(to, FICLONE, from) == 0;
}

int file_copy_project(int from_fd, int to_fd)
{
    struct fsxattr from, to;
    /* A filesystem without projects. */
    if (ioctl(from_fd, FS_IOC_FSGETXATTR, &from) < 0 || !(from.fsx_xflags & FS_XFLAG_PROJINHERIT))
        return 0;
    if (ioctl(to_fd, FS_IOC_FSGETXATTR, &to) < 0)
        return -errno;
    to.fsx_projid = from.fsx_projid;
    to.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    return ioctl(to_fd, FS_IOC_FSSETXATTR, &to) < 0 ? -errno : 0;
}
