#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "attack.h"

int result_of(long returned)
{
    return returned < 0 ? -errno : 0;
}

int result_or(long returned, int passed)
{
    return returned < 0 && errno != passed ? -errno : 0;
}

int holds_secret(int fd)
{
    char text[sizeof SECRET - 1];
    ssize_t n = read(fd, text, sizeof text);
    if (n < 0)
        return -errno;
    return n == sizeof text && memcmp(text, SECRET, sizeof text) == 0 ? 0 : -ENODATA;
}

int read_secret(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : holds_secret(fd);
}
