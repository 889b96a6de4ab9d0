/* The kernel's file handle of a file (type and bytes), as one number. Within a filesystem no two
 * files have the same, whenever they live: the handle holds a generation, for inode numbers are
 * used again. fanotify names files by the same handles. */
#pragma once

#include <fcntl.h>
#include <stdint.h>

/* Never 0. */
uint64_t file_handle_hash(const struct file_handle *handle);

/* Of name in dir_fd (a symbolic link itself, not where it leads), or of dir_fd itself when name
 * is "". A negative errno; -EOPNOTSUPP, -EOVERFLOW, -ENOSYS, -EPERM: no handles here. */
int file_handle_hash_at(int dir_fd, const char *name, uint64_t *ret);
