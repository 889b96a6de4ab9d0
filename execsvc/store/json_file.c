#include "store/json_file.h"

#include "base/cleanup.h"
#include "base/file.h"
#include "store/fault.h"

#include <fcntl.h>
#include <stdio.h>

int json_file_read(int dir_fd, const char *name, json_t **ret)
{
    _cleanup_close_ int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    _cleanup_free_ char *text = malloc(JSON_FILE_MAX);
    if (!text)
        return -ENOMEM;
    size_t len;
    int r = file_read_up_to(fd, text, JSON_FILE_MAX, &len);
    if (r < 0)
        return r;
    json_t *object = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(object)) {
        json_decref(object);
        return -EIO;
    }
    *ret = object;
    return 0;
}

int json_file_write(int dir_fd, const char *name, const json_t *object)
{
    char temporary[64];
    (void)snprintf(temporary, sizeof temporary, "%s.new", name);
    _cleanup_free_ char *text = json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (!text)
        return -ENOMEM;
    _cleanup_close_ int fd =
        openat(dir_fd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = file_write_text_synced(fd, text);
    if (r == 0)
        fault_point(FAULT_JSON_NEW);
    if (r == 0 && renameat(dir_fd, temporary, dir_fd, name) < 0)
        r = -errno;
    if (r < 0) {
        (void)unlinkat(dir_fd, temporary, 0);
        return r;
    }
    fault_point(FAULT_JSON_RENAMED);
    return fsync(dir_fd) < 0 ? -errno : 0;
}
