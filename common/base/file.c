#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* offset < 0: from where the descriptor is. */
static int read_all(int fd, void *data, size_t size, off_t offset, size_t *ret_len)
{
    size_t len = 0;
    while (len < size) {
        uint8_t *next = (uint8_t *)data + len;
        ssize_t n = offset < 0 ? read(fd, next, size - len)
                               : pread(fd, next, size - len, offset + (off_t)len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        len += (size_t)n;
    }
    *ret_len = len;
    return 0;
}

int file_read_up_to(int fd, void *data, size_t size, size_t *ret_len)
{
    return read_all(fd, data, size, -1, ret_len);
}

int file_read_at(int fd, void *data, size_t size, uint64_t offset, size_t *ret_len)
{
    return offset > INT64_MAX ? -EINVAL : read_all(fd, data, size, (off_t)offset, ret_len);
}

int file_open_null(void)
{
    int ends[2];
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        return fd;
    if (errno != ENOENT)
        return -errno;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    (void)close(ends[1]);
    return ends[0];
}

int file_open_log(const char *path)
{
    struct stat st;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
    if (fd < 0)
        return -errno;
    int r = fstat(fd, &st) < 0                             ? -errno
            : !S_ISREG(st.st_mode) && !S_ISCHR(st.st_mode) ? -ENXIO
            : fcntl(fd, F_SETFL, O_WRONLY | O_APPEND) < 0  ? -errno
                                                           : 0;
    if (r < 0)
        (void)close(fd);
    return r < 0 ? r : fd;
}

const char *file_log_error(int error)
{
    return error == -ENXIO ? "it is no regular file" : strerror(-error);
}

int file_write_all(int fd, const void *data, size_t len)
{
    const uint8_t *next = data;
    while (len > 0) {
        ssize_t n = write(fd, next, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        next += n;
        len -= (size_t)n;
    }
    return 0;
}

int file_write_text_synced(int fd, const char *text)
{
    int r = file_write_all(fd, text, strlen(text));
    if (r == 0)
        r = file_write_all(fd, "\n", 1);
    return r == 0 && fsync(fd) < 0 ? -errno : r;
}
