#include "keeper/record.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/dir.h"
#include "base/file.h"
#include "base/hash.h"
#include "names/thread_id.h"

/* Format and version. */
#define RECORD_MAGIC "berthx4\n"
#define RECORD_MAGIC_SIZE 8
#define RECORD_FIXED (RECORD_MAGIC_SIZE + 9 * 8)
#define RECORD_HASH_SIZE 8

/* No record is larger, and no file has more of them: stops a damaged or planted file from taking
 * all memory. */
#define RECORD_MAX ((size_t)16384)
#define RECORD_FILE_MAX (4 * RECORD_MAX)

/* Files in the directory of a command. */
static const char *const names[] = {RECORD_NAME, RECORD_STDOUT, RECORD_STDERR};

static int open_directory(int at, const char *name, int *ret)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    *ret = fd;
    return 0;
}

static int directory_names(struct bytes workspace, struct bytes id,
                           char ret_workspace[THREAD_NAME_MAX + 1],
                           char ret_id[THREAD_NAME_MAX + 1])
{
    int r = thread_id_to_name(workspace, ret_workspace);
    return r < 0 ? r : thread_id_to_name(id, ret_id);
}

int record_make_directory(int exec, struct bytes workspace, struct bytes id, int *ret)
{
    char workspace_name[THREAD_NAME_MAX + 1];
    char id_name[THREAD_NAME_MAX + 1];
    int r = directory_names(workspace, id, workspace_name, id_name);
    if (r < 0)
        return r;
    _cleanup_close_ int parent = -1;
    r = open_directory(exec, workspace_name, &parent);
    if (r == -ENOENT && mkdirat(exec, workspace_name, 0700) < 0 && errno != EEXIST)
        return -errno;
    if (r == -ENOENT)
        r = open_directory(exec, workspace_name, &parent);
    if (r < 0)
        return r;
    if (mkdirat(parent, id_name, 0700) < 0)
        return -errno;
    return open_directory(parent, id_name, ret);
}

int record_open_directory(int exec, struct bytes workspace, struct bytes id, int *ret)
{
    char workspace_name[THREAD_NAME_MAX + 1];
    char id_name[THREAD_NAME_MAX + 1];
    int r = directory_names(workspace, id, workspace_name, id_name);
    _cleanup_close_ int parent = -1;
    if (r == 0)
        r = open_directory(exec, workspace_name, &parent);
    return r < 0 ? r : open_directory(parent, id_name, ret);
}

void record_remove_directory(int exec, struct bytes workspace, struct bytes id)
{
    char workspace_name[THREAD_NAME_MAX + 1];
    char id_name[THREAD_NAME_MAX + 1];
    _cleanup_close_ int parent = -1;
    _cleanup_close_ int directory = -1;
    if (directory_names(workspace, id, workspace_name, id_name) < 0 ||
        open_directory(exec, workspace_name, &parent) < 0)
        return;
    if (open_directory(parent, id_name, &directory) == 0)
        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
            (void)unlinkat(directory, names[i], 0);
    (void)unlinkat(parent, id_name, AT_REMOVEDIR);
}

static int record_encode(const struct record *r, struct buffer *b)
{
    _cleanup_buffer_ struct buffer encoded = {0};
    const struct wire_message message = {.type = WIRE_EXEC_COMMAND, .exec_command = r->command};
    int e = wire_encode(&encoded, &message);
    if (e < 0)
        return e;
    int failed = buffer_append(b, RECORD_MAGIC, RECORD_MAGIC_SIZE) ||
                 buffer_append_u64(b, RECORD_FIXED + encoded.len + RECORD_HASH_SIZE) ||
                 buffer_append_u64(b, r->slot) || buffer_append_u64(b, r->words);
    for (size_t i = 0; i < ARRAY_SIZE(r->spools); i++)
        failed = failed || buffer_append_u64(b, r->spools[i].keep) ||
                 buffer_append_u64(b, r->spools[i].end) ||
                 buffer_append_u64(b, r->spools[i].stored);
    if (failed || buffer_append(b, encoded.data, encoded.len) < 0)
        return -ENOMEM;
    return buffer_append_u64(b, hash_end(hash_bytes(HASH_START, b->data, b->len)));
}

int record_write(int directory, struct record *r)
{
    _cleanup_buffer_ struct buffer content = {0};
    struct stat st;
    int e = record_encode(r, &content);
    if (e < 0)
        return e;
    _cleanup_close_ int fd =
        openat(directory, RECORD_NAME, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    /* What is behind is a part of one, for which there was no room; what is missing is all lost. */
    if ((uint64_t)st.st_size < r->end)
        r->end = 0;
    if ((uint64_t)st.st_size != r->end && ftruncate(fd, (off_t)r->end) < 0)
        return -errno;
    e = lseek(fd, (off_t)r->end, SEEK_SET) < 0 ? -errno
                                               : file_write_all(fd, content.data, content.len);
    if (e == 0)
        r->end += content.len;
    else
        (void)!ftruncate(fd, (off_t)r->end);
    return e;
}

static uint64_t get_u64(const uint8_t *p)
{
    uint64_t v = 0;
    for (size_t i = 8; i > 0; i--)
        v = v << 8 | p[i - 1];
    return v;
}

/* The length of the record that content begins with, if its sum is right; or 0. */
static size_t record_length(struct bytes content)
{
    if (content.len < RECORD_FIXED + RECORD_HASH_SIZE ||
        memcmp(content.data, RECORD_MAGIC, RECORD_MAGIC_SIZE) != 0)
        return 0;
    uint64_t len = get_u64(content.data + RECORD_MAGIC_SIZE);
    if (len < RECORD_FIXED + RECORD_HASH_SIZE || len > content.len || len > RECORD_MAX)
        return 0;
    size_t summed = (size_t)len - RECORD_HASH_SIZE;
    bool right =
        get_u64(content.data + summed) == hash_end(hash_bytes(HASH_START, content.data, summed));
    return right ? (size_t)len : 0;
}

static int record_decode(struct bytes content, struct record *ret)
{
    const uint8_t *p = content.data + RECORD_MAGIC_SIZE + 8;
    ret->slot = (uint32_t)get_u64(p);
    ret->words = get_u64(p + 8);
    p += 16;
    for (size_t i = 0; i < ARRAY_SIZE(ret->spools); i++, p += 24)
        ret->spools[i] = (struct spool_geometry){
            .keep = get_u64(p), .end = get_u64(p + 8), .stored = get_u64(p + 16)};
    struct wire_message message;
    int r = wire_decode(WIRE_EXEC_COMMAND,
                        bytes_of(p, content.len - RECORD_FIXED - RECORD_HASH_SIZE), &message);
    if (r < 0)
        return r;
    ret->command = message.exec_command;
    return 0;
}

int record_read(int directory, struct buffer *storage, struct record *ret)
{
    _cleanup_buffer_ struct buffer all = {0};
    _cleanup_close_ int fd =
        openat(directory, RECORD_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = buffer_reserve(&all, RECORD_FILE_MAX);
    if (r == 0)
        r = file_read_up_to(fd, all.data, RECORD_FILE_MAX, &all.len);
    if (r < 0)
        return r;
    struct bytes last = {0};
    for (size_t at = 0; at < all.len; at += last.len) {
        last = bytes_of(all.data + at, record_length(bytes_of(all.data + at, all.len - at)));
        if (last.len == 0)
            return -EBADMSG;
    }
    if (last.len == 0)
        return -EBADMSG;
    storage->len = 0;
    r = buffer_append(storage, last.data, last.len);
    if (r == 0)
        r = record_decode(buffer_view(storage), ret);
    if (r == 0)
        ret->end = all.len;
    return r;
}

/* The ID that has this name, and whether there is one. A workspace's may be too long to be told by
 * its name; it is in the records then, and empty here. */
static bool id_of(const char *name, uint8_t id[THREAD_ID_MAX], struct bytes *ret)
{
    int n = thread_id_from_name(bytes_of_string(name), id);
    *ret = bytes_of(id, n > 0 ? (size_t)n : 0);
    return n > 0 || n == -ENODATA;
}

void record_tidy(int exec)
{
    _cleanup_dir_ DIR *all = NULL;
    const struct dirent *entry;
    if (dir_open(exec, ".", &all) < 0)
        return;
    while (dir_next(all, &entry) == 1)
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
            (void)unlinkat(exec, entry->d_name, AT_REMOVEDIR);
}

int record_each(int exec,
                void (*each)(void *context, struct bytes workspace, struct bytes id, int directory),
                void *context)
{
    _cleanup_dir_ DIR *all = NULL;
    const struct dirent *outer;
    int r = dir_open(exec, ".", &all);
    while (r >= 0 && (r = dir_next(all, &outer)) == 1) {
        uint8_t workspace_id[THREAD_ID_MAX];
        uint8_t command_id[THREAD_ID_MAX];
        struct bytes workspace;
        struct bytes id;
        _cleanup_dir_ DIR *commands = NULL;
        const struct dirent *inner;
        if (!id_of(outer->d_name, workspace_id, &workspace) ||
            dir_open(exec, outer->d_name, &commands) < 0)
            continue;
        while (dir_next(commands, &inner) == 1) {
            _cleanup_close_ int directory = -1;
            if (id_of(inner->d_name, command_id, &id) && id.len > 0 &&
                open_directory(dirfd(commands), inner->d_name, &directory) == 0)
                each(context, workspace, id, directory);
        }
    }
    return r;
}
