/* Opening a directory beneath another one, and never outside of it. Safe in a forked child
 * of a threaded process: no allocation, no locks. */
#pragma once

/* Opens the directory `path` (relative; "" is root itself) as O_PATH. Symbolic links are
 * followed as long as they stay beneath root. Returns the descriptor, or a negative errno:
 * -EXDEV when the path leads out (".." too many, an absolute path or link), -ELOOP,
 * -ENOENT, -ENOTDIR, -EACCES, -ENAMETOOLONG. */
int beneath_open_directory(int root, const char *path);

/* The same without openat2, for kernels and seccomp filters that have none. */
int beneath_open_directory_by_steps(int root, const char *path);
