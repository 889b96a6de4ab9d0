/* The names in a directory. */
#pragma once

#include <dirent.h>
#include <stdbool.h>

#include "base/cleanup.h"

/* At its beginning, whatever others have read by at_fd; path may be ".". A link is not followed. 0
 * or a negative errno. */
int dir_open(int at_fd, const char *path, DIR **ret);

/* The next one that is not "." or "..". 1, 0 at the end, or a negative errno. */
int dir_next(DIR *dir, const struct dirent **ret);

/* "." or "..". */
bool dir_is_dot(const char *name);

/* Closes *dir if there is one and sets it to NULL. Keeps errno. */
void dir_close(DIR **dir);
#define _cleanup_dir_ _cleanup_(dir_close)
