/* Opening by relative path without ever leaving a directory or following a link. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* True when the kernel (and the sandbox around us) knows openat2. */
bool path_openat2_works(int directory_fd);

/* Opens `path` below base_fd, O_PATH and without following any link; a link at the end is
 * opened itself. path: components separated by one '/', none of them "", "." or "..", of any
 * length altogether; it is written to. Without openat2 it goes component by component,
 * which comes to the same. Returns the descriptor or a negative errno (-ELOOP or -ENOTDIR: a
 * component is a link). */
int path_open(int base_fd, char *path, size_t len, bool use_openat2);

/* For calls that take no O_PATH descriptor: its path in /proc. */
#define PATH_OF_FD_SIZE 32
static inline const char *path_of_fd(int fd, char buffer[PATH_OF_FD_SIZE])
{
    (void)snprintf(buffer, PATH_OF_FD_SIZE, "/proc/self/fd/%d", fd);
    return buffer;
}

/* True when name is one component that may be given to the kernel. */
bool path_name_valid(const void *name, size_t len);
