#include "gateway/e2b_shapes.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/base64.h"

/* --- requests --------------------------------------------------------------------------------- */

/* symlinkTarget as symlink_target. */
static void other_name(const char *name, char *out, size_t size)
{
    size_t n = 0;
    for (; *name && n + 2 < size; name++) {
        if (*name >= 'A' && *name <= 'Z') {
            out[n++] = '_';
            out[n++] = (char)(*name - 'A' + 'a');
        } else {
            out[n++] = *name;
        }
    }
    out[n] = '\0';
}

static json_t *field(const json_t *object, const char *name)
{
    char other[64];
    json_t *value = json_object_get(object, name);
    other_name(name, other, sizeof other);
    if (!value)
        value = json_object_get(object, other);
    return json_is_null(value) ? NULL : value;
}

int e2b_text(const json_t *object, const char *name, const char **ret, struct failure *ret_failure)
{
    json_t *value = field(object, name);
    *ret = value ? json_string_value(value) : "";
    if (!*ret || strlen(*ret) != (value ? json_string_length(value) : 0))
        return failure_set(ret_failure, -EINVAL, "%s must be a string", name);
    return 0;
}

int e2b_flag(const json_t *object, const char *name, bool *ret, struct failure *ret_failure)
{
    json_t *value = field(object, name);
    if (value && !json_is_boolean(value))
        return failure_set(ret_failure, -EINVAL, "%s must be true or false", name);
    if (value)
        *ret = json_is_true(value);
    return 0;
}

static int number_of(const json_t *value, uint64_t *ret)
{
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *ret = (uint64_t)json_integer_value(value);
        return 0;
    }
    const char *text = json_string_value(value);
    size_t len = text ? strlen(text) : 0;
    if (len == 0 || len > 19 || strspn(text, "0123456789") != len)
        return -EINVAL;
    *ret = strtoull(text, NULL, 10);
    return 0;
}

int e2b_number(const json_t *object, const char *name, uint64_t max, uint64_t *ret,
               struct failure *ret_failure)
{
    json_t *value = field(object, name);
    uint64_t n = 0;
    if (!value)
        return 0;
    if (number_of(value, &n) < 0 || n > max)
        return failure_set(ret_failure, -EINVAL, "%s must be a number of 0 to %llu", name,
                           (unsigned long long)max);
    *ret = n;
    return 0;
}

static int object_of(const json_t *request, const char *name, json_t **ret, struct failure *f)
{
    *ret = field(request, name);
    if (*ret && !json_is_object(*ret))
        return failure_set(f, -EINVAL, "%s must be an object", name);
    return 0;
}

static int append(struct buffer *list, uint32_t *count, const char *text, size_t len,
                  const char *what, struct failure *f)
{
    if (memchr(text, '\0', len))
        return failure_set(f, -EINVAL, "%s holds a NUL", what);
    if (wire_list_append(list, bytes_of(text, len)) < 0)
        return failure_set(f, -ENOMEM, "out of memory");
    ++*count;
    return 0;
}

static int read_arguments(const json_t *process, struct e2b_start *s, struct failure *f)
{
    const char *cmd;
    json_t *args = field(process, "args"), *word;
    size_t i;
    int r = e2b_text(process, "cmd", &cmd, f);
    if (r == 0 && !*cmd)
        r = failure_set(f, -EINVAL, "cmd is missing");
    if (r == 0 && args && !json_is_array(args))
        r = failure_set(f, -EINVAL, "args must be an array of strings");
    if (r == 0)
        r = append(&s->argv, &s->argv_count, cmd, strlen(cmd), "cmd", f);
    json_array_foreach(args, i, word)
    {
        if (r == 0 && !json_is_string(word))
            r = failure_set(f, -EINVAL, "args must be an array of strings");
        if (r == 0)
            r = append(&s->argv, &s->argv_count, json_string_value(word), json_string_length(word),
                       "an argument", f);
    }
    return r;
}

static int append_environment(struct e2b_start *s, json_t *envs, struct failure *f)
{
    const char *name;
    json_t *value;
    int r;
    json_object_foreach(envs, name, value)
    {
        _cleanup_buffer_ struct buffer pair = {0};
        if (!json_is_string(value) || !*name || strchr(name, '='))
            return failure_set(f, -EINVAL, "envs must be an object of strings");
        if (buffer_printf(&pair, "%s=", name) < 0 ||
            buffer_append(&pair, json_string_value(value), json_string_length(value)) < 0)
            return failure_set(f, -ENOMEM, "out of memory");
        r = append(&s->env, &s->env_count, (const char *)pair.data, pair.len, "a variable", f);
        if (r < 0)
            return r;
    }
    return 0;
}

int e2b_start_put_before(struct e2b_start *s, json_t *envs, struct failure *ret_failure)
{
    struct e2b_start before = {0};
    int r = append_environment(&before, envs, ret_failure);
    if (r == 0 && buffer_append(&before.env, s->env.data, s->env.len) < 0)
        r = failure_set(ret_failure, -ENOMEM, "out of memory");
    if (r < 0) {
        e2b_start_release(&before);
        return r;
    }
    buffer_release(&s->env);
    s->env = before.env;
    s->env_count += before.env_count;
    return 0;
}

int e2b_size(const json_t *request, uint32_t *ret_rows, uint32_t *ret_columns,
             struct failure *ret_failure)
{
    json_t *pty, *size = NULL;
    uint64_t rows = 24, columns = 80;
    int r = object_of(request, "pty", &pty, ret_failure);
    if (r == 0 && pty)
        r = object_of(pty, "size", &size, ret_failure);
    if (r == 0 && size)
        r = e2b_number(size, "rows", 65535, &rows, ret_failure);
    if (r == 0 && size)
        r = e2b_number(size, "cols", 65535, &columns, ret_failure);
    *ret_rows = (uint32_t)rows;
    *ret_columns = (uint32_t)columns;
    return r;
}

int e2b_start_read(const json_t *request, struct e2b_start *ret, struct failure *ret_failure)
{
    _cleanup_start_ struct e2b_start s = {.stdin_open = true};
    json_t *process, *envs;
    int r = object_of(request, "process", &process, ret_failure);
    if (r == 0 && !process)
        r = failure_set(ret_failure, -EINVAL, "process is missing");
    if (r == 0)
        r = read_arguments(process, &s, ret_failure);
    if (r == 0)
        r = object_of(process, "envs", &envs, ret_failure);
    if (r == 0)
        r = append_environment(&s, envs, ret_failure);
    if (r == 0)
        r = e2b_text(process, "cwd", &s.cwd, ret_failure);
    if (r == 0)
        r = e2b_flag(request, "stdin", &s.stdin_open, ret_failure);
    if (r == 0)
        r = e2b_size(request, &s.rows, &s.columns, ret_failure);
    if (r < 0)
        return r;
    s.pty = field(request, "pty") != NULL;
    s.stdin_open = s.stdin_open || s.pty;
    *ret = s;
    s = (struct e2b_start){0};
    return 0;
}

void e2b_start_release(struct e2b_start *s)
{
    buffer_release(&s->argv);
    buffer_release(&s->env);
}

int e2b_selector(const json_t *request, uint32_t *ret, struct failure *ret_failure)
{
    json_t *process;
    uint64_t pid = 0;
    int r = object_of(request, "process", &process, ret_failure);
    if (r < 0)
        return r;
    if (process && field(process, "tag"))
        return failure_set(ret_failure, -EOPNOTSUPP, "commands are selected by pid, not by tag");
    if (process)
        r = e2b_number(process, "pid", UINT32_MAX, &pid, ret_failure);
    if (r == 0 && pid == 0)
        r = failure_set(ret_failure, -EINVAL, "which process? pid is missing");
    *ret = (uint32_t)pid;
    return r;
}

int e2b_input(const json_t *request, bool *ret_pty, struct buffer *ret, struct failure *ret_failure)
{
    json_t *input;
    const char *text = "";
    int r = object_of(request, "input", &input, ret_failure);
    if (r < 0)
        return r;
    *ret_pty = input && field(input, "pty");
    if (input)
        r = e2b_text(input, *ret_pty ? "pty" : "stdin", &text, ret_failure);
    if (r < 0)
        return r;
    size_t len = strlen(text), n = 0;
    if (buffer_reserve(ret, len / 4 * 3 + 2) < 0)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    if (base64_read(bytes_of(text, len), ret->data + ret->len, &n) < 0)
        return failure_set(ret_failure, -EINVAL, "input must be base64");
    ret->len += n;
    return 0;
}

int e2b_signal(const json_t *request, int *ret, struct failure *ret_failure)
{
    json_t *value = field(request, "signal");
    const char *name = json_string_value(value);
    uint64_t n = 0;
    if (name && strcmp(name, "SIGNAL_SIGKILL") == 0)
        n = SIGKILL;
    else if (name && strcmp(name, "SIGNAL_SIGTERM") == 0)
        n = SIGTERM;
    else if (value)
        (void)number_of(value, &n);
    if (n != SIGKILL && n != SIGTERM)
        return failure_set(ret_failure, -EINVAL, "signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL");
    *ret = (int)n;
    return 0;
}

/* --- numbers of commands ---------------------------------------------------------------------- */

static const char id_prefix[] = "e2b-";

void e2b_exec_id(uint32_t pid, char ret[E2B_EXEC_ID_SIZE])
{
    (void)snprintf(ret, E2B_EXEC_ID_SIZE, "%s%u", id_prefix, pid);
}

uint32_t e2b_exec_pid(struct bytes id)
{
    char text[E2B_EXEC_ID_SIZE], again[E2B_EXEC_ID_SIZE];
    size_t skip = sizeof id_prefix - 1;
    if (id.len <= skip || id.len >= sizeof text || memcmp(id.data, id_prefix, skip) != 0)
        return 0;
    memcpy(text, id.data, id.len);
    text[id.len] = '\0';
    unsigned long n = strtoul(text + skip, NULL, 10);
    if (n < E2B_PID_FIRST || n > INT32_MAX)
        return 0;
    e2b_exec_id((uint32_t)n, again);
    return strcmp(text, again) == 0 ? (uint32_t)n : 0;
}

/* --- answers ---------------------------------------------------------------------------------- */

int e2b_event_start(struct buffer *b, uint32_t pid)
{
    return buffer_printf(b, "{\"event\":{\"start\":{\"pid\":%u}}}", pid);
}

int e2b_event_data(struct buffer *b, enum e2b_stream stream, struct bytes data)
{
    static const char *const names[] = {
        [E2B_STDOUT] = "stdout", [E2B_STDERR] = "stderr", [E2B_PTY] = "pty"};
    int r = buffer_printf(b, "{\"event\":{\"data\":{\"%s\":\"", names[stream]);
    if (r == 0)
        r = base64_append(b, BASE64, data);
    return r < 0 ? r : buffer_printf(b, "\"}}}");
}

static int append_json(struct buffer *b, json_t *value)
{
    _cleanup_free_ char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    return text ? buffer_append(b, text, strlen(text)) : -ENOMEM;
}

/* As Go says it, which clients may look at. */
static void describe_end(const struct wire_exec_exit *exit, char *status, char *error, size_t size)
{
    const char *name = exit->signal ? strsignal((int)exit->signal) : "killed";
    *error = '\0';
    if (exit->verdict == WIRE_VERDICT_EXITED) {
        (void)snprintf(status, size, "exit status %u", exit->code);
        return;
    }
    (void)snprintf(status, size, "signal: %s%s", exit->signal == SIGKILL ? "killed" : name,
                   exit->core ? " (core dumped)" : "");
    if (exit->verdict == WIRE_VERDICT_TIMED_OUT)
        (void)snprintf(error, size, "ended at its timeout of %llu ms",
                       (unsigned long long)exit->timeout_ms);
    else if (exit->verdict == WIRE_VERDICT_OOM_KILLED)
        (void)snprintf(error, size, "killed: it needed more memory than it may have");
    else
        (void)snprintf(error, size, "%s", status);
}

int e2b_event_end(struct buffer *b, const struct wire_exec_exit *exit)
{
    char status[96], error[96];
    bool exited = exit->verdict == WIRE_VERDICT_EXITED;
    describe_end(exit, status, error, sizeof status);
    json_t *end = json_pack("{s:i,s:b,s:s}", "exitCode", exited ? (int)exit->code : -1, "exited",
                            exited, "status", status);
    if (end && *error && json_object_set_new(end, "error", json_string(error)) < 0) {
        json_decref(end);
        end = NULL;
    }
    return append_json(b, end ? json_pack("{s:{s:o}}", "event", "end", end) : NULL);
}

int e2b_error(struct buffer *b, const char *code, const char *text)
{
    return append_json(
        b, json_pack("{s:s,s:o}", "code", code, "message", e2b_string(bytes_of_string(text))));
}

int e2b_status_error(struct buffer *b, int status, const char *text)
{
    return append_json(
        b, json_pack("{s:i,s:o}", "code", status, "message", e2b_string(bytes_of_string(text))));
}

/* How many bytes of text make one character; 0: they make none. */
static size_t character(struct bytes text)
{
    size_t len = text.data[0] < 0x80 ? 1 : text.data[0] >= 0xf0 ? 4 : text.data[0] >= 0xe0 ? 3 : 2;
    json_t *one = len <= text.len ? json_stringn((const char *)text.data, len) : NULL;
    json_decref(one);
    return one ? len : 0;
}

json_t *e2b_string(struct bytes text)
{
    json_t *whole = text.len ? json_stringn((const char *)text.data, text.len) : json_string("");
    if (whole)
        return whole;
    _cleanup_buffer_ struct buffer b = {0};
    for (size_t i = 0; i < text.len;) {
        size_t len = character(bytes_of(text.data + i, text.len - i));
        int r = len ? buffer_append(&b, text.data + i, len) : buffer_append(&b, "\xef\xbf\xbd", 3);
        if (r < 0)
            return NULL;
        i += len ? len : 1;
    }
    return json_stringn((const char *)b.data, b.len);
}

const char *e2b_file_type(uint32_t mode)
{
    return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "dir" : S_ISLNK(mode) ? "symlink" : NULL;
}

json_t *e2b_time(const struct wire_time *t)
{
    char text[40], all[64];
    struct tm tm;
    time_t sec = (time_t)t->sec;
    if (!gmtime_r(&sec, &tm) || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm) == 0)
        return json_string("1970-01-01T00:00:00Z");
    (void)snprintf(all, sizeof all, "%s.%09uZ", text, t->nsec);
    return json_string(all);
}

/* "-rwxr-xr-x" as Go prints it. */
static void mode_text(uint32_t mode, char out[12])
{
    static const char bits[] = "rwxrwxrwx";
    size_t n = 0;
    out[n++] = (char)(S_ISDIR(mode) ? 'd' : S_ISLNK(mode) ? 'L' : '-');
    for (size_t i = 0; i < 9; i++)
        out[n++] = (char)(mode & (0400u >> i) ? bits[i] : '-');
    out[n] = '\0';
}

/* There is one user, the service's own, which its clients take for theirs. */
static void user_text(uint32_t id, char out[16])
{
    if (id == 0)
        (void)snprintf(out, 16, "root");
    else if (id == geteuid())
        (void)snprintf(out, 16, "user");
    else
        (void)snprintf(out, 16, "%u", id);
}

json_t *e2b_entry_json(const struct e2b_entry *e)
{
    static const char *const names[] = {"FILE_TYPE_FILE", "FILE_TYPE_DIRECTORY",
                                        "FILE_TYPE_SYMLINK", "FILE_TYPE_UNSPECIFIED"};
    const struct wire_attr *a = e->attr;
    const uint32_t mode = e->behind ? e->behind->mode : a->mode;
    const char *slash = strrchr(e->path, '/'), *name = slash && slash[1] ? slash + 1 : e->path;
    char permissions[12], owner[16], group[16];
    mode_text(a->mode, permissions);
    user_text(a->uid, owner);
    user_text(a->gid, group);
    json_t *entry = json_pack("{s:o,s:s,s:o,s:o,s:i,s:s,s:s,s:s,s:o}", "name",
                              e2b_string(bytes_of_string(name)), "type",
                              names[S_ISREG(mode)   ? 0
                                    : S_ISDIR(mode) ? 1
                                    : S_ISLNK(mode) ? 2
                                                    : 3],
                              "path", e2b_string(bytes_of_string(e->path)), "size",
                              json_sprintf("%llu", (unsigned long long)a->size), "mode",
                              (int)(mode & 07777), "permissions", permissions, "owner", owner,
                              "group", group, "modifiedTime", e2b_time(&a->mtime));
    int r = entry ? 0 : -ENOMEM;
    if (r == 0 && e->target)
        r = json_object_set_new(entry, "symlinkTarget", e2b_string(bytes_of_string(e->target)));
    if (r == 0 && e->metadata)
        r = json_object_set(entry, "metadata", e->metadata);
    if (r < 0) {
        json_decref(entry);
        return NULL;
    }
    return entry;
}
