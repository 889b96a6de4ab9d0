/* The access file: one grant a line (grant.h), blank lines and those that begin with # skipped. It
 * holds no token, but whoever may write it may do everything: it must belong to the user that reads
 * it, or root, and be for nobody else. Writers replace it whole, one at a time, and keep what they
 * do not change byte for byte. */
#pragma once

#include <sys/stat.h>

#include "access/grant.h"

/* Bounds the work of each authentication, which compares all of them. */
#define GRANTS_MAX 1024
#define GRANTS_FILE_MAX (1024 * 1024) /* a wrong file, such as a device, must not fill memory */

struct grants {
    struct grant **list;
    size_t count;
};

/* *ret_stat: of the file as it was read. -ENOENT, -EACCES, -EINVAL (names the line), -ENOMEM. */
int grants_load(const char *file, struct grants *ret, struct stat *ret_stat,
                struct failure *ret_failure);
/* Its two halves. A descriptor or a negative errno, which the second takes as well and makes the
 * failure of; the descriptor stays the caller's. */
int grants_open(const char *file);
int grants_read(int fd, const char *file, struct grants *ret, struct stat *ret_stat,
                struct failure *ret_failure);
void grants_release(struct grants *grants);
#define _cleanup_grants_ _cleanup_(grants_release)

/* Appends it; makes the file if there is none. -EEXIST: its ID is taken. */
int grants_add(const char *file, const struct grant *grant, struct failure *ret_failure);

/* Removes the one with this ID. -ENOENT: there is none. */
int grants_remove(const char *file, const char *id, struct failure *ret_failure);
