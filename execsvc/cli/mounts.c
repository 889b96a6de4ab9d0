#include "cli/mounts.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "cli/bounded.h"
#include "cli/text.h"

const char *mount_state_name(enum mount_state state)
{
    switch (state) {
    case MOUNT_CONNECTED:
        return "connected";
    case MOUNT_DISCONNECTED:
        return "disconnected";
    case MOUNT_DEAD:
        return "dead";
    case MOUNT_SILENT:
        return "silent";
    case MOUNT_FOREIGN:
        return "foreign";
    case MOUNT_UNKNOWN:
        return "unknown";
    }
    return NULL;
}

/* Whether its root is still there, which the driver need not know before the service is asked. */
static int ask_root(const void *context, struct buffer *out)
{
    const struct mount_row *row = context;
    struct statx stx;
    (void)out;
    return statx(AT_FDCWD, row->point, AT_STATX_FORCE_SYNC | AT_NO_AUTOMOUNT, STATX_BASIC_STATS,
                 &stx) < 0
               ? -errno
               : 0;
}

enum mount_state mount_state_read(const struct mount_row *row, json_t **ret_info,
                                  struct failure *failure)
{
    *ret_info = NULL;
    int r = here_mount_read(row, MOUNT_STATE_DEADLINE_MS, ret_info, failure);
    if (r == 0 && json_is_false(json_object_get(json_object_get(*ret_info, "stats"), "connected")))
        return MOUNT_DISCONNECTED;
    if (r == 0) {
        _cleanup_buffer_ struct buffer nothing = {0};
        r = bounded_run(ask_root, row, MOUNT_STATE_DEADLINE_MS, &nothing);
        if (r == 0)
            return MOUNT_CONNECTED;
        json_decref(*ret_info);
        *ret_info = NULL;
        (void)failure_set(failure, r, "the mount at %s cannot be used: %s", row->point,
                          strerror(-r));
    }
    return r == -ENOTCONN    ? MOUNT_DEAD
           : r == -ETIMEDOUT ? MOUNT_SILENT
           : r == -EPERM     ? MOUNT_FOREIGN
                             : MOUNT_UNKNOWN;
}

const struct mount_row *mount_table_find(const struct mount_table *table, const char *point)
{
    for (size_t i = table->count; i > 0; i--)
        if (strcmp(table->rows[i - 1].point, point) == 0)
            return &table->rows[i - 1];
    return NULL;
}

static int real_path(const void *context, struct buffer *out)
{
    char path[PATH_MAX];
    if (!realpath(context, path))
        return -errno;
    return buffer_append(out, path, strlen(path) + 1);
}

static int resolve_bounded(const char *path, char **ret)
{
    _cleanup_buffer_ struct buffer answer = {0};
    int r = bounded_run(real_path, path, HERE_DEADLINE_MS, &answer);
    if (r < 0)
        return r;
    *ret = (char *)answer.data;
    answer = (struct buffer){0};
    return 0;
}

/* The path without what is after its last component. */
static int trim(const char *path, char **ret)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    *ret = strndup(path, len);
    return *ret ? 0 : -ENOMEM;
}

/* The real path of the directory above, and the last component as it stands. */
static int resolve_parent(const char *trimmed, char **ret)
{
    const char *slash = strrchr(trimmed, '/');
    const char *name = slash ? slash + 1 : trimmed;
    _cleanup_free_ char *above =
        slash ? strndup(trimmed, slash == trimmed ? 1 : (size_t)(slash - trimmed)) : strdup(".");
    _cleanup_free_ char *parent = NULL;
    char *joined;
    if (!above)
        return -ENOMEM;
    int r = resolve_bounded(above, &parent);
    if (r < 0)
        return r;
    if (asprintf(&joined, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, name) < 0)
        return -ENOMEM;
    *ret = joined;
    return 0;
}

static bool is_dots(const char *trimmed)
{
    const char *slash = strrchr(trimmed, '/');
    const char *name = slash ? slash + 1 : trimmed;
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || name[0] == 0;
}

int mount_point_resolve(const struct mount_table *table, const char *path, char **ret,
                        struct failure *ret_failure)
{
    _cleanup_free_ char *trimmed = NULL;
    _cleanup_free_ char *place = NULL;
    char directory[PATH_MAX];
    if (trim(path, &trimmed) < 0)
        return failure_set(ret_failure, -ENOMEM, "%s", strerror(ENOMEM));
    int r = -ENOENT;
    if (strcmp(trimmed, ".") == 0 && syscall(SYS_getcwd, directory, sizeof directory) > 0) {
        place = strdup(directory);
        r = place ? 0 : -ENOMEM;
    } else if (!is_dots(trimmed)) {
        r = resolve_parent(trimmed, &place);
    }
    /* A symbolic link to a mountpoint, or "dir/..": only the filesystem can tell. */
    if (r == -ENOENT || (r == 0 && !mount_table_find(table, place))) {
        _cleanup_free_ char *real = NULL;
        int again = resolve_bounded(trimmed, &real);
        if (again == 0) {
            free(place);
            place = take_ptr(real);
        }
        r = again;
    }
    if (r == -ETIMEDOUT)
        return failure_set(ret_failure, r, "%s: the file system it is in does not answer", path);
    if (r < 0)
        return failure_set(ret_failure, r, "%s: %s", path, strerror(-r));
    *ret = take_ptr(place);
    return 0;
}

/* --- as JSON ------------------------------------------------------------------------------ */

static json_t *mount_json(const struct mount_row *row)
{
    json_t *info;
    struct failure failure;
    enum mount_state state = mount_state_read(row, &info, &failure);
    json_t *object = info ? info : json_object();
    int r = json_object_set_new(object, "mountpoint", text_json(row->point));
    r |= json_object_set_new(object, "state", json_string(mount_state_name(state)));
    if (!info) {
        r |= json_object_set_new(object, "url", text_json(row->source));
        r |= json_object_set_new(object, "error", text_json(failure.text));
    }
    if (r == 0)
        return object;
    json_decref(object);
    return NULL;
}

int mounts_json(json_t **ret)
{
    _cleanup_mount_table_ struct mount_table table = {0};
    int r = mount_table_read(&table);
    if (r < 0)
        return r;
    json_t *array = json_array();
    for (size_t i = 0; r == 0 && i < table.count; i++)
        if (mount_row_is_berth(&table.rows[i]) && strcmp(table.rows[i].root, "/") == 0)
            r = json_array_append_new(array, mount_json(&table.rows[i])) < 0 ? -ENOMEM : 0;
    if (r < 0 || !array) {
        json_decref(array);
        return -ENOMEM;
    }
    *ret = array;
    return 0;
}
