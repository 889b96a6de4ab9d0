#include "gateway/documents.h"

#include <errno.h>
#include <string.h>
#include <time.h>

json_t *document_of_time(const struct wire_time *t)
{
    char seconds[40], all[48];
    struct tm tm;
    time_t sec = (time_t)t->sec;
    if ((t->sec == 0 && t->nsec == 0) || !gmtime_r(&sec, &tm) ||
        strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &tm) == 0)
        return json_null();
    (void)snprintf(all, sizeof all, "%s.%03uZ", seconds, t->nsec / 1000000);
    return json_string(all);
}

json_t *document_of_bytes(struct bytes b)
{
    json_t *s = json_stringn((const char *)b.data, b.len);
    return s ? s : json_null();
}

static json_t *labels_json(struct bytes labels)
{
    json_t *all = json_loadb((const char *)labels.data, labels.len, 0, NULL);
    return all ? all : json_object();
}

json_t *document_of_workspace(const struct wire_workspace *w)
{
    return json_pack("{s:o,s:o,s:o,s:s,s:I,s:o,s:o,s:o,s:o}", "id", document_of_bytes(w->thread_id),
                     "name", document_of_bytes(w->name), "labels", labels_json(w->labels), "state",
                     w->state == WIRE_WORKSPACE_STOPPED ? "stopped" : "running", "revision",
                     (json_int_t)w->revision, "created_at", document_of_time(&w->created_at),
                     "used_at", document_of_time(&w->used_at), "expires_at",
                     document_of_time(&w->expires_at), "idle_ttl",
                     w->idle_ms ? json_real((double)w->idle_ms / 1000) : json_null());
}

json_t *document_of_snapshot(const struct wire_snapshot *s)
{
    return json_pack("{s:o,s:o,s:o,s:o,s:I,s:I,s:I,s:b,s:b}", "id", document_of_bytes(s->id),
                     "workspace", document_of_bytes(s->thread_id), "labels", labels_json(s->labels),
                     "created_at", document_of_time(&s->created_at), "entries",
                     (json_int_t)s->entries, "size", (json_int_t)s->size, "stored",
                     (json_int_t)s->stored, "live", (s->flags & WIRE_SNAPSHOT_LIVE) != 0, "shared",
                     (s->flags & WIRE_SNAPSHOT_SHARED) != 0);
}

static int unknown_name(const char *key, const char *const *names, struct failure *f)
{
    _cleanup_buffer_ struct buffer known = {0};
    for (size_t i = 0; names[i]; i++)
        if (buffer_printf(&known, "%s%s", i ? ", " : "", names[i]) < 0)
            return failure_set(f, -ENOMEM, "out of memory");
    return failure_set(f, -EINVAL, "\"%.100s\" means nothing here; known are: %.*s", key,
                       (int)known.len, (const char *)known.data);
}

int document_check(const json_t *body, const char *const *names, struct failure *f)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, key, value)
    {
        size_t i = 0;
        while (names[i] && strcmp(names[i], key) != 0)
            i++;
        if (!names[i])
            return unknown_name(key, names, f);
    }
    return 0;
}

int document_string(const json_t *body, const char *name, const char **ret, struct failure *f)
{
    const json_t *value = json_object_get(body, name);
    if (!value)
        return 0;
    if (!json_is_string(value) || json_string_length(value) != strlen(json_string_value(value)))
        return failure_set(f, -EINVAL, "\"%s\" is a string", name);
    *ret = json_string_value(value);
    return 0;
}

int document_bool(const json_t *body, const char *name, bool *ret, struct failure *f)
{
    const json_t *value = json_object_get(body, name);
    if (!value)
        return 0;
    if (!json_is_boolean(value))
        return failure_set(f, -EINVAL, "\"%s\" is true or false", name);
    *ret = json_is_true(value);
    return 0;
}

int document_life(const json_t *body, const char *name, bool *ret_given, uint64_t *ret_ms,
                  struct failure *f)
{
    const json_t *value = json_object_get(body, name);
    double seconds = json_number_value(value);
    if (!value)
        return 0;
    if (!json_is_null(value) && (!json_is_number(value) || !(seconds >= 0.001) ||
                                 seconds > (double)WIRE_LIFE_MAX_MS / 1000))
        return failure_set(f, -EINVAL, "\"%s\" is a number of seconds, at most %llu, or null", name,
                           (unsigned long long)WIRE_LIFE_MAX_MS / 1000);
    *ret_given = true;
    *ret_ms = json_is_null(value) ? 0 : (uint64_t)(seconds * 1000);
    return 0;
}

int document_labels(const json_t *body, bool nulls, char **ret, struct failure *f)
{
    json_t *labels = json_object_get(body, "labels");
    const char *key;
    json_t *value;
    if (!labels)
        return 0;
    if (!json_is_object(labels))
        return failure_set(f, -EINVAL, "\"labels\" is an object of strings");
    json_object_foreach(labels, key, value)
    {
        if (!json_is_string(value) && !(nulls && json_is_null(value)))
            return failure_set(f, -EINVAL, "the label \"%.100s\" is no string", key);
    }
    char *text = json_dumps(labels, JSON_COMPACT);
    if (!text)
        return failure_set(f, -ENOMEM, "out of memory");
    if (strlen(text) > WIRE_LABELS_MAX) {
        free(text);
        return failure_set(f, -EMSGSIZE, "the labels are larger than %d bytes", WIRE_LABELS_MAX);
    }
    *ret = text;
    return 0;
}

json_t *document_page(const char *name, json_t *items, bool more, const char *next)
{
    json_t *page = json_pack("{s:o}", name, items);
    if (page)
        (void)json_object_set_new(page, "next", more ? json_string(next) : json_null());
    return page;
}

int document_key(struct exchange *x, struct bytes *ret_key, uint32_t *ret_flags, struct failure *f)
{
    const char *by = exchange_query(x, "by");
    struct bytes key = exchange_param(x, 0);
    if (by && strcmp(by, "id") != 0 && strcmp(by, "name") != 0)
        return failure_set(f, -EINVAL, "by is id or name");
    if (key.len > WIRE_THREAD_ID_MAX)
        return failure_set(f, -ENAMETOOLONG, "an ID is at most %d bytes", WIRE_THREAD_ID_MAX);
    *ret_key = key;
    *ret_flags = by && strcmp(by, "name") == 0 ? WIRE_WORKSPACE_BY_NAME : 0;
    return 0;
}
