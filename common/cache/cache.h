/* The directory in which mounts keep contents of files from one mount to the next: private to its
 * user, shared by all their mounts, bounded. It holds segments (segment.h) and nothing else;
 * other files in it are left alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/failure.h"
#include "cache/segment.h"

/* More files than this are not looked at, and the oldest of those seen go. Stops a directory that
 * something else has filled from taking memory; 64 GiB of segments. */
#define CACHE_SEGMENTS_MAX 4096

struct cache_segment {
    char name[SEGMENT_NAME_SIZE];
    struct timespec used; /* when it was written to or read from, to the minute */
    uint64_t bytes;       /* on disk */
};

struct cache_list {
    struct cache_segment *segments; /* the one used longest ago first */
    size_t count;
    uint64_t bytes;
};

/* Opens paths_cache_dir; `make`: makes it and what it is in (0700). -ENOENT: it is not there;
 * -EPERM: it is not a directory of ours that is private; and others. *ret_path may be NULL. */
int cache_open(bool make, int *ret_dir, char **ret_path, struct failure *ret_failure);

/* Lists all segments by name, without opening any. -ENOMEM and errors of reading. */
int cache_list(int dir, struct cache_list *ret);
void cache_list_release(struct cache_list *list);
#define _cleanup_cache_list_ _cleanup_(cache_list_release)

/* Says that it was used now. */
void cache_used(int dir, const char *name);

/* Removes segments, those used longest ago first, until those that stay and `extra` more bytes
 * are within size_max, and take no more than half of what they and the filesystem's free space come
 * to: a disk that fills up has the cache make room. -ENOSPC: there is no room even so. */
int cache_shrink(int dir, uint64_t size_max, uint64_t extra);

/* Removes all segments. Mounts that use them go on. */
int cache_clear(int dir);
