#include "confine/policy.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/units.h"

/* Longest path, name or word. */
#define STRING_MAX ((size_t)1024)

/* Longest part of a document's own text that an error shows. */
#define SHOWN_MAX 80

/* A year, as for timeouts. */
#define WALL_TIME_MAX_S (365.0 * 24 * 3600)

/* Below these nothing could be started at all. */
#define PIDS_MIN 2
#define DISK_MIN (UINT64_C(1) << 20)
#define FILES_MIN 16
#define OPEN_FILES_MIN 48
#define MEMORY_MIN (UINT64_C(1) << 20)
#define PROCESSORS_MAX 4096.0

/* Where in the document it is, for errors. */
struct reading {
    const char *path; /* "" at the top */
    struct failure *failure;
};

static int no_memory(struct failure *f)
{
    return failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
}

static const char *dot(const struct reading *r)
{
    return *r->path ? "." : "";
}

#define refuse(r, field, format, ...) \
    failure_set((r)->failure, -EINVAL, "%s%s%s: " format, (r)->path, dot(r), field, ##__VA_ARGS__)

/* --- strings and lists ----------------------------------------------------------------------- */

/* NULL: it is no string that can be used. */
static const char *text_of(const json_t *value)
{
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);
    return text && len > 0 && len <= STRING_MAX && strlen(text) == len ? text : NULL;
}

static const char *shown(const char *text, char buffer[SHOWN_MAX])
{
    (void)log_escape(text, strlen(text), buffer, SHOWN_MAX);
    return buffer;
}

static void strings_free(char **items, size_t count)
{
    for (size_t i = 0; items && i < count; i++)
        free(items[i]);
    free(items);
}

static bool is_path(const char *text)
{
    if (text[0] != '/')
        return false;
    for (const char *at = text; at; at = strchr(at, '/')) {
        at += *at == '/';
        size_t len = strcspn(at, "/");
        if (len == 2 && at[0] == '.' && at[1] == '.')
            return false;
    }
    return true;
}

static bool is_any(const char *text)
{
    return true;
}

/* A list of strings that all pass `good`. */
static int read_strings(const struct reading *r, const char *field, const json_t *list,
                        bool (*good)(const char *), const char *what, char ***ret,
                        size_t *ret_count)
{
    char buffer[SHOWN_MAX];
    if (!json_is_array(list) || json_array_size(list) > POLICY_LIST_MAX)
        return refuse(r, field, "must be a list of at most %d strings", POLICY_LIST_MAX);
    size_t count = json_array_size(list);
    char **items = calloc(count + 1, sizeof *items);
    if (!items)
        return no_memory(r->failure);
    int error = 0;
    for (size_t i = 0; error == 0 && i < count; i++) {
        const char *text = text_of(json_array_get(list, i));
        if (!text || !good(text))
            error = refuse(r, field, "entry %zu%s%s must be %s", i + 1, text ? ", " : "",
                           text ? shown(text, buffer) : "", what);
        else if (!(items[i] = strdup(text)))
            error = no_memory(r->failure);
    }
    if (error < 0) {
        strings_free(items, count);
        return error;
    }
    strings_free(*ret, *ret_count);
    *ret = items;
    *ret_count = count;
    return 0;
}

/* Anything else in an object is an error: a limit that was misspelt is a limit that is missing. */
static int check_keys(const struct reading *r, const json_t *object, const char *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        char buffer[SHOWN_MAX];
        size_t len = strlen(key);
        const char *at = known;
        while (at && (strncmp(at, key, len) != 0 || (at[len] && at[len] != ','))) {
            at = strchr(at, ',');
            at = at ? at + 2 : NULL;
        }
        if (len == 0 || !at)
            return refuse(r, shown(key, buffer), "there is no such field. There are: %s", known);
    }
    return 0;
}

/* --- filesystem ------------------------------------------------------------------------------ */

static int read_filesystem(const struct reading *r, const json_t *value, struct policy *p)
{
    const char *text = text_of(value);
    if (text && (strcmp(text, "own") == 0 || strcmp(text, "host") == 0)) {
        strings_free(take_ptr(p->read), p->read_count);
        p->read_count = 0;
        p->filesystem = text[0] == 'o' ? POLICY_FILESYSTEM_OWN : POLICY_FILESYSTEM_HOST;
        return 0;
    }
    if (!json_is_object(value))
        return refuse(r, "filesystem", "must be \"own\", \"host\" or {\"read\": [PATH, ...]}");
    int error = check_keys(&(struct reading){"filesystem", r->failure}, value, "read");
    if (error < 0)
        return error;
    p->filesystem = POLICY_FILESYSTEM_OWN;
    const json_t *list = json_object_get(value, "read");
    return list ? read_strings(r, "filesystem.read", list, is_path,
                               "an absolute path without \"..\"", &p->read, &p->read_count)
                : 0;
}

/* --- network --------------------------------------------------------------------------------- */

static int read_entries(const struct reading *r, const json_t *list, struct policy *p)
{
    struct allow_list *allow = NULL;
    struct failure why;
    if (!json_is_array(list))
        return refuse(r, "network.allow", "must be a list of \"HOST:PORT\"");
    int error = allow_list_new(&allow);
    for (size_t i = 0; error == 0 && i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        if (!json_is_string(entry))
            error = refuse(r, "network.allow", "entry %zu must be a string", i + 1);
        else if ((error = allow_list_add(
                      allow, bytes_of(json_string_value(entry), json_string_length(entry)), &why)) <
                     0 &&
                 error != -ENOMEM)
            error = refuse(r, "network.allow", "entry %zu: %s", i + 1, why.text);
    }
    if (error < 0) {
        allow_list_free(allow);
        return error == -ENOMEM ? no_memory(r->failure) : error;
    }
    allow_list_free(p->allow);
    p->allow = allow;
    p->network = POLICY_NETWORK_ALLOW;
    return 0;
}

static int read_network(const struct reading *r, const json_t *value, struct policy *p)
{
    const char *text = text_of(value);
    if (text && (strcmp(text, "none") == 0 || strcmp(text, "host") == 0)) {
        allow_list_free(take_ptr(p->allow));
        p->network = text[0] == 'n' ? POLICY_NETWORK_NONE : POLICY_NETWORK_HOST;
        return 0;
    }
    const json_t *list = json_object_get(value, "allow");
    if (!list)
        return refuse(r, "network",
                      "must be \"none\", \"host\" or {\"allow\": [\"HOST:PORT\", ...]}");
    int error = check_keys(&(struct reading){"network", r->failure}, value, "allow");
    return error < 0 ? error : read_entries(r, list, p);
}

/* --- limits ---------------------------------------------------------------------------------- */

/* null is no limit. */
static int read_number(const struct reading *r, const char *field, const json_t *value, double min,
                       double max, double *ret)
{
    double number = json_is_number(value) ? json_number_value(value) : NAN;
    if (json_is_null(value))
        number = 0;
    else if (!(number >= min && number <= max))
        return refuse(r, field, "must be a number from %g to %g, or null for no limit", min, max);
    *ret = number;
    return 0;
}

static int read_count(const struct reading *r, const char *field, const json_t *value, uint64_t min,
                      uint64_t *ret)
{
    if (json_is_null(value))
        *ret = 0;
    else if (json_is_integer(value) && json_integer_value(value) >= (json_int_t)min &&
             json_integer_value(value) <= INT32_MAX)
        *ret = (uint64_t)json_integer_value(value);
    else
        return refuse(r, field, "must be a whole number from %d to %d, or null for no limit",
                      (int)min, INT32_MAX);
    return 0;
}

/* Bytes: a number, or a text as units_size reads it. */
static int read_size(const struct reading *r, const char *field, const json_t *value, uint64_t min,
                     uint64_t *ret)
{
    const char *text = text_of(value);
    uint64_t number = 0;
    bool good = text && units_size(text, &number);
    if (json_is_null(value)) {
        *ret = 0;
        return 0;
    }
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        number = (uint64_t)json_integer_value(value);
        good = true;
    }
    if (!good || number < min)
        return refuse(
            r, field,
            "must be a number of bytes, at least %llu, or one with K, M, G or T, powers of "
            "1024, as in \"512M\" and \"2GiB\"; or null for no limit",
            (unsigned long long)min);
    *ret = number;
    return 0;
}

/* Seconds: a number, or a text as units_duration reads it. */
static int read_time(const struct reading *r, const char *field, const json_t *value,
                     uint64_t *ret_ms)
{
    const char *text = text_of(value);
    double seconds = json_is_number(value) ? json_number_value(value) : NAN;
    uint64_t ms = 0;
    bool good = text ? units_duration(text, WALL_TIME_MAX_S, &ms)
                     : seconds > 0 && seconds <= WALL_TIME_MAX_S;
    if (!text && good)
        ms = (uint64_t)(seconds * 1000 + 0.5);
    if (!json_is_null(value) && (!good || ms == 0))
        return refuse(r, field,
                      "must be a number of seconds, from 0.001 to %.0f, or one with ms, s, m, h or "
                      "d, as in \"30m\"; or null for no limit",
                      WALL_TIME_MAX_S);
    *ret_ms = ms;
    return 0;
}

static int read_limits(const struct reading *r, const json_t *limits, struct policy *p)
{
    const json_t *value;
    double number = 0;
    if (!json_is_object(limits))
        return refuse(r, "limits", "must be an object { ... }");
    int error =
        check_keys(&(struct reading){"limits", r->failure}, limits,
                   "memory, pids, cpu, cpu_time, disk, files, file_size, open_files, wall_time");
    if (error == 0 && (value = json_object_get(limits, "memory")))
        error = read_size(r, "limits.memory", value, MEMORY_MIN, &p->memory_bytes);
    if (error == 0 && (value = json_object_get(limits, "file_size")))
        error = read_size(r, "limits.file_size", value, 1, &p->file_size);
    if (error == 0 && (value = json_object_get(limits, "pids")))
        error = read_count(r, "limits.pids", value, PIDS_MIN, &p->pids);
    if (error == 0 && (value = json_object_get(limits, "disk")))
        error = read_size(r, "limits.disk", value, DISK_MIN, &p->disk_bytes);
    if (error == 0 && (value = json_object_get(limits, "files")))
        error = read_count(r, "limits.files", value, FILES_MIN, &p->disk_files);
    if (error == 0 && (value = json_object_get(limits, "cpu_time")))
        error = read_count(r, "limits.cpu_time", value, 1, &p->cpu_time);
    if (error == 0 && (value = json_object_get(limits, "open_files")))
        error = read_count(r, "limits.open_files", value, OPEN_FILES_MIN, &p->open_files);
    if (error == 0 && (value = json_object_get(limits, "cpu"))) {
        error = read_number(r, "limits.cpu", value, 0.01, PROCESSORS_MAX, &number);
        p->cpu_percent = error == 0 ? (uint64_t)(number * 100 + 0.5) : 0;
    }
    if (error == 0 && (value = json_object_get(limits, "wall_time")))
        error = read_time(r, "limits.wall_time", value, &p->wall_time_ms);
    return error;
}

/* --- the whole ------------------------------------------------------------------------------- */

static int read_user(const struct reading *r, const json_t *value)
{
    const char *text = text_of(value);
    return text && strcmp(text, "service") == 0
               ? 0
               : refuse(r, "user", "must be \"service\": commands run as the service's own user");
}

static int read_policy(const struct reading *r, const json_t *object, struct policy *p)
{
    const json_t *value;
    if (!json_is_object(object))
        return failure_set(r->failure, -EINVAL, "%s%sa policy is one JSON object { ... }", r->path,
                           *r->path ? ": " : "");
    int error = check_keys(r, object, "filesystem, network, limits, user, require");
    if (error == 0 && (value = json_object_get(object, "filesystem")))
        error = read_filesystem(r, value, p);
    if (error == 0 && (value = json_object_get(object, "network")))
        error = read_network(r, value, p);
    if (error == 0 && (value = json_object_get(object, "limits")))
        error = read_limits(r, value, p);
    if (error == 0 && (value = json_object_get(object, "user")))
        error = read_user(r, value);
    if (error == 0 && (value = json_object_get(object, "require")))
        error = read_strings(r, "require", value, is_any, "the name of a level or a mechanism",
                             &p->require, &p->require_count);
    return error;
}

static int copy_strings(char *const *items, size_t count, char ***ret, size_t *ret_count)
{
    *ret = calloc(count + 1, sizeof **ret);
    if (!*ret)
        return -ENOMEM;
    *ret_count = count;
    for (size_t i = 0; i < count; i++)
        if (!((*ret)[i] = strdup(items[i])))
            return -ENOMEM;
    return 0;
}

int policy_copy(const struct policy *from, struct policy *ret)
{
    struct failure f;
    _cleanup_policy_ struct policy p = *from;
    p.read = p.require = NULL;
    p.allow = NULL;
    int r = from->allow ? allow_list_new(&p.allow) : 0;
    for (size_t i = 0; r == 0 && from->allow && i < allow_list_count(from->allow); i++)
        r = allow_list_add(p.allow, bytes_of_string(allow_list_text(from->allow, i)), &f);
    if (r == 0)
        r = copy_strings(from->read, from->read_count, &p.read, &p.read_count);
    if (r == 0)
        r = copy_strings(from->require, from->require_count, &p.require, &p.require_count);
    if (r < 0)
        return r;
    *ret = p;
    p = (struct policy){0};
    return 0;
}

int policy_from_json(const json_t *object, const char *path, const struct policy *base,
                     struct policy *ret, struct failure *ret_failure)
{
    static const struct policy plain = {.filesystem = POLICY_FILESYSTEM_OWN};
    const struct reading reading = {.path = path, .failure = ret_failure};
    _cleanup_policy_ struct policy p = {0};
    if (policy_copy(base ? base : &plain, &p) < 0)
        return no_memory(ret_failure);
    int r = read_policy(&reading, object, &p);
    if (r < 0)
        return r;
    *ret = p;
    p = (struct policy){0};
    return 0;
}

int policy_parse(struct bytes text, const struct policy *base, struct policy *ret,
                 struct failure *ret_failure)
{
    json_error_t where;
    if (text.len > POLICY_TEXT_MAX)
        return failure_set(ret_failure, -EINVAL, "a policy has at most %d bytes", POLICY_TEXT_MAX);
    json_t *object = json_loadb((const char *)text.data, text.len,
                                JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!object)
        return failure_set(ret_failure, -EINVAL, "line %d, column %d: not valid JSON: %s",
                           where.line, where.column, where.text);
    int r = policy_from_json(object, "", base, ret, ret_failure);
    json_decref(object);
    return r;
}

void policy_release(struct policy *p)
{
    strings_free(p->read, p->read_count);
    strings_free(p->require, p->require_count);
    allow_list_free(p->allow);
    *p = (struct policy){0};
}

/* --- writing --------------------------------------------------------------------------------- */

static json_t *list_of(char *const *items, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < count; i++)
        if (json_array_append_new(list, json_string(items[i])) < 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static json_t *filesystem_of(const struct policy *p)
{
    if (p->filesystem == POLICY_FILESYSTEM_HOST)
        return json_string("host");
    return p->read_count == 0 ? json_string("own")
                              : json_pack("{s:o}", "read", list_of(p->read, p->read_count));
}

static json_t *network_of(const struct policy *p)
{
    if (p->network != POLICY_NETWORK_ALLOW)
        return json_string(p->network == POLICY_NETWORK_NONE ? "none" : "host");
    json_t *list = json_array();
    for (size_t i = 0; list && i < allow_list_count(p->allow); i++)
        if (json_array_append_new(list, json_string(allow_list_text(p->allow, i))) < 0) {
            json_decref(list);
            list = NULL;
        }
    return json_pack("{s:o}", "allow", list);
}

static json_t *number_or_null(uint64_t value, unsigned divisor)
{
    if (value == 0)
        return json_null();
    return value % divisor == 0 ? json_integer((json_int_t)(value / divisor))
                                : json_real((double)value / divisor);
}

json_t *policy_to_json(const struct policy *p)
{
    return json_pack(
        "{s:o, s:o, s:{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}, s:s, s:o}", "filesystem",
        filesystem_of(p), "network", network_of(p), "limits", "memory",
        number_or_null(p->memory_bytes, 1), "pids", number_or_null(p->pids, 1), "cpu",
        number_or_null(p->cpu_percent, 100), "cpu_time", number_or_null(p->cpu_time, 1), "disk",
        number_or_null(p->disk_bytes, 1), "files", number_or_null(p->disk_files, 1), "file_size",
        number_or_null(p->file_size, 1), "open_files", number_or_null(p->open_files, 1),
        "wall_time", number_or_null(p->wall_time_ms, 1000), "user", "service", "require",
        list_of(p->require, p->require_count));
}

json_t *policy_differences(const struct policy *a, const struct policy *b)
{
    json_t *from = policy_to_json(a), *to = policy_to_json(b);
    json_t *names = from && to ? json_array() : NULL;
    const char *name;
    json_t *value;
    json_object_foreach(to, name, value)
    {
        if (names && !json_equal(value, json_object_get(from, name)) &&
            json_array_append_new(names, json_string(name)) < 0) {
            json_decref(names);
            names = NULL;
        }
    }
    json_decref(from);
    json_decref(to);
    return names;
}
