#include "access/grants_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/file.h"

static int file_failure(struct failure *f, int error, const char *file)
{
    return failure_set(f, error, "access file %s: %s", file, strerror(-error));
}

/* --- reading ---------------------------------------------------------------------------------- */

static int read_open_file(int fd, const char *file, struct buffer *b, struct stat *ret_stat,
                          struct failure *f)
{
    if (fstat(fd, ret_stat) < 0)
        return file_failure(f, -errno, file);
    if (!S_ISREG(ret_stat->st_mode))
        return failure_set(f, -EINVAL, "access file %s: this is not a regular file", file);
    if ((ret_stat->st_mode & 077) || (ret_stat->st_uid != geteuid() && ret_stat->st_uid != 0))
        return failure_set(f, -EACCES,
                           "access file %s: others may use it (mode %04o, user %u). It must be "
                           "yours alone: chown it, and run: chmod 600 %s",
                           file, (unsigned)(ret_stat->st_mode & 07777), (unsigned)ret_stat->st_uid,
                           file);
    if (buffer_reserve(b, GRANTS_FILE_MAX + 1) < 0)
        return file_failure(f, -ENOMEM, file);
    int r = file_read_up_to(fd, b->data, GRANTS_FILE_MAX + 1, &b->len);
    if (r < 0)
        return file_failure(f, r, file);
    if (b->len > GRANTS_FILE_MAX)
        return failure_set(f, -EINVAL, "access file %s: larger than %d KiB. Check the path", file,
                           GRANTS_FILE_MAX / 1024);
    return 0;
}

/* The line at *at with its end; false: no more. */
static bool next_line(const struct buffer *b, size_t *at, struct bytes *ret)
{
    if (*at >= b->len)
        return false;
    const uint8_t *start = b->data + *at;
    const uint8_t *newline = memchr(start, '\n', b->len - *at);
    size_t len = newline ? (size_t)(newline - start) + 1 : b->len - *at;
    *ret = bytes_of(start, len);
    *at += len;
    return true;
}

static bool says_nothing(struct bytes line)
{
    size_t i = 0;
    while (i < line.len && (line.data[i] == ' ' || line.data[i] == '\t' || line.data[i] == '\r' ||
                            line.data[i] == '\n'))
        i++;
    return i == line.len || line.data[i] == '#';
}

static const struct grant *find(const struct grants *grants, const char *id)
{
    for (size_t i = 0; i < grants->count; i++)
        if (strcmp(grants->list[i]->id, id) == 0)
            return grants->list[i];
    return NULL;
}

static int add_line(const char *file, size_t number, struct bytes line, struct grants *grants,
                    struct failure *f)
{
    struct grant *grant;
    struct failure why;
    if (grants->count == GRANTS_MAX)
        return failure_set(f, -EINVAL, "access file %s: more than %d lines", file, GRANTS_MAX);
    int r = grant_parse(line, &grant, &why);
    if (r < 0)
        return failure_set(f, r, "access file %s: line %zu: %s", file, number, why.text);
    if (find(grants, grant->id)) {
        r = failure_set(f, -EINVAL,
                        "access file %s: line %zu: there is a line with the id %s "
                        "before it",
                        file, number, grant->id);
        grant_unref(grant);
        return r;
    }
    grants->list[grants->count++] = grant;
    return 0;
}

static int parse(const char *file, const struct buffer *b, struct grants *ret, struct failure *f)
{
    _cleanup_grants_ struct grants grants = {.list = calloc(GRANTS_MAX, sizeof *grants.list)};
    struct bytes line;
    size_t number = 0;
    if (!grants.list)
        return file_failure(f, -ENOMEM, file);
    for (size_t at = 0; next_line(b, &at, &line);) {
        number++;
        int r = says_nothing(line) ? 0 : add_line(file, number, line, &grants, f);
        if (r < 0)
            return r;
    }
    *ret = grants;
    grants = (struct grants){0};
    return 0;
}

int grants_open(const char *file)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

int grants_read(int fd, const char *file, struct grants *ret, struct stat *ret_stat,
                struct failure *ret_failure)
{
    _cleanup_buffer_ struct buffer b = {0};
    if (fd == -ENOENT)
        return failure_set(ret_failure, -ENOENT,
                           "access file %s: there is none. `berth token create --access-file %s` "
                           "makes it",
                           file, file);
    if (fd < 0)
        return file_failure(ret_failure, fd, file);
    int r = read_open_file(fd, file, &b, ret_stat, ret_failure);
    return r < 0 ? r : parse(file, &b, ret, ret_failure);
}

int grants_load(const char *file, struct grants *ret, struct stat *ret_stat,
                struct failure *ret_failure)
{
    int fd = grants_open(file);
    int r = grants_read(fd, file, ret, ret_stat, ret_failure);
    close_fd(&fd);
    return r;
}

void grants_release(struct grants *grants)
{
    for (size_t i = 0; i < grants->count; i++)
        grant_unref(grants->list[i]);
    free(grants->list);
    *grants = (struct grants){0};
}

/* --- writing ---------------------------------------------------------------------------------- */

struct change {
    char *path; /* without links: the file, not a link to it, is replaced */
    int fd;     /* of what there is, locked; -1: nothing */
    struct stat stat;
    struct buffer text;
    struct grants grants;
};

static void change_release(struct change *c)
{
    free(c->path);
    close_fd(&c->fd);
    buffer_release(&c->text);
    grants_release(&c->grants);
}
#define _cleanup_change_ _cleanup_(change_release)

/* Whoever got the lock of a file that was replaced meanwhile has the wrong one. */
static int open_locked(const char *path, int *ret)
{
    for (;;) {
        struct stat here, there;
        _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
        if (fd < 0 || flock(fd, LOCK_EX) < 0 || fstat(fd, &here) < 0)
            return -errno;
        if (stat(path, &there) == 0 && here.st_dev == there.st_dev && here.st_ino == there.st_ino) {
            *ret = take_fd(&fd);
            return 0;
        }
    }
}

static int change_begin(struct change *c, const char *file, struct failure *f)
{
    c->path = realpath(file, NULL);
    if (!c->path && errno == ENOENT)
        c->path = strdup(file);
    if (!c->path)
        return file_failure(f, -errno, file);
    int r = open_locked(c->path, &c->fd);
    if (r < 0)
        return file_failure(f, r, file);
    r = read_open_file(c->fd, file, &c->text, &c->stat, f);
    return r < 0 ? r : parse(file, &c->text, &c->grants, f);
}

static int write_new(int fd, const struct change *c, const struct buffer *text)
{
    if (fchmod(fd, c->stat.st_mode & 0700) < 0)
        return -errno;
    int r = file_write_all(fd, text->data, text->len);
    return r < 0 ? r : fsync(fd) < 0 ? -errno : 0;
}

/* Readers find the old file or the new one, and never a part. */
static int change_end(const struct change *c, const struct buffer *text, const char *file,
                      struct failure *f)
{
    char temporary[PATH_MAX];
    if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", c->path) >= (int)sizeof temporary)
        return file_failure(f, -ENAMETOOLONG, file);
    _cleanup_close_ int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return file_failure(f, -errno, file);
    int r = write_new(fd, c, text);
    if (r == 0 && rename(temporary, c->path) < 0)
        r = -errno;
    if (r < 0) {
        (void)unlink(temporary);
        return file_failure(f, r, file);
    }
    return 0;
}

int grants_add(const char *file, const struct grant *grant, struct failure *ret_failure)
{
    _cleanup_change_ struct change c = {.fd = -1};
    _cleanup_free_ char *line = NULL;
    int r = change_begin(&c, file, ret_failure);
    if (r < 0)
        return r;
    if (find(&c.grants, grant->id))
        return failure_set(ret_failure, -EEXIST, "access file %s: there is one with the id %s",
                           file, grant->id);
    if (c.grants.count == GRANTS_MAX)
        return failure_set(ret_failure, -EINVAL, "access file %s: it has %d lines already", file,
                           GRANTS_MAX);
    r = grant_format(grant, &line);
    if (r == 0 && c.text.len > 0 && c.text.data[c.text.len - 1] != '\n')
        r = buffer_append_u8(&c.text, '\n');
    if (r == 0)
        r = buffer_printf(&c.text, "%s\n", line);
    return r < 0 ? file_failure(ret_failure, r, file) : change_end(&c, &c.text, file, ret_failure);
}

static bool is_line_of(struct bytes line, const char *id)
{
    struct grant *grant;
    struct failure ignored;
    if (says_nothing(line) || grant_parse(line, &grant, &ignored) < 0)
        return false;
    bool is = strcmp(grant->id, id) == 0;
    grant_unref(grant);
    return is;
}

int grants_remove(const char *file, const char *id, struct failure *ret_failure)
{
    _cleanup_change_ struct change c = {.fd = -1};
    _cleanup_buffer_ struct buffer rest = {0};
    struct bytes line;
    int r = access(file, F_OK) < 0 ? file_failure(ret_failure, -errno, file)
                                   : change_begin(&c, file, ret_failure);
    if (r < 0)
        return r;
    if (!find(&c.grants, id))
        return failure_set(ret_failure, -ENOENT, "access file %s: there is none with the id %s",
                           file, id);
    for (size_t at = 0; r == 0 && next_line(&c.text, &at, &line);)
        if (!is_line_of(line, id))
            r = buffer_append(&rest, line.data, line.len);
    return r < 0 ? file_failure(ret_failure, r, file) : change_end(&c, &rest, file, ret_failure);
}
