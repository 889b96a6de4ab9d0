#include "store/tree_send.h"

#include "base/file.h"
#include "store/path.h"

#include <fcntl.h>
#include <string.h>
#include <sys/xattr.h>

/* All names of one file's attributes: what the kernel gives. */
#define NAMES_MAX 65536

bool tree_hides(const struct visibility_view *view, struct bytes path, bool directory)
{
    struct visibility_state state, next;
    if (!view)
        return false;
    int r = visibility_state_root(view, &state);
    enum visibility v = VISIBILITY_SHOW;
    if (r < 0)
        return true;
    for (size_t at = 0; r == 0 && at < path.len && v != VISIBILITY_HIDDEN;) {
        const uint8_t *slash = memchr(path.data + at, '/', path.len - at);
        size_t len = slash ? (size_t)(slash - path.data) - at : path.len - at;
        struct bytes name = bytes_of(path.data + at, len);
        v = visibility_of(view, &state, name, slash || directory);
        if (slash) {
            r = visibility_state_enter(view, &state, name, &next);
            if (r == 0) {
                visibility_state_release(&state);
                state = next;
            }
        }
        at += len + 1;
    }
    visibility_state_release(&state);
    return r < 0 || v == VISIBILITY_HIDDEN;
}

/* --- attributes ------------------------------------------------------------------------- */

static bool has_prefix(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* What others' programs may set is sent to them; what the kernel makes up, to nobody. */
static bool is_sent(const char *name, bool own)
{
    if (has_prefix(name, "user."))
        return !has_prefix(name, "user.berth.");
    return own && (has_prefix(name, "system.posix_acl_") || has_prefix(name, "trusted.") ||
                   strcmp(name, "security.capability") == 0);
}

int tree_xattrs(int fd, bool own, int (*each)(void *context, const struct wire_tree_item *item),
                void *context)
{
    char path[PATH_OF_FD_SIZE];
    (void)path_of_fd(fd, path);
    ssize_t size = listxattr(path, NULL, 0);
    if (size <= 0)
        return 0; /* there are none, or the filesystem knows none */
    _cleanup_free_ char *names = malloc(NAMES_MAX);
    _cleanup_free_ char *value = malloc(WIRE_TREE_VALUE_MAX);
    if (!names || !value)
        return -ENOMEM;
    size = listxattr(path, names, NAMES_MAX);
    int r = 0;
    for (ssize_t at = 0; r == 0 && at < size;) {
        const char *name = names + at;
        at += (ssize_t)strlen(name) + 1;
        if (!is_sent(name, own))
            continue;
        ssize_t n = getxattr(path, name, value, WIRE_TREE_VALUE_MAX);
        if (n < 0)
            continue; /* it has gone */
        const struct wire_tree_item item = {.kind = WIRE_ITEM_XATTR,
                                            .path = bytes_of_string(name),
                                            .value = bytes_of(value, (size_t)n)};
        r = each(context, &item);
    }
    return r;
}

/* --- sending ---------------------------------------------------------------------------- */

static int batch_each(void *context, const struct wire_tree_item *item)
{
    return tree_batch_add(context, item);
}

/* What is no hole of [at, end), in one portion after the other. */
static int send_extent(int fd, uint64_t at, uint64_t end, uint8_t *buffer, struct tree_batch *batch,
                       const struct tree_stop *stop)
{
    while (at < end) {
        size_t size = end - at < WIRE_TREE_VALUE_MAX ? (size_t)(end - at) : WIRE_TREE_VALUE_MAX;
        size_t got;
        if (tree_stopped(stop))
            return -ECANCELED;
        int r = file_read_at(fd, buffer, size, at, &got);
        if (r < 0 || got == 0)
            return r;
        const struct wire_tree_item item = {
            .kind = WIRE_ITEM_DATA, .offset = at, .value = bytes_of(buffer, got)};
        r = tree_batch_add(batch, &item);
        if (r < 0)
            return r;
        at += got;
    }
    return 0;
}

static int send_data(int fd, uint64_t size, uint8_t *buffer, struct tree_batch *batch,
                     const struct tree_stop *stop)
{
    uint64_t at = 0;
    /* A small file has no hole worth two system calls. */
    if (size <= WIRE_TREE_VALUE_MAX)
        return send_extent(fd, 0, size, buffer, batch, stop);
    while (at < size) {
        off_t data = lseek(fd, (off_t)at, SEEK_DATA);
        if (data < 0)
            return errno == ENXIO ? 0 : -errno;
        off_t hole = lseek(fd, data, SEEK_HOLE);
        if (hole < 0)
            return errno == ENXIO ? 0 : -errno;
        uint64_t end = (uint64_t)hole < size ? (uint64_t)hole : size;
        int r = send_extent(fd, (uint64_t)data, end, buffer, batch, stop);
        if (r < 0)
            return r;
        at = (uint64_t)hole;
    }
    return 0;
}

int tree_send(int root_fd, const struct tree_reader_options *options, bool own,
              const struct tree_sink *sink, const struct tree_stop *stop, struct tree_counts *ret,
              struct failure *ret_failure)
{
    _cleanup_tree_reader_ struct tree_reader *reader = NULL;
    _cleanup_tree_batch_ struct tree_batch batch = {.sink = *sink};
    _cleanup_free_ uint8_t *buffer = malloc(WIRE_TREE_VALUE_MAX);
    struct tree_counts counts = {0};
    struct wire_tree_item item;
    int fd;
    int r = buffer ? tree_reader_new(root_fd, options, &reader) : -ENOMEM;
    if (r < 0)
        return failure_set(ret_failure, r, "out of memory");
    while ((r = tree_reader_next(reader, &item, &fd, ret_failure)) == 1) {
        counts.entries++;
        counts.size += item.size;
        r = tree_stopped(stop) ? -ECANCELED : tree_batch_add(&batch, &item);
        if (r == 0 && fd >= 0)
            r = tree_xattrs(fd, own, batch_each, &batch);
        if (r == 0 && item.kind == WIRE_ITEM_FILE && item.size > 0)
            r = send_data(fd, item.size, buffer, &batch, stop);
        if (r < 0)
            return failure_set(ret_failure, r, "%s", strerror(-r));
    }
    if (r < 0)
        return r; /* the failure is the reader's */
    r = tree_batch_flush(&batch);
    if (r < 0)
        return failure_set(ret_failure, r, "%s", strerror(-r));
    *ret = counts;
    return 0;
}
