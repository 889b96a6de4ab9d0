/* Copying what a file holds to another file of this machine. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Copies size bytes of one file to another, empty one that has been made as large; what is no data
 * in the first is none in the second. Both share the blocks where the filesystem can do that
 * (*ret_shared). A file that has become shorter meanwhile is copied as far as it goes. cancelled:
 * asked between portions, -ECANCELED; NULL: never. */
int file_copy(int from_fd, int to_fd, uint64_t size, bool (*cancelled)(void *context),
              void *context, bool *ret_shared);

/* Puts an empty directory into the project (quota) that another one gives to what is made in it, if
 * there is one: else the kernel would not let anything be moved from one to the other. Both
 * O_RDONLY. */
int file_copy_project(int from_fd, int to_fd);

/* Whether files in a directory (O_RDONLY) can share blocks. Tried with two files of its own there.
 */
bool file_copy_shares(int dir_fd);
