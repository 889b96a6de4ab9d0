/* A workspace's own visibility rules: the file `visibility` beside meta.json, with the text as it
 * was given. Not in meta.json, because patterns are bytes, and because the text is for people. */
#pragma once

#include "visibility/visibility.h"

/* *ret NULL: there is no such file. -EIO: it is none that rules_file_write wrote; -ENOMEM, others
 * of open and read. */
int rules_file_read(int dir_fd, struct visibility_rules **ret);

/* Replaces the file as a whole, or removes it when the text is empty; durable when it returns
 * 0. dir_fd: may be O_PATH. */
int rules_file_write(int dir_fd, struct bytes text);
