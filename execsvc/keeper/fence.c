#include "keeper/fence.h"

#include <fcntl.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/dir.h"
#include "store/json_file.h"

#define FENCE_FILE "fence.json"

json_t *fence_read(int directory)
{
    json_t *fence = NULL;
    if (faccessat(directory, FENCE_FILE, F_OK, 0) < 0 && errno == ENOENT)
        return NULL;
    if (json_file_read(directory, FENCE_FILE, &fence) < 0 ||
        !json_is_string(json_object_get(fence, "why"))) {
        json_decref(fence);
        return json_pack("{s:s}", "why", "nobody knows why");
    }
    return fence;
}

int fence_write(int directory, const char *why)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    json_t *fence = json_pack("{s:s, s:I}", "why", why, "since", (json_int_t)now.tv_sec);
    int r = fence ? json_file_write(directory, FENCE_FILE, fence) : -ENOMEM;
    json_decref(fence);
    return r;
}

int fence_remove(int directory)
{
    return unlinkat(directory, FENCE_FILE, 0) < 0 ? -errno : 0;
}

static int add(int workspaces, const char *name, json_t *list)
{
    _cleanup_close_ int directory =
        openat(workspaces, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    json_t *fence = directory < 0 ? NULL : fence_read(directory);
    if (!fence)
        return 0;
    int r = json_object_set_new(fence, "workspace", json_string(name));
    r |= json_array_append_new(list, fence);
    return r < 0 ? -ENOMEM : 0;
}

json_t *fences_list(int workspaces)
{
    _cleanup_dir_ DIR *all = NULL;
    json_t *list = json_array();
    const struct dirent *entry;
    int r = list ? 0 : -ENOMEM;
    if (r == 0 && dir_open(workspaces, ".", &all) == 0)
        while (r == 0 && json_array_size(list) < FENCES_LISTED_MAX && dir_next(all, &entry) == 1)
            if (entry->d_name[0] != '.')
                r = add(workspaces, entry->d_name, list);
    if (r == 0)
        return list;
    json_decref(list);
    return NULL;
}
