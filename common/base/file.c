#include "base/file.h"

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

int file_read_up_to(int fd, void *data, size_t size, size_t *ret_len)
{
    size_t len = 0;
    while (len < size) {
        ssize_t n = read(fd, (uint8_t *)data + len, size - len);
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

int file_read_at(int fd, void *data, size_t size, uint64_t offset, size_t *ret_len)
{
    size_t len = 0;
    while (len < size) {
        ssize_t n = pread(fd, (uint8_t *)data + len, size - len, (off_t)(offset + len));
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
