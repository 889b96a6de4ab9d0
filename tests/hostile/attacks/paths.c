/* Files that are not the workspace's. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "base/cleanup.h"
#include "attack.h"

/* PATH */
static int read_file(char **args)
{
    return read_secret(args[0]);
}

/* PATH, absolute: from here, up and down again. */
static int climb(char **args)
{
    char path[PATH_MAX] = "..";
    for (int i = 0; i < 40; i++)
        (void)strcat(path, "/..");
    (void)strncat(path, args[0], sizeof path - strlen(path) - 1);
    return read_secret(path);
}

/* PATH: through a link that is made here. */
static int through_link(char **args)
{
    (void)unlink("attack-link");
    if (symlink(args[0], "attack-link") < 0)
        return -errno;
    int r = read_secret("attack-link");
    (void)unlink("attack-link");
    return r;
}

/* PATH: the same file by another name. */
static int hard_link(char **args)
{
    int r = result_of(link(args[0], "attack-link"));
    (void)unlink("attack-link");
    return r;
}

static int write_file(char **args)
{
    _cleanup_close_ int fd = open(args[0], O_WRONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    /* What is hidden is a device that swallows everything. */
    return S_ISCHR(st.st_mode) ? -ENODATA : 0;
}

/* DIRECTORY */
static int list(char **args)
{
    DIR *d = opendir(args[0]);
    if (!d)
        return -errno;
    int names = 0;
    while (readdir(d))
        names++;
    (void)closedir(d);
    return names > 2 ? 0 : -ENODATA;
}

static int make_file(char **args)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/attack-file", args[0]);
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    (void)unlink(path);
    return 0;
}

static int look_at(char **args)
{
    struct stat st;
    return result_of(stat(args[0], &st));
}

static int change_mode(char **args)
{
    struct stat st;
    if (stat(args[0], &st) < 0)
        return -errno;
    return result_of(chmod(args[0], st.st_mode & 07777));
}

static int make_set_id(char **args)
{
    struct stat st;
    if (stat(args[0], &st) < 0)
        return -errno;
    return result_of(chmod(args[0], (st.st_mode & 07777) | S_ISUID));
}

static int set_attribute(char **args)
{
    return result_of(setxattr(args[0], "user.attack", "x", 1, 0));
}

static int set_times(char **args)
{
    return result_of(utimensat(AT_FDCWD, args[0], NULL, 0));
}

static int watch(char **args)
{
    _cleanup_close_ int fd = inotify_init1(IN_CLOEXEC);
    return fd < 0 ? -errno : result_of(inotify_add_watch(fd, args[0], IN_CREATE));
}

/* HANDLE, as hexadecimal digits of its type and bytes: of a file in the file system that the
 * workspace is in. */
static int open_handle(char **args)
{
    union {
        struct file_handle handle;
        char space[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } h = {0};
    size_t count = strlen(args[0]) / 2;
    if (count < 4 || count - 4 > MAX_HANDLE_SZ)
        return -EINVAL;
    unsigned char bytes[4 + MAX_HANDLE_SZ];
    for (size_t i = 0; i < count; i++) {
        const char digits[3] = {args[0][2 * i], args[0][2 * i + 1], 0};
        bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    memcpy(&h.handle.handle_type, bytes, 4);
    h.handle.handle_bytes = (unsigned)(count - 4);
    memcpy(h.handle.f_handle, bytes + 4, count - 4);
    _cleanup_close_ int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int fd = open_by_handle_at(here, &h.handle, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : holds_secret(fd);
}

/* PATH: through the root, the directory and the descriptors of every process that is in sight. What
 * it gets is one errno of many, so: any or none. */
static int through_any_process(char **args)
{
    static const char *const ways[] = {"root", "cwd/../../../../../../../../../../../.."};
    DIR *d = opendir("/proc");
    const struct dirent *e;
    int r = -ENODATA;
    while (r != 0 && d && (e = readdir(d))) {
        char path[PATH_MAX];
        for (size_t i = 0; e->d_name[0] >= '1' && e->d_name[0] <= '9' && i < ARRAY_SIZE(ways);
             i++) {
            (void)snprintf(path, sizeof path, "/proc/%s/%s%s", e->d_name, ways[i], args[0]);
            if (read_secret(path) == 0)
                r = 0;
        }
    }
    if (d)
        (void)closedir(d);
    return r;
}

/* PID: any of its descriptors, opened anew. */
static int open_descriptors_of(char **args)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "/proc/%s/fd", args[0]);
    DIR *d = opendir(path);
    if (!d)
        return -errno;
    (void)closedir(d);
    (void)snprintf(path, sizeof path, "/proc/%s/fd/0", args[0]);
    _cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);
    return fd < 0 ? -errno : 0;
}

const struct attack attacks_on_paths[] = {
    {"read", read_file, 1},
    {"climb", climb, 1},
    {"through-link", through_link, 1},
    {"hard-link", hard_link, 1},
    {"write", write_file, 1},
    {"list", list, 1},
    {"make", make_file, 1},
    {"look", look_at, 1},
    {"chmod", change_mode, 1},
    {"make-set-id", make_set_id, 1},
    {"xattr", set_attribute, 1},
    {"utimes", set_times, 1},
    {"watch", watch, 1},
    {"handle", open_handle, 1},
    {"any-process", through_any_process, 1},
    {"descriptors-of", open_descriptors_of, 1},
    {NULL},
};
