#include "base/dir.h"

#include <fcntl.h>

int dir_open(int at_fd, const char *path, DIR **ret)
{
    _cleanup_close_ int fd = openat(at_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        return -errno;
    (void)take_fd(&fd);
    *ret = dir;
    return 0;
}

int dir_next(DIR *dir, const struct dirent **ret)
{
    do {
        errno = 0;
        *ret = readdir(dir);
        if (!*ret)
            return -errno;
    } while (dir_is_dot((*ret)->d_name));
    return 1;
}

bool dir_is_dot(const char *name)
{
    return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

void dir_close(DIR **dir)
{
    int saved = errno;
    if (*dir)
        (void)closedir(*dir);
    *dir = NULL;
    errno = saved;
}
