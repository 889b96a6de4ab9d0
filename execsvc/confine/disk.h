/* How much of the disk a workspace fills, by size and by inodes: a project quota of its file system
 * (ext4, xfs, f2fs), which the kernel keeps. Everything in the workspace's directory, what commands
 * see as /tmp and home included, is of one project, whose number is the workspace's own. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/failure.h"

/* Puts all that is in the directory, and what will be, into a project of its own, if it is in none
 * of ours; its number. The first time it takes as long as it takes to walk through. -EOPNOTSUPP:
 * the file system has no project quotas that are enforced, or this process may not set them; the
 * failure says which. */
int disk_project_of(int directory, uint32_t *ret, struct failure *ret_failure);

/* Of a project, on the file system that `fd` is on. 0: none. */
int disk_limit(int fd, uint32_t project, uint64_t bytes, uint64_t files);

/* Takes limits away that were set for what is in a directory, if there are any. */
void disk_unlimit(int directory);

/* {"disk", "files", "disk_used", "files_used"} as the kernel has them. NULL: it does not tell. */
json_t *disk_measured(int fd, uint32_t project);
