#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/file.h"
#include "config/config.h"

#define TOKEN_FILE_MAX (64 * 1024) /* a wrong file, such as a device, must not fill memory */

static void wipe_buffer(struct buffer *b)
{
    if (b->data)
        explicit_bzero(b->data, b->allocated);
    buffer_release(b);
}

static int read_private(const char *file, struct buffer *b, struct failure *f)
{
    _cleanup_close_ int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) {
        int error = errno == ENOENT || errno == EACCES ? -errno : -EINVAL;
        return failure_set(f, error, "token file %s: %s. Check the path and its permissions", file,
                           strerror(errno));
    }
    if (S_ISDIR(st.st_mode))
        return failure_set(f, -EINVAL, "token file %s: this is a directory. Name the file in it",
                           file);
    /* Pipes (from a password manager) have mode 0600 too. */
    if (st.st_mode & 077)
        return failure_set(f, -EACCES,
                           "token file %s: other users may use it (mode %04o). Run: chmod 600 %s",
                           file, (unsigned)(st.st_mode & 07777), file);
    if (buffer_reserve(b, TOKEN_FILE_MAX + 1) < 0)
        return failure_set(f, -ENOMEM, "token file %s: out of memory", file);
    int r = file_read_up_to(fd, b->data, TOKEN_FILE_MAX + 1, &b->len);
    if (r < 0)
        return failure_set(f, -EINVAL, "token file %s: cannot be read: %s", file, strerror(-r));
    if (b->len > TOKEN_FILE_MAX)
        return failure_set(f, -EINVAL, "token file %s: larger than %d KiB. Check the path", file,
                           TOKEN_FILE_MAX / 1024);
    return 0;
}

static int add_token(struct token_list *l, const char *start, size_t len)
{
    char **tokens = reallocarray(l->tokens, l->count + 1, sizeof *tokens);
    if (!tokens)
        return -ENOMEM;
    l->tokens = tokens;
    tokens[l->count] = strndup(start, len);
    return tokens[l->count++] ? 0 : -ENOMEM;
}

static bool is_token(const char *start, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (start[i] <= ' ' || start[i] >= 0x7f)
            return false;
    return len > 0;
}

static int parse(const char *file, const char *text, size_t size, struct token_list *l,
                 struct failure *f)
{
    size_t number = 0;
    for (const char *line = text, *end = text + size; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const char *stop = newline ? newline : end;
        const char *start = line;
        line = stop + 1;
        number++;
        while (start < stop && strchr(" \t\r", *start) && *start)
            start++;
        while (stop > start && strchr(" \t\r", stop[-1]) && stop[-1])
            stop--;
        size_t len = (size_t)(stop - start);
        if (len == 0 || *start == '#')
            continue;
        /* The line itself is not shown: it may be a token. */
        if (!is_token(start, len))
            return failure_set(f, -EINVAL,
                               "token file %s: line %zu is not a token. Write printable ASCII "
                               "without spaces, one token a line",
                               file, number);
        if (len > CONFIG_TOKEN_MAX)
            return failure_set(f, -EINVAL, "token file %s: line %zu is longer than %d bytes", file,
                               number, CONFIG_TOKEN_MAX);
        if (l->count == CONFIG_TOKENS_MAX)
            return failure_set(f, -EINVAL, "token file %s: more than %d tokens", file,
                               CONFIG_TOKENS_MAX);
        if (add_token(l, start, len) < 0)
            return failure_set(f, -ENOMEM, "token file %s: out of memory", file);
    }
    if (l->count == 0)
        return failure_set(f, -EINVAL, "token file %s: holds no token. Write one into it", file);
    return 0;
}

int token_list_load(const char *file, struct token_list *ret, struct failure *ret_failure)
{
    _cleanup_(wipe_buffer) struct buffer b = {0};
    _cleanup_token_list_ struct token_list l = {0};
    int r = read_private(file, &b, ret_failure);
    if (r == 0)
        r = parse(file, (const char *)b.data, b.len, &l, ret_failure);
    if (r < 0)
        return r;
    *ret = l;
    l = (struct token_list){0};
    return 0;
}

void token_list_release(struct token_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        if (l->tokens[i])
            explicit_bzero(l->tokens[i], strlen(l->tokens[i]));
        free(l->tokens[i]);
    }
    free(l->tokens);
    *l = (struct token_list){0};
}
