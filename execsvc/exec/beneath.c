#include "exec/beneath.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"

/* As the kernel: stops a chain of links that never ends. */
#define LINKS_MAX 40

/* openat2 with RESOLVE_BENEATH answers EAGAIN when something was renamed meanwhile; a process
 * that renames all the time must not hold us for ever. */
#define TRIES_MAX 64

int beneath_open_directory(int root, const char *path)
{
    const struct open_how how = {
        .flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
    };
    for (int i = 0; i < TRIES_MAX; i++) {
        long fd = syscall(SYS_openat2, root, path[0] ? path : ".", &how, sizeof how);
        if (fd >= 0)
            return (int)fd;
        if (errno == ENOSYS || errno == EPERM)
            return beneath_open_directory_by_steps(root, path);
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
    }
    return -EAGAIN;
}

/* Opens names of `walked` ("a/b/c", links resolved) from root downwards. ".." is never given
 * to the kernel: a directory that is moved between two steps would lead it outside. */
static int open_walked(int root, const char *walked)
{
    _cleanup_close_ int fd = openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    while (*walked) {
        char name[NAME_MAX + 1];
        size_t len = strcspn(walked, "/");
        memcpy(name, walked, len);
        name[len] = 0;
        int next = openat(fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0)
            return -errno;
        close_fd(&fd);
        fd = next;
        walked += len;
        walked += strspn(walked, "/");
    }
    return take_fd(&fd);
}

/* Puts text before what is left of the path. */
static int prepend(char left[PATH_MAX], const char *text, size_t len)
{
    size_t rest = strlen(left);
    if (len + 1 + rest + 1 > PATH_MAX)
        return -ENAMETOOLONG;
    memmove(left + len + 1, left, rest + 1);
    memcpy(left, text, len);
    left[len] = '/';
    return 0;
}

static int walk_up(char walked[PATH_MAX])
{
    if (walked[0] == 0)
        return -EXDEV;
    char *slash = strrchr(walked, '/');
    *(slash ? slash : walked) = 0;
    return 0;
}

int beneath_open_directory_by_steps(int root, const char *path)
{
    char left[PATH_MAX];
    char walked[PATH_MAX] = "";
    if (strlen(path) >= sizeof left)
        return -ENAMETOOLONG;
    if (path[0] == '/')
        return -EXDEV;
    strcpy(left, path);

    _cleanup_close_ int fd = open_walked(root, walked);
    if (fd < 0)
        return fd;
    int links = 0;
    char *at = left;
    for (;;) {
        at += strspn(at, "/");
        size_t len = strcspn(at, "/");
        if (len == 0)
            return take_fd(&fd);
        if (len > NAME_MAX)
            return -ENAMETOOLONG;
        char name[NAME_MAX + 1];
        memcpy(name, at, len);
        name[len] = 0;
        at += len;
        if (strcmp(name, ".") == 0)
            continue;
        if (strcmp(name, "..") == 0) {
            int r = walk_up(walked);
            if (r < 0)
                return r;
            close_fd(&fd);
            fd = open_walked(root, walked);
            if (fd < 0)
                return fd;
            continue;
        }
        _cleanup_close_ int next = openat(fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0)
            return -errno;
        struct stat st;
        if (fstat(next, &st) < 0)
            return -errno;
        if (S_ISLNK(st.st_mode)) {
            char target[PATH_MAX];
            ssize_t n = readlinkat(next, "", target, sizeof target - 1);
            if (n < 0)
                return -errno;
            if (++links > LINKS_MAX)
                return -ELOOP;
            if (n > 0 && target[0] == '/')
                return -EXDEV;
            memmove(left, at, strlen(at) + 1);
            at = left;
            int r = prepend(left, target, (size_t)n);
            if (r < 0)
                return r;
            continue;
        }
        if (!S_ISDIR(st.st_mode))
            return -ENOTDIR;
        size_t used = strlen(walked);
        if (used + 1 + len + 1 > sizeof walked)
            return -ENAMETOOLONG;
        if (used > 0)
            walked[used++] = '/';
        memcpy(walked + used, name, len + 1);
        close_fd(&fd);
        fd = take_fd(&next);
    }
}
