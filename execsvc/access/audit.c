#include "access/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"

struct audit {
    char *file;
    int (*open)(void *context);
    void *context;
    int fd;          /* -1: it could not be opened */
    uint64_t lost;   /* ever */
    uint64_t untold; /* of these, not in the log */
    bool torn;       /* what was written last has no end of line */
    bool failed;
};

int audit_file_open(const char *file)
{
    return file_open_log(file);
}

int audit_open(const char *file, int (*open)(void *context), void *context, struct audit **ret,
               struct failure *ret_failure)
{
    int fd = open(context);
    if (fd < 0)
        return failure_set(ret_failure, fd, "audit log %s: %s", file, file_log_error(fd));
    struct audit *a = calloc(1, sizeof *a);
    if (a)
        a->file = strdup(file);
    if (!a || !a->file) {
        free(a);
        (void)close(fd);
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    }
    a->open = open;
    a->context = context;
    a->fd = fd;
    *ret = a;
    return 0;
}

void audit_close(struct audit *a)
{
    if (!a)
        return;
    close_fd(&a->fd);
    free(a->file);
    free(a);
}

static void note_failure(struct audit *a, int error)
{
    if (!a->failed)
        log_error("audit log %s: %s; what would be in it is refused until it can be written",
                  a->file, file_log_error(error));
    a->failed = true;
}

/* With the end of a line that was cut off before it. */
static int append(struct audit *a, const char *text, size_t len)
{
    if (a->fd < 0)
        return -EBADF;
    if (a->torn) {
        if (write(a->fd, "\n", 1) != 1)
            return errno ? -errno : -EIO;
        a->torn = false;
    }
    ssize_t n = write(a->fd, text, len);
    if (n == (ssize_t)len)
        return 0;
    a->torn = n > 0;
    return n < 0 ? -errno : -ENOSPC;
}

static int append_object(struct audit *a, json_t *object)
{
    struct timespec now;
    struct tm tm;
    char when[40], text[64];
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &tm));
    (void)snprintf(text, sizeof text, "%s.%03dZ", when, (int)(now.tv_nsec / 1000000));
    if (!object || json_object_set_new(object, "time", json_string(text)) < 0)
        return -ENOMEM;
    _cleanup_free_ char *line = json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII);
    size_t len = line ? strlen(line) : 0;
    if (len == 0)
        return -ENOMEM;
    line[len] = '\n'; /* in the place of its NUL */
    return append(a, line, len + 1);
}

bool audit_works(struct audit *a)
{
    if (!a || !a->failed)
        return true;
    if (a->fd < 0) {
        int fd = a->open(a->context);
        if (fd < 0)
            return false;
        a->fd = fd;
    }
    json_t *object = json_pack("{s:s,s:I}", "message", "LOST", "count", (json_int_t)a->untold);
    int r = append_object(a, object);
    json_decref(object);
    if (r < 0)
        return false;
    a->untold = 0;
    a->failed = false;
    log_info("audit log %s: it can be written again", a->file);
    return true;
}

void audit_reopen(struct audit *a)
{
    int fd = a->open(a->context);
    close_fd(&a->fd);
    a->torn = false;
    a->fd = fd < 0 ? -1 : fd;
    if (fd < 0)
        note_failure(a, fd);
    else
        log_info("audit log %s: opened again", a->file);
}

/* Bytes of a peer's: JSON takes UTF-8 alone. */
static json_t *text_of(struct bytes text)
{
    char escaped[512];
    json_t *value = json_stringn((const char *)text.data, text.len);
    return value ? value : json_string(log_escape(text.data, text.len, escaped, sizeof escaped));
}

static int set(json_t *object, const char *key, const char *text)
{
    return text ? json_object_set_new(object, key, text_of(bytes_of_string(text))) : 0;
}

void audit_write(struct audit *a, const struct audit_entry *e)
{
    if (!a)
        return;
    json_t *object = json_pack("{s:I,s:s?,s:s}", "connection", (json_int_t)e->connection,
                               "identity", e->identity, "message", e->message);
    int r = object ? 0 : -1;
    r |= set(object, "peer", e->peer);
    r |= set(object, "verb", e->verb);
    r |= set(object, "workspace", e->workspace);
    r |= set(object, "outcome", e->outcome);
    r |= set(object, "text", e->text);
    if (e->exec.len > 0)
        r |= json_object_set_new(object, "exec", text_of(e->exec));
    r = r < 0 ? -ENOMEM : audit_works(a) ? append_object(a, object) : -EIO;
    json_decref(object);
    if (r == 0)
        return;
    a->lost++;
    a->untold++;
    note_failure(a, r);
}

uint64_t audit_lost(const struct audit *a)
{
    return a->lost;
}
