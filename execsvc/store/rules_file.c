#include "store/rules_file.h"

#include "base/cleanup.h"
#include "base/file.h"
#include "store/fault.h"

#include <fcntl.h>
#include <stdio.h>

#define RULES_FILE "visibility"
#define RULES_FILE_NEW RULES_FILE ".new"

int rules_file_read(int dir_fd, struct visibility_rules **ret)
{
    _cleanup_close_ int fd =
        openat(dir_fd, RULES_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        if (errno != ENOENT)
            return -errno;
        *ret = NULL;
        return 0;
    }
    _cleanup_free_ uint8_t *text = malloc(VISIBILITY_TEXT_MAX + 1);
    if (!text)
        return -ENOMEM;
    size_t len;
    int r = file_read_up_to(fd, text, VISIBILITY_TEXT_MAX + 1, &len);
    if (r < 0)
        return r;
    struct failure failure;
    r = visibility_rules_parse(bytes_of(text, len), ret, &failure);
    return r == -EINVAL ? -EIO : r;
}

static int write_new(int dir_fd, struct bytes text)
{
    _cleanup_close_ int fd =
        openat(dir_fd, RULES_FILE_NEW, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = file_write_all(fd, text.data, text.len);
    if (r < 0)
        return r;
    /* The content first: a rename that outlives a power cut must not lead to an empty file,
     * which would show what is to be hidden. */
    return fsync(fd) < 0 ? -errno : 0;
}

int rules_file_write(int dir_fd, struct bytes text)
{
    _cleanup_close_ int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = 0;
    if (text.len == 0) {
        if (unlinkat(fd, RULES_FILE, 0) < 0 && errno != ENOENT)
            r = -errno;
    } else {
        r = write_new(fd, text);
        if (r == 0)
            fault_point(FAULT_RULES_NEW);
        if (r == 0 && renameat(fd, RULES_FILE_NEW, fd, RULES_FILE) < 0)
            r = -errno;
        if (r < 0)
            (void)unlinkat(fd, RULES_FILE_NEW, 0);
    }
    if (r == 0)
        fault_point(FAULT_RULES_RENAMED);
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    return r;
}
