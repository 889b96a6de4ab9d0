#include "store/tree_writer.h"

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "store/fault.h"
#include "store/file_copy.h"
#include "store/path.h"
#include "store/tree_send.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

/* Of a directory until all is in it, and of one that no item is for. */
#define BUILDING_MODE 0700
#define IMPLIED_MODE 0755

/* What a file of others' may have. */
#define FOREIGN_MODE (S_ISVTX | 0777)

#define OWN_PREFIX "user.berth."

/* A directory's attributes, in w->directories by offset. */
struct directory {
    size_t path; /* offset of its NUL-terminated path in w->paths */
    size_t path_len;
    uint32_t mode, uid, gid;
    struct wire_time mtime;
    bool implied;
};

struct tree_writer {
    int root_fd;
    struct tree_writer_options options;
    char parent[WIRE_TREE_PATH_MAX + 1]; /* path of parent_fd */
    size_t parent_len;
    int parent_fd;
    int file_fd;                 /* of the entry that is being filled, if it is a file; else -1 */
    bool has_entry;              /* XATTRs may come */
    struct wire_tree_item entry; /* without its views */
    char path[WIRE_TREE_PATH_MAX + 1];
    size_t path_len;
    struct buffer paths;
    struct buffer directories;
    struct tree_counts counts;
    uint64_t looked_bytes, looked_entries, written;
};

int tree_writer_new(int root_fd, const struct tree_writer_options *options,
                    struct tree_writer **ret)
{
    struct tree_writer *w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    w->root_fd = root_fd;
    w->options = *options;
    w->parent_fd = w->file_fd = -1;
    w->counts.shared = true;
    *ret = w;
    return 0;
}

void tree_writer_free(struct tree_writer *w)
{
    if (!w)
        return;
    close_fd(&w->file_fd);
    close_fd(&w->parent_fd);
    buffer_release(&w->paths);
    buffer_release(&w->directories);
    free(w);
}

static int fail(const struct tree_writer *w, int error, const char *why, struct failure *f)
{
    char path[160]; /* the reason is to be seen, too */
    (void)log_escape(w->path, w->path_len, path, sizeof path);
    return failure_set(f, error, "%s: %s", w->path_len ? path : "the root", why);
}

static int fail_errno(const struct tree_writer *w, int error, struct failure *f)
{
    return fail(w, error, strerror(-error), f);
}

/* --- paths ----------------------------------------------------------------------- */

static int check_path(struct bytes path)
{
    if (path.len > WIRE_TREE_PATH_MAX)
        return -ENAMETOOLONG;
    for (size_t at = 0; at < path.len;) {
        const uint8_t *slash = memchr(path.data + at, '/', path.len - at);
        size_t len = slash ? (size_t)(slash - path.data) - at : path.len - at;
        if (!path_name_valid(path.data + at, len))
            return -EINVAL;
        if (len > NAME_MAX)
            return -ENAMETOOLONG;
        at += len + 1;
        if (slash && at == path.len)
            return -EINVAL; /* ends with a '/' */
    }
    return 0;
}

/* The directory of a path, in *ret; *ret_name: the rest, within the path. */
static int open_parent(struct tree_writer *w, char *path, size_t len, const char **ret_name,
                       int *ret)
{
    char *slash = memrchr(path, '/', len);
    size_t parent_len = slash ? (size_t)(slash - path) : 0;
    *ret_name = slash ? slash + 1 : path;
    if (parent_len == 0) {
        *ret = w->root_fd;
        return 0;
    }
    if (w->parent_fd < 0 || w->parent_len != parent_len ||
        memcmp(w->parent, path, parent_len) != 0) {
        close_fd(&w->parent_fd);
        memcpy(w->parent, path, parent_len);
        w->parent_len = parent_len;
        int fd = path_open(w->root_fd, w->parent, parent_len, !w->options.openat2_missing);
        memcpy(w->parent, path, parent_len); /* which it has written to */
        if (fd < 0)
            return fd;
        w->parent_fd = fd;
    }
    struct stat st;
    if (fstat(w->parent_fd, &st) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode)) {
        close_fd(&w->parent_fd);
        return S_ISLNK(st.st_mode) ? -ELOOP : -ENOTDIR;
    }
    *ret = w->parent_fd;
    return 0;
}

/* --- directories ------------------------------------------------------------------ */

static int remember_directory(struct tree_writer *w, const char *path, size_t len,
                              const struct wire_tree_item *item)
{
    const struct directory d = {.path = w->paths.len,
                                .path_len = len,
                                .mode = item ? item->mode : IMPLIED_MODE,
                                .uid = item ? item->uid : 0,
                                .gid = item ? item->gid : 0,
                                .mtime = item ? item->mtime : (struct wire_time){0},
                                .implied = !item};
    if (w->paths.len + w->directories.len + len > TREE_DIRECTORIES_MAX)
        return -E2BIG;
    int r = buffer_append(&w->paths, path, len);
    if (r == 0)
        r = buffer_append_u8(&w->paths, 0);
    return r < 0 ? r : buffer_append(&w->directories, &d, sizeof d);
}

/* Makes what is missing of the directories above the entry. */
static int make_parents(struct tree_writer *w)
{
    char path[WIRE_TREE_PATH_MAX + 1];
    for (size_t at = 0; at < w->path_len; at++) {
        const char *name;
        int fd;
        if (w->path[at] != '/')
            continue;
        memcpy(path, w->path, at);
        path[at] = '\0';
        int r = open_parent(w, path, at, &name, &fd);
        if (r < 0)
            return r;
        if (mkdirat(fd, name, BUILDING_MODE) == 0) {
            w->counts.entries++;
            r = remember_directory(w, path, at, NULL);
            if (r < 0)
                return r;
        } else if (errno != EEXIST) {
            return -errno;
        }
    }
    return 0;
}

static int entry_parent(struct tree_writer *w, const char **ret_name, int *ret)
{
    int r = open_parent(w, w->path, w->path_len, ret_name, ret);
    if (r == -ENOENT) {
        r = make_parents(w);
        if (r == 0)
            r = open_parent(w, w->path, w->path_len, ret_name, ret);
    }
    return r;
}

static int add_directory(struct tree_writer *w, const struct wire_tree_item *item)
{
    const char *name;
    int fd;
    if (w->path_len == 0) /* the root is ours, and so is how others may enter it */
        return w->options.own ? remember_directory(w, "", 0, item) : 0;
    int r = entry_parent(w, &name, &fd);
    if (r < 0)
        return r;
    if (mkdirat(fd, name, BUILDING_MODE) < 0) {
        struct stat st;
        if (errno != EEXIST || fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return -errno;
        if (!S_ISDIR(st.st_mode))
            return -EEXIST;
    }
    return remember_directory(w, w->path, w->path_len, item);
}

/* --- files and the like ------------------------------------------------------------ */

/* Room for an entry that is no directory: an earlier one of its name goes. */
static int make_room(int fd, const char *name)
{
    struct stat st;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (S_ISDIR(st.st_mode))
        return -EEXIST;
    return unlinkat(fd, name, 0) < 0 ? -errno : 0;
}

static int add_file(struct tree_writer *w, int fd, const char *name,
                    const struct wire_tree_item *item)
{
    w->file_fd = openat(fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (w->file_fd < 0)
        return -errno;
    if (item->size > INT64_MAX)
        return -EFBIG;
    w->counts.size += item->size;
    return item->size && ftruncate(w->file_fd, (off_t)item->size) < 0 ? -errno : 0;
}

static bool text_of(struct bytes value, char ret[PATH_MAX])
{
    if (value.len == 0 || value.len >= PATH_MAX || memchr(value.data, '\0', value.len))
        return false;
    memcpy(ret, value.data, value.len);
    ret[value.len] = '\0';
    return true;
}

static struct timespec timespec_of(struct wire_time t)
{
    return (struct timespec){.tv_sec = t.sec, .tv_nsec = (long)t.nsec};
}

static int add_symlink(const struct tree_writer *w, int fd, const char *name,
                       const struct wire_tree_item *item)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, timespec_of(item->mtime)};
    char text[PATH_MAX];
    if (!text_of(item->value, text))
        return -EINVAL;
    if (symlinkat(text, fd, name) < 0)
        return -errno;
    if (w->options.own && fchownat(fd, name, item->uid, item->gid, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    return utimensat(fd, name, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int add_hard_link(struct tree_writer *w, const struct wire_tree_item *item)
{
    char text[PATH_MAX];
    const char *name;
    int fd;
    struct stat st;
    if (check_path(item->value) < 0 || !text_of(item->value, text))
        return -EINVAL;
    /* The two parents are different directories: the one that is kept open is for the other. */
    _cleanup_close_ int from_fd = -1;
    char *slash = memrchr(text, '/', item->value.len);
    if (slash) {
        from_fd = path_open(w->root_fd, text, (size_t)(slash - text), !w->options.openat2_missing);
        if (from_fd < 0)
            return from_fd;
    }
    const char *from_name = slash ? slash + 1 : text;
    int parent_fd = slash ? from_fd : w->root_fd;
    if (fstatat(parent_fd, from_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    int r = entry_parent(w, &name, &fd);
    if (r < 0)
        return r;
    if (linkat(parent_fd, from_name, fd, name, 0) == 0)
        return 0;
    if (errno != EEXIST)
        return -errno;
    struct stat there;
    if (fstatat(fd, name, &there, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (there.st_ino == st.st_ino && there.st_dev == st.st_dev)
        return 0; /* a link to itself would else remove what it leads to */
    r = make_room(fd, name);
    return r < 0 ? r : linkat(parent_fd, from_name, fd, name, 0) < 0 ? -errno : 0;
}

static mode_t mode_of(const struct tree_writer *w, const struct wire_tree_item *item)
{
    return item->mode & (w->options.own ? 07777 : FOREIGN_MODE);
}

/* In this order: a change of the owner takes set-user-ID away. */
static int set_attributes(const struct tree_writer *w, int fd, const struct wire_tree_item *item)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, timespec_of(item->mtime)};
    char path[PATH_OF_FD_SIZE];
    (void)path_of_fd(fd, path);
    if (w->options.own && chown(path, item->uid, item->gid) < 0)
        return -errno;
    if (chmod(path, mode_of(w, item)) < 0 || utimensat(AT_FDCWD, path, times, 0) < 0)
        return -errno;
    return 0;
}

static int add_fifo(const struct tree_writer *w, int fd, const char *name,
                    const struct wire_tree_item *item)
{
    if (mkfifoat(fd, name, 0600) < 0)
        return -errno;
    _cleanup_close_ int fifo = openat(fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return fifo < 0 ? -errno : set_attributes(w, fifo, item);
}

/* Nothing more comes for the entry. */
static int end_entry(struct tree_writer *w)
{
    int r = w->file_fd >= 0 ? set_attributes(w, w->file_fd, &w->entry) : 0;
    close_fd(&w->file_fd);
    w->has_entry = false;
    return r;
}

/* --- how much there is -------------------------------------------------------------- */

static uint64_t reserve(uint64_t total, uint64_t most)
{
    return total / TREE_RESERVE_SHARE < most ? total / TREE_RESERVE_SHARE : most;
}

static int look_at_disk(struct tree_writer *w, struct failure *f)
{
    struct statvfs s;
    if (w->written - w->looked_bytes < TREE_LOOK_BYTES &&
        w->counts.entries - w->looked_entries < TREE_LOOK_ENTRIES)
        return 0;
    w->looked_bytes = w->written;
    w->looked_entries = w->counts.entries;
    if (fstatvfs(w->root_fd, &s) < 0)
        return fail_errno(w, -errno, f);
    if ((uint64_t)s.f_bavail * s.f_frsize <
        reserve((uint64_t)s.f_blocks * s.f_frsize, TREE_RESERVE_BYTES))
        return fail(w, -ENOSPC, "the tree would fill the service's disk", f);
    if (s.f_files && s.f_favail < reserve(s.f_files, TREE_RESERVE_BYTES))
        return fail(w, -ENOSPC, "the tree would take all inodes of the service's disk", f);
    return 0;
}

/* --- items ---------------------------------------------------------------------------- */

static int begin_entry(struct tree_writer *w, const struct wire_tree_item *item)
{
    const char *name;
    int fd;
    if (w->path_len == 0 && item->kind != WIRE_ITEM_DIRECTORY)
        return -EINVAL;
    if (tree_hides(w->options.view, item->path, item->kind == WIRE_ITEM_DIRECTORY))
        return -EPERM;
    if (++w->counts.entries > TREE_ENTRIES_MAX)
        return -E2BIG;
    fault_point(FAULT_TREE_ENTRY);
    if (item->kind == WIRE_ITEM_DIRECTORY)
        return add_directory(w, item);
    if (item->kind == WIRE_ITEM_HARD_LINK)
        return add_hard_link(w, item);
    int r = entry_parent(w, &name, &fd);
    if (r == 0)
        r = make_room(fd, name);
    if (r < 0)
        return r;
    if (item->kind == WIRE_ITEM_FILE)
        return add_file(w, fd, name, item);
    return item->kind == WIRE_ITEM_SYMLINK ? add_symlink(w, fd, name, item)
                                           : add_fifo(w, fd, name, item);
}

static int add_data(struct tree_writer *w, const struct wire_tree_item *item)
{
    const uint8_t *data = item->value.data;
    size_t left = item->value.len;
    uint64_t at = item->offset;
    if (w->file_fd < 0 || at > w->entry.size || left > w->entry.size - at)
        return -EINVAL;
    w->written += left;
    while (left > 0) {
        ssize_t n = pwrite(w->file_fd, data, left, (off_t)at);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            data += n;
            left -= (size_t)n;
            at += (uint64_t)n;
        }
    }
    return 0;
}

static bool may_have(const struct tree_writer *w, const char *name)
{
    if (w->options.own)
        return true;
    return strncmp(name, "user.", 5) == 0 && strncmp(name, OWN_PREFIX, sizeof OWN_PREFIX - 1) != 0;
}

static int add_xattr(struct tree_writer *w, const struct wire_tree_item *item)
{
    char name[XATTR_NAME_MAX + 1], path[PATH_OF_FD_SIZE];
    struct bytes n = item->path;
    bool root = w->path_len == 0;
    if (!w->has_entry || n.len == 0 || n.len > XATTR_NAME_MAX || memchr(n.data, '\0', n.len))
        return -EINVAL;
    memcpy(name, n.data, n.len);
    name[n.len] = '\0';
    if (!may_have(w, name))
        return -EPERM;
    if (w->file_fd >= 0)
        return fsetxattr(w->file_fd, name, item->value.data, item->value.len, 0) < 0 ? -errno : 0;
    if (w->entry.kind != WIRE_ITEM_DIRECTORY)
        return -EINVAL;
    _cleanup_close_ int fd = -1;
    if (!root) {
        char copy[WIRE_TREE_PATH_MAX + 1];
        memcpy(copy, w->path, w->path_len);
        fd = path_open(w->root_fd, copy, w->path_len, !w->options.openat2_missing);
        if (fd < 0)
            return fd;
    }
    (void)path_of_fd(root ? w->root_fd : fd, path);
    return setxattr(path, name, item->value.data, item->value.len, 0) < 0 ? -errno : 0;
}

static bool is_entry(uint32_t kind)
{
    return kind >= WIRE_ITEM_DIRECTORY && kind <= WIRE_ITEM_FIFO;
}

static int add(struct tree_writer *w, const struct wire_tree_item *item, struct failure *f)
{
    int r = 0;
    if (is_entry(item->kind)) {
        r = end_entry(w);
        if (r < 0)
            return fail_errno(w, r, f);
        r = check_path(item->path);
        w->path_len = item->path.len <= WIRE_TREE_PATH_MAX ? item->path.len : 0;
        if (w->path_len)
            memcpy(w->path, item->path.data, w->path_len);
        w->path[w->path_len] = '\0';
        if (r < 0)
            return fail(w, r, r == -EINVAL ? "not a relative path of plain names" : strerror(-r),
                        f);
        w->entry = *item;
        r = begin_entry(w, item);
        w->has_entry = r == 0;
    } else if (item->kind == WIRE_ITEM_DATA) {
        r = add_data(w, item);
    } else if (item->kind == WIRE_ITEM_XATTR) {
        r = add_xattr(w, item);
    } else {
        r = -EINVAL;
    }
    if (r == -EEXIST) /* which would be of the workspace to who makes it */
        return fail(w, -EBADMSG, "a directory, and something else of the same name", f);
    if (r == -ELOOP)
        return fail(w, r, "it lies behind a symbolic link", f);
    if (r == -EPERM)
        return fail(w, r, "the service does not let it be made", f);
    if (r == -E2BIG)
        return fail(w, r, "the tree has too many entries", f);
    return r < 0 ? fail_errno(w, r, f) : look_at_disk(w, f);
}

int tree_writer_add(struct tree_writer *w, const struct wire_tree_item *item,
                    struct failure *ret_failure)
{
    if (item->kind == WIRE_ITEM_DATA && item->value.len > 0)
        w->counts.shared = false;
    return add(w, item, ret_failure);
}

int tree_writer_add_copy(struct tree_writer *w, const struct wire_tree_item *item, int from_fd,
                         bool (*cancelled)(void *context), void *context,
                         struct failure *ret_failure)
{
    bool shared = true;
    int r = add(w, item, ret_failure);
    if (r < 0 || item->size == 0)
        return r;
    r = file_copy(from_fd, w->file_fd, item->size, cancelled, context, &shared);
    if (r < 0)
        return fail_errno(w, r, ret_failure);
    w->counts.shared = w->counts.shared && shared;
    w->written += shared ? 0 : item->size;
    return look_at_disk(w, ret_failure);
}

int tree_writer_add_list(struct tree_writer *w, const struct wire_list *list,
                         struct failure *ret_failure)
{
    struct bytes element;
    uint32_t offset = 0;
    int r = 0;
    while (r == 0 && wire_list_next(list, &offset, &element)) {
        struct wire_message m;
        if (wire_decode(WIRE_TREE_ITEM, element, &m) < 0)
            return failure_set(ret_failure, -EBADMSG, "what was sent is no tree");
        r = tree_writer_add(w, &m.tree_item, ret_failure);
    }
    return r;
}

/* --- the end -------------------------------------------------------------------------- */

/* Longer paths first: whoever gets no rights has had his children done. */
static int compare_directories(const void *a, const void *b)
{
    const struct directory *x = a, *y = b;
    if (x->path_len != y->path_len)
        return x->path_len > y->path_len ? -1 : 1;
    /* Of those of one path the last that came counts. */
    return x->path < y->path ? -1 : 1;
}

static int finish_directory(struct tree_writer *w, const struct directory *d)
{
    _cleanup_close_ int fd = -1;
    if (d->path_len > 0) {
        memcpy(w->path, w->paths.data + d->path, d->path_len + 1);
        fd = path_open(w->root_fd, w->path, d->path_len, !w->options.openat2_missing);
        if (fd < 0)
            return fd;
    }
    int at = d->path_len ? fd : w->root_fd;
    char path[PATH_OF_FD_SIZE];
    if (d->implied)
        return chmod(path_of_fd(at, path), d->mode) < 0 ? -errno : 0;
    const struct wire_tree_item item = {
        .mode = d->mode, .uid = d->uid, .gid = d->gid, .mtime = d->mtime};
    return set_attributes(w, at, &item);
}

int tree_writer_finish(struct tree_writer *w, struct tree_counts *ret, struct failure *ret_failure)
{
    int r = end_entry(w);
    if (r < 0)
        return fail_errno(w, r, ret_failure);
    close_fd(&w->parent_fd);
    size_t count = w->directories.len / sizeof(struct directory);
    struct directory *all = (struct directory *)(void *)w->directories.data;
    if (count > 0)
        qsort(all, count, sizeof *all, compare_directories);
    for (size_t i = 0; i < count; i++) {
        w->path_len = all[i].path_len;
        r = finish_directory(w, &all[i]);
        if (r < 0)
            return fail_errno(w, r, ret_failure);
    }
    /* One by one would be a commit of the filesystem's for each. */
    if (syncfs(w->root_fd) < 0)
        return failure_set(ret_failure, -errno, "cannot write the tree to the disk: %s",
                           strerror(errno));
    fault_point(FAULT_TREE_BUILT);
    *ret = w->counts;
    return 0;
}
