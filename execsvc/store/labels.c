#include "store/labels.h"

#include "base/cleanup.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void json_release(json_t **object)
{
    json_decref(*object);
}
#define _cleanup_json_ _cleanup_(json_release)

/* --- keys and values ------------------------------------------------------------- */

static bool may_begin(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c >= 0x80;
}

static bool is_key(const char *key)
{
    if (!may_begin((unsigned char)key[0]) || strlen(key) > LABEL_KEY_MAX)
        return false;
    for (; *key; key++)
        if ((unsigned char)*key < 0x20 || *key == 0x7f || *key == '=')
            return false;
    return true;
}

static int check(const json_t *labels, bool nulls, struct failure *f)
{
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)labels, key, value)
    {
        if (!is_key(key))
            return failure_set(f, -EINVAL,
                               "labels: a key is 1 to %d bytes, begins with a letter, a digit or "
                               "'_', and has no '=' and no control characters",
                               LABEL_KEY_MAX);
        if (!json_is_string(value) && !(nulls && json_is_null(value)))
            return failure_set(f, -EINVAL, "labels: %s: not a string%s", key,
                               nulls ? " and not null" : "");
    }
    return 0;
}

static int read_object(struct bytes given, bool nulls, json_t **ret, struct failure *f)
{
    json_error_t where;
    _cleanup_json_ json_t *labels = given.len == 0 ? json_object()
                                                   : json_loadb((const char *)given.data, given.len,
                                                                JSON_REJECT_DUPLICATES, &where);
    if (!labels && given.len > 0)
        return failure_set(f, -EINVAL, "labels: %s", where.text);
    if (!labels)
        return failure_set(f, -ENOMEM, "out of memory");
    if (!json_is_object(labels))
        return failure_set(f, -EINVAL, "labels: not an object of strings");
    int r = check(labels, nulls, f);
    if (r == 0)
        *ret = take_ptr(labels);
    return r;
}

static int write_text(const json_t *labels, char **ret, struct failure *f)
{
    char *text = json_dumps(labels, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text)
        return failure_set(f, -ENOMEM, "out of memory");
    if (strlen(text) > WIRE_LABELS_MAX) {
        free(text);
        return failure_set(f, -E2BIG, "labels: more than %d bytes in all", WIRE_LABELS_MAX);
    }
    *ret = text;
    return 0;
}

int labels_parse(struct bytes given, char **ret, struct failure *ret_failure)
{
    _cleanup_json_ json_t *labels = NULL;
    int r = read_object(given, false, &labels, ret_failure);
    return r < 0 ? r : write_text(labels, ret, ret_failure);
}

int labels_merge(const char *labels, struct bytes given, char **ret, struct failure *ret_failure)
{
    _cleanup_json_ json_t *merged = NULL, *changes = NULL;
    int r = read_object(bytes_of_string(labels), false, &merged, ret_failure);
    if (r == 0)
        r = read_object(given, true, &changes, ret_failure);
    if (r < 0)
        return r;
    const char *key;
    json_t *value;
    json_object_foreach(changes, key, value)
    {
        if (json_is_null(value))
            (void)json_object_del(merged, key);
        else if (json_object_set(merged, key, value) < 0)
            return failure_set(ret_failure, -ENOMEM, "out of memory");
    }
    return write_text(merged, ret, ret_failure);
}

/* --- selectors ------------------------------------------------------------------- */

static int selector_of(struct bytes given, struct label_selector *ret)
{
    const char *text = (const char *)given.data;
    const char *equals = memchr(text, '=', given.len);
    size_t key_len = equals ? (size_t)(equals - text) : given.len;
    _cleanup_json_ json_t *key = json_stringn(text, key_len);
    /* A key that is no label's would be searched for where pairs do not begin. */
    if (!key || json_string_length(key) != strlen(json_string_value(key)) ||
        !is_key(json_string_value(key)))
        return -EINVAL;
    _cleanup_json_ json_t *pair = json_object();
    json_t *value = json_stringn(equals ? equals + 1 : "", equals ? given.len - key_len - 1 : 0);
    if (!value)
        return -EINVAL; /* not UTF-8, which no label is */
    if (json_object_set_new(pair, json_string_value(key), value) < 0)
        return -ENOMEM;
    char *object = json_dumps(pair, JSON_COMPACT);
    if (!object)
        return -ENOMEM;
    /* Without the braces, and where there is no value to look for without its two quotes. */
    size_t len = strlen(object) - 2 - (equals ? 0 : 2);
    memmove(object, object + 1, len);
    *ret = (struct label_selector){.text = object, .len = len};
    return 0;
}

int label_selectors_parse(const struct wire_list *list, struct label_selectors *ret)
{
    uint32_t offset = 0;
    struct bytes element;
    ret->count = 0;
    while (wire_list_next(list, &offset, &element)) {
        if (ret->count == WIRE_SELECTORS_MAX)
            return -E2BIG;
        int r = selector_of(element, &ret->list[ret->count]);
        if (r < 0)
            return r;
        ret->count++;
    }
    return 0;
}

void label_selectors_release(struct label_selectors *s)
{
    while (s->count > 0)
        free(s->list[--s->count].text);
}

static bool has(const char *labels, const struct label_selector *s)
{
    size_t len = strlen(labels);
    const char *at = labels + 1;
    while ((at = memmem(at, len - (size_t)(at - labels), s->text, s->len))) {
        if (at[-1] == '{' || at[-1] == ',')
            return true;
        at++;
    }
    return false;
}

bool labels_match(const char *labels, const struct label_selectors *selectors)
{
    for (size_t i = 0; i < selectors->count; i++)
        if (!has(labels, &selectors->list[i]))
            return false;
    return true;
}
