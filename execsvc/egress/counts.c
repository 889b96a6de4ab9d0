#include "egress/counts.h"

#include <fcntl.h>
#include <sys/file.h>

#include "base/cleanup.h"

void counts_begin(int fd, struct counts *ret)
{
    struct counts found;
    *ret = (struct counts){0};
    (void)flock(fd, LOCK_EX | LOCK_NB);
    if (pread(fd, &found, sizeof found, 0) == (ssize_t)sizeof found)
        *ret = found;
    ret->connections = 0;
    counts_write(fd, ret);
}

void counts_write(int fd, const struct counts *counts)
{
    ssize_t n = pwrite(fd, counts, sizeof *counts, 0);
    (void)n;
}

int counts_read(int directory, struct counts *ret, bool *ret_running)
{
    struct counts found;
    _cleanup_close_ int fd =
        openat(directory, COUNTS_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    *ret_running = flock(fd, LOCK_SH | LOCK_NB) < 0;
    if (pread(fd, &found, sizeof found, 0) != (ssize_t)sizeof found)
        found = (struct counts){0};
    if (!*ret_running)
        found.connections = 0;
    *ret = found;
    return 0;
}
