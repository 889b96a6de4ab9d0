#include "store/tree_reader.h"

#include "base/cleanup.h"
#include "base/dir.h"
#include "base/log.h"
#include "base/table.h"
#include "store/path.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* A file of several names, by the first that was found. */
struct linked {
    struct linked *next; /* of the same hash */
    dev_t device;
    ino_t ino;
    size_t path_len;
    char path[];
};

struct tree_reader {
    int root_fd;
    struct tree_reader_options options;
    struct buffer todo; /* paths of directories, each behind its length; the last is next */
    bool began;
    DIR *stream; /* of the directory at path[0 … directory_len) */
    int path_fd; /* what tells its attributes */
    size_t directory_len;
    struct visibility_state state; /* of it */
    int file_fd;
    char path[WIRE_TREE_PATH_MAX + 1];
    size_t path_len;
    char text[PATH_MAX];
    struct table linked; /* hash of identity -> struct linked */
    size_t linked_size;
};

int tree_reader_new(int root_fd, const struct tree_reader_options *options,
                    struct tree_reader **ret)
{
    struct tree_reader *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->root_fd = root_fd;
    r->options = *options;
    r->path_fd = r->file_fd = -1;
    *ret = r;
    return 0;
}

static void close_directory(struct tree_reader *r)
{
    dir_close(&r->stream);
    close_fd(&r->path_fd);
    visibility_state_release(&r->state);
    r->state = (struct visibility_state){0};
}

void tree_reader_free(struct tree_reader *r)
{
    size_t i = 0;
    struct linked *l;
    if (!r)
        return;
    close_directory(r);
    close_fd(&r->file_fd);
    while ((l = table_next(&r->linked, &i)))
        while (l) {
            struct linked *next = l->next;
            free(l);
            l = next;
        }
    table_release(&r->linked);
    buffer_release(&r->todo);
    free(r);
}

static int fail(const struct tree_reader *r, int error, struct failure *f)
{
    char path[160]; /* the reason is to be seen, too */
    (void)log_escape(r->path, r->path_len, path, sizeof path);
    if (error == -ENAMETOOLONG)
        return failure_set(f, error, "%s: it lies deeper than a path can say", path);
    if (error == -E2BIG)
        return failure_set(f, error, "%s: the tree is too large", path);
    return failure_set(f, error, "%s: %s", r->path_len ? path : "the root", strerror(-error));
}

/* --- directories that are to be read ------------------------------------------------- */

static int push(struct tree_reader *r)
{
    if (r->todo.len + r->path_len > TREE_READER_PATHS_MAX)
        return -E2BIG;
    int e = buffer_append(&r->todo, r->path, r->path_len);
    return e < 0 ? e : buffer_append_u32(&r->todo, (uint32_t)r->path_len);
}

static bool pop(struct tree_reader *r)
{
    if (!r->began) {
        r->began = true;
        r->path_len = 0;
        return true;
    }
    if (r->todo.len == 0)
        return false;
    uint32_t len;
    r->todo.len -= sizeof len;
    memcpy(&len, r->todo.data + r->todo.len, sizeof len);
    r->todo.len -= len;
    memcpy(r->path, r->todo.data + r->todo.len, len);
    r->path_len = len;
    return true;
}

static int find_state(struct tree_reader *r)
{
    const struct visibility_view *view = r->options.view;
    if (!view)
        return 0;
    int e = visibility_state_root(view, &r->state);
    for (size_t at = 0; e == 0 && at < r->path_len;) {
        const char *slash = memchr(r->path + at, '/', r->path_len - at);
        size_t len = slash ? (size_t)(slash - r->path) - at : r->path_len - at;
        struct visibility_state next;
        e = visibility_state_enter(view, &r->state, bytes_of(r->path + at, len), &next);
        if (e == 0) {
            visibility_state_release(&r->state);
            r->state = next;
        }
        at += len + 1;
    }
    return e;
}

/* Opens the directory at path. -ENOENT: it has gone, or is none any more. */
static int open_directory(struct tree_reader *r)
{
    char path[WIRE_TREE_PATH_MAX + 1];
    memcpy(path, r->path, r->path_len);
    path[r->path_len] = '\0';
    r->path_fd = r->path_len == 0
                     ? fcntl(r->root_fd, F_DUPFD_CLOEXEC, 0)
                     : path_open(r->root_fd, path, r->path_len, !r->options.openat2_missing);
    if (r->path_fd < 0) {
        int e = r->path_len == 0 ? -errno : r->path_fd;
        r->path_fd = -1;
        return e == -ELOOP || e == -ENOTDIR ? -ENOENT : e;
    }
    int opened = dir_open(r->path_fd, ".", &r->stream);
    if (opened < 0)
        return opened == -ENOTDIR ? -ENOENT : opened;
    r->directory_len = r->path_len;
    return find_state(r);
}

/* --- entries --------------------------------------------------------------------------- */

static void fill(const struct stat *st, uint32_t kind, struct wire_tree_item *ret)
{
    *ret = (struct wire_tree_item){
        .kind = kind,
        .mode = st->st_mode & 07777,
        .uid = st->st_uid,
        .gid = st->st_gid,
        .size = kind == WIRE_ITEM_FILE ? (uint64_t)st->st_size : 0,
        .mtime = {.sec = st->st_mtim.tv_sec, .nsec = (uint32_t)st->st_mtim.tv_nsec}};
}

/* 1: it was found by another name before, which is in ret->value. 0: it is noted now. */
static int note_linked(struct tree_reader *r, const struct stat *st, struct wire_tree_item *ret)
{
    uint64_t hash = table_hash_pair(st->st_dev, st->st_ino);
    struct linked *first = table_get(&r->linked, hash);
    for (const struct linked *l = first; l; l = l->next)
        if (l->device == st->st_dev && l->ino == st->st_ino) {
            ret->value = bytes_of(l->path, l->path_len);
            return 1;
        }
    size_t size = sizeof *first + r->path_len;
    if (r->linked_size + size > TREE_READER_PATHS_MAX)
        return -E2BIG;
    struct linked *l = malloc(size);
    if (!l)
        return -ENOMEM;
    *l = (struct linked){
        .next = first, .device = st->st_dev, .ino = st->st_ino, .path_len = r->path_len};
    memcpy(l->path, r->path, r->path_len);
    int e = table_put(&r->linked, hash, l, NULL);
    if (e < 0) {
        free(l);
        return e;
    }
    r->linked_size += size;
    return 0;
}

/* What has become something else since its type was looked at. */
#define CHANGED (-ESTALE)

static int take_file(struct tree_reader *r, const char *name, struct wire_tree_item *ret)
{
    struct stat st;
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    r->file_fd = openat(dirfd(r->stream), name, flags);
    if (r->file_fd < 0)
        return errno == ELOOP || errno == ENXIO ? CHANGED : -errno;
    if (fstat(r->file_fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return CHANGED;
    fill(&st, WIRE_ITEM_FILE, ret);
    int e = st.st_nlink > 1 ? note_linked(r, &st, ret) : 0;
    if (e == 1)
        ret->kind = WIRE_ITEM_HARD_LINK;
    return e < 0 ? e : 1;
}

static int take_symlink(struct tree_reader *r, const char *name, const struct stat *st,
                        struct wire_tree_item *ret)
{
    ssize_t n = readlinkat(dirfd(r->stream), name, r->text, sizeof r->text);
    if (n < 0)
        return errno == EINVAL ? CHANGED : -errno;
    fill(st, WIRE_ITEM_SYMLINK, ret);
    ret->value = bytes_of(r->text, (size_t)n);
    return 1;
}

/* 1: *ret is it; 0: there is nothing to tell of it, or not now. */
static int take_entry(struct tree_reader *r, const char *name, struct wire_tree_item *ret)
{
    struct stat st;
    if (fstatat(dirfd(r->stream), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (r->options.view && visibility_of(r->options.view, &r->state, bytes_of_string(name),
                                         S_ISDIR(st.st_mode)) == VISIBILITY_HIDDEN)
        return 0;
    if (S_ISDIR(st.st_mode))
        return push(r);
    if (S_ISREG(st.st_mode))
        return take_file(r, name, ret);
    if (S_ISLNK(st.st_mode))
        return take_symlink(r, name, &st, ret);
    if (S_ISFIFO(st.st_mode)) {
        fill(&st, WIRE_ITEM_FIFO, ret);
        return 1;
    }
    return 0;
}

/* The next of the open directory; 0: there is none. */
static int next_entry(struct tree_reader *r, struct wire_tree_item *ret)
{
    for (;;) {
        const struct dirent *entry;
        int e = dir_next(r->stream, &entry);
        if (e <= 0)
            return e;
        size_t len = strlen(entry->d_name), at = r->directory_len ? r->directory_len + 1 : 0;
        if (at + len > WIRE_TREE_PATH_MAX)
            return -ENAMETOOLONG;
        if (at)
            r->path[at - 1] = '/';
        memcpy(r->path + at, entry->d_name, len + 1);
        r->path_len = at + len;
        e = CHANGED;
        for (unsigned tries = 0; e == CHANGED && tries < 3; tries++) {
            close_fd(&r->file_fd);
            e = take_entry(r, entry->d_name, ret);
        }
        if (e < 0 && e != -ENOENT && e != CHANGED)
            return e;
        if (e == 1)
            return 1;
    }
}

int tree_reader_next(struct tree_reader *r, struct wire_tree_item *ret, int *ret_fd,
                     struct failure *ret_failure)
{
    struct stat st;
    int e = 0;
    close_fd(&r->file_fd);
    if (r->stream) {
        e = next_entry(r, ret);
        if (e == 0)
            close_directory(r);
    }
    while (e == 0 && pop(r)) {
        e = open_directory(r);
        if (e == 0)
            e = fstat(r->path_fd, &st) < 0 ? -errno : 1;
        if (e == 1)
            fill(&st, WIRE_ITEM_DIRECTORY, ret);
        else
            close_directory(r);
        if (e == -ENOENT && r->path_len > 0)
            e = 0;
    }
    if (e < 0)
        return fail(r, e, ret_failure);
    if (e == 0)
        return 0;
    ret->path = bytes_of(r->path, r->path_len);
    *ret_fd = ret->kind == WIRE_ITEM_DIRECTORY ? r->path_fd : -1;
    if (ret->kind == WIRE_ITEM_FILE)
        *ret_fd = r->file_fd;
    return 1;
}
