#include "store/path.h"

#include "base/cleanup.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>

#define PATH_FLAGS (O_PATH | O_NOFOLLOW | O_CLOEXEC)

static int open_beneath(int base_fd, const char *path, int flags)
{
    struct open_how how = {
        .flags = (unsigned)flags,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS,
    };
    int fd = (int)syscall(SYS_openat2, base_fd, path, &how, sizeof how);
    return fd < 0 ? -errno : fd;
}

static int open_component(int base_fd, const char *name, int flags)
{
    int fd = openat(base_fd, name, flags);
    return fd < 0 ? -errno : fd;
}

bool path_openat2_works(int directory_fd)
{
    /* Sandboxes answer ENOSYS or, older ones, EPERM to system calls they do not know. */
    _cleanup_close_ int fd = open_beneath(directory_fd, ".", PATH_FLAGS | O_DIRECTORY);
    return fd >= 0;
}

/* Where the part of path that one call can take ends: at a '/' or at the end. */
static size_t part_end(const char *path, size_t len, bool use_openat2)
{
    if (use_openat2 && len < PATH_MAX)
        return len;
    const char *slash = use_openat2 ? memrchr(path, '/', PATH_MAX - 1) : memchr(path, '/', len);
    return slash ? (size_t)(slash - path) : len;
}

int path_open(int base_fd, char *path, size_t len, bool use_openat2)
{
    _cleanup_close_ int directory_fd = -1;
    int from_fd = base_fd;
    for (;;) {
        size_t end = part_end(path, len, use_openat2);
        bool last = end == len;
        path[end] = '\0';
        int flags = PATH_FLAGS | (last ? 0 : O_DIRECTORY);
        /* A single component cannot leave the directory, and O_NOFOLLOW keeps it from being
         * followed, so that the plain call is enough for it. */
        bool single = !memchr(path, '/', end);
        int fd = single ? open_component(from_fd, path, flags) : open_beneath(from_fd, path, flags);
        if (fd < 0 || last)
            return fd;
        close_fd(&directory_fd);
        from_fd = directory_fd = fd;
        path += end + 1;
        len -= end + 1;
    }
}

bool path_name_valid(const void *name, size_t len)
{
    if (len == 0 || memchr(name, '/', len) || memchr(name, '\0', len))
        return false;
    const char *c = name;
    return !(c[0] == '.' && (len == 1 || (len == 2 && c[1] == '.')));
}
