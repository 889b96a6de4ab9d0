#include "provider/parameters.h"

#include <errno.h>
#include <regex.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cleanup.h"
#include "base/log.h"

static int no_memory(struct failure *f)
{
    return failure_set(f, -ENOMEM, "out of memory");
}

static void json_release(json_t **object)
{
    json_decref(*object);
}

static int refuse(struct failure *f, const char *key, const char *why)
{
    return failure_set(f, -EINVAL, "%.64s: %s", key, why);
}

int parameters_add(json_t *given, const char *word, struct failure *ret_failure)
{
    const char *equals = strchr(word, '=');
    char shown[80];
    size_t len = equals ? (size_t)(equals - word) : 0;
    if (len == 0)
        return failure_set(ret_failure, -EINVAL, "%s: not KEY=VALUE",
                           log_escape(word, strlen(word), shown, sizeof shown));
    if (json_object_getn(given, word, len))
        return failure_set(ret_failure, -EINVAL, "%.*s is given twice", (int)(len < 64 ? len : 64),
                           word);
    if (strlen(equals + 1) > PROFILE_TEXT_MAX)
        return failure_set(ret_failure, -EINVAL, "%.*s: more than %d bytes",
                           (int)(len < 64 ? len : 64), word, PROFILE_TEXT_MAX);
    if (json_object_setn_new(given, word, len, json_string(equals + 1)) < 0)
        return failure_set(ret_failure, -EINVAL, "%s: not UTF-8",
                           log_escape(word, strlen(word), shown, sizeof shown));
    return 0;
}

/* One part, up to a comma that is not doubled. */
static int take_part(const char **at, struct buffer *part)
{
    part->len = 0;
    int r = 0;
    for (; r == 0 && **at; (*at)++) {
        if (**at == ',' && (*at)[1] != ',')
            break;
        *at += **at == ',';
        r = buffer_append_u8(part, (uint8_t) * *at);
    }
    *at += **at == ',';
    return r == 0 ? buffer_append_u8(part, 0) : r;
}

int parameters_split(const char *spec, char **ret_name, json_t **ret_given,
                     struct failure *ret_failure)
{
    size_t len = strcspn(spec, ":");
    _cleanup_(json_release) json_t *given = json_object();
    _cleanup_free_ char *name = strndup(spec, len);
    _cleanup_buffer_ struct buffer part = {0};
    if (!given || !name)
        return no_memory(ret_failure);
    for (const char *at = spec + len + (spec[len] == ':'); *at;) {
        if (take_part(&at, &part) < 0)
            return no_memory(ret_failure);
        int r = parameters_add(given, (const char *)part.data, ret_failure);
        if (r < 0)
            return r;
    }
    *ret_name = take_ptr(name);
    *ret_given = take_ptr(given);
    return 0;
}

/* --- against a profile ---------------------------------------------------------------- */

static int check_value(const char *key, const char *value, const json_t *parameter,
                       struct failure *f)
{
    const char *pattern = json_string_value(json_object_get(parameter, "pattern"));
    regex_t expression;
    if (strlen(value) > PROFILE_TEXT_MAX)
        return refuse(f, key, "is too long");
    for (const char *at = value; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            return refuse(f, key, "must not have control characters");
    if (value[0] == '-')
        return refuse(f, key, "must not begin with '-', which would make it an option");
    if (!pattern)
        return 0;
    if (regcomp(&expression, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return no_memory(f);
    bool good = regexec(&expression, value, 0, NULL, 0) == 0;
    regfree(&expression);
    if (good)
        return 0;
    const char *help = json_string_value(json_object_get(parameter, "help"));
    return failure_set(f, -EINVAL, "%s: %s: %s (it must match %.200s)", key,
                       *value ? "is not of the right form" : "is missing", help, pattern);
}

int parameters_check(const struct profile *p, const char *key, const char *value,
                     struct failure *ret_failure)
{
    const json_t *known = json_object_get(p->document, "parameters");
    return check_value(key, value, json_object_get(known, key), ret_failure);
}

static int check_known(const struct profile *p, const json_t *known, const json_t *given,
                       struct failure *f)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)given, key, value)
    {
        if (json_object_get(known, key))
            continue;
        _cleanup_buffer_ struct buffer names = {0};
        const char *name;
        json_t *ignored;
        char shown[80];
        json_object_foreach((json_t *)(uintptr_t)known, name, ignored)
        {
            if (buffer_printf(&names, "%s%s", names.len ? ", " : "", name) < 0)
                return no_memory(f);
        }
        return failure_set(f, -EINVAL, "%s has no parameter %s; its parameters are: %s",
                           profile_text(p, "name"),
                           log_escape(key, strlen(key), shown, sizeof shown),
                           names.len ? (const char *)names.data : "none");
    }
    return 0;
}

int parameters_complete(const struct profile *p, const json_t *given, json_t **ret,
                        struct failure *ret_failure)
{
    json_t *known = json_object_get(p->document, "parameters");
    _cleanup_(json_release) json_t *all = json_object();
    const char *key;
    json_t *parameter;
    int r = all ? check_known(p, known, given, ret_failure) : no_memory(ret_failure);
    json_object_foreach(known, key, parameter)
    {
        if (r < 0)
            break;
        const char *value = json_string_value(json_object_get(given, key));
        if (!value)
            value = json_string_value(json_object_get(parameter, "default"));
        r = check_value(key, value ? value : "", parameter, ret_failure);
        if (r == 0 && json_object_set_new(all, key, json_string(value ? value : "")) < 0)
            r = no_memory(ret_failure);
    }
    if (r < 0)
        return r;
    *ret = take_ptr(all);
    return 0;
}
