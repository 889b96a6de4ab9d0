#include "cache/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/cleanup.h"
#include "base/dir.h"
#include "config/paths.h"

/* --- the directory ------------------------------------------------------------------- */

/* Makes the directories that path is in. What is there already is as its owner wants it. */
static int make_parents(const char *path)
{
    _cleanup_free_ char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    for (char *slash = copy + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        if (mkdir(copy, 0700) < 0 && errno != EEXIST)
            return -errno;
        *slash = '/';
    }
    return 0;
}

int cache_open(bool make, int *ret_dir, char **ret_path, struct failure *ret_failure)
{
    _cleanup_free_ char *path = NULL;
    int r = paths_cache_dir(&path, ret_failure);
    if (r < 0)
        return r;
    if (make) {
        r = make_parents(path);
        if (r == 0 && mkdir(path, 0700) < 0 && errno != EEXIST)
            r = -errno;
        if (r < 0)
            return failure_set(ret_failure, r, "%s: cannot make the directory: %s", path,
                               strerror(-r));
    }
    _cleanup_close_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (dir < 0 || fstat(dir, &st) < 0) {
        r = -errno;
        if (r != -ENOTDIR && r != -ELOOP)
            return failure_set(ret_failure, r, "%s: %s", path, strerror(-r));
    }
    /* Whoever can write here chooses what files on a mount contain; who can read sees them. */
    if (r < 0 || st.st_uid != geteuid() || (st.st_mode & 077))
        return failure_set(ret_failure, -EPERM,
                           "%s: this must be a directory, not a link, that belongs to you, with "
                           "mode 0700. Remove it, or set XDG_CACHE_HOME",
                           path);
    *ret_dir = take_fd(&dir);
    if (ret_path)
        *ret_path = take_ptr(path);
    return 0;
}

/* --- what is in it --------------------------------------------------------------------- */

static bool is_segment_name(const char *name)
{
    size_t len = strlen(name), suffix = strlen(SEGMENT_SUFFIX);
    return len > suffix && len < SEGMENT_NAME_SIZE &&
           strcmp(name + len - suffix, SEGMENT_SUFFIX) == 0;
}

static int by_use(const void *a, const void *b)
{
    const struct cache_segment *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec)
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    if (x->used.tv_nsec != y->used.tv_nsec)
        return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    return strcmp(x->name, y->name);
}

int cache_list(int dir, struct cache_list *ret)
{
    _cleanup_cache_list_ struct cache_list list = {
        .segments = calloc(CACHE_SEGMENTS_MAX, sizeof *list.segments)};
    if (!list.segments)
        return -ENOMEM;
    _cleanup_dir_ DIR *stream = NULL;
    const struct dirent *entry;
    int r = dir_open(dir, ".", &stream);
    while (r >= 0 && list.count < CACHE_SEGMENTS_MAX && (r = dir_next(stream, &entry)) == 1) {
        struct stat st;
        if (!is_segment_name(entry->d_name) ||
            fstatat(dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue; /* another process has removed it */
        struct cache_segment *s = &list.segments[list.count++];
        (void)memccpy(s->name, entry->d_name, '\0', sizeof s->name);
        s->used = st.st_mtim;
        s->bytes = (uint64_t)st.st_blocks * 512;
        list.bytes += s->bytes;
    }
    if (r < 0)
        return r;
    qsort(list.segments, list.count, sizeof *list.segments, by_use);
    *ret = list;
    list.segments = NULL;
    return 0;
}

void cache_list_release(struct cache_list *list)
{
    free(list->segments);
    *list = (struct cache_list){0};
}

void cache_used(int dir, const char *name)
{
    (void)utimensat(dir, name, NULL, AT_SYMLINK_NOFOLLOW);
}

int cache_shrink(int dir, uint64_t size_max, uint64_t extra)
{
    _cleanup_cache_list_ struct cache_list list = {0};
    int r = cache_list(dir, &list);
    if (r < 0)
        return r;
    struct statvfs space;
    if (fstatvfs(dir, &space) < 0)
        return -errno;
    uint64_t half = (list.bytes + (uint64_t)space.f_bavail * space.f_frsize) / 2;
    uint64_t limit = size_max < half ? size_max : half;
    size_t left = list.count;
    for (size_t i = 0; i < list.count; i++, left--) {
        if (list.bytes + extra <= limit && left < CACHE_SEGMENTS_MAX)
            break;
        (void)segment_remove(dir, list.segments[i].name);
        list.bytes -= list.segments[i].bytes;
    }
    return list.bytes + extra <= limit ? 0 : -ENOSPC;
}

int cache_clear(int dir)
{
    /* More than one list may hold; and a mount may be writing. */
    for (int round = 0; round < 16; round++) {
        _cleanup_cache_list_ struct cache_list list = {0};
        int r = cache_list(dir, &list);
        if (r < 0 || list.count == 0)
            return r;
        for (size_t i = 0; i < list.count; i++) {
            r = segment_remove(dir, list.segments[i].name);
            if (r < 0 && r != -ENOENT)
                return r;
        }
    }
    return 0;
}
