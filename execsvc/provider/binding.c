#include "provider/binding.h"

#include <errno.h>
#include <sha2.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "provider/parameters.h"
#include "provider/step.h"
#include "provider/template.h"

/* It asks a program of this machine for a setting. */
#define ASK_TIMEOUT_MS 30000

#define HASH_BYTES 8

static void json_release(json_t **object)
{
    json_decref(*object);
}

/* --- parameters ---------------------------------------------------------------------- */

static int ask(const struct profile *p, const json_t *words, char ret[STEP_LINE_MAX],
               struct failure *f)
{
    _cleanup_free_ char *directory = profile_directory(p);
    _cleanup_(json_release) json_t *values =
        directory ? json_pack("{s:s}", "directory", directory) : NULL;
    const struct template_scope scope = {.values = values};
    _cleanup_words_ char **argv = NULL;
    _cleanup_step_ struct step_result result = {0};
    struct failure why;
    ret[0] = '\0';
    int r =
        values ? template_words(words, &scope, &argv, f) : failure_set(f, -ENOMEM, "out of memory");
    if (r < 0 || step_run(argv, NULL, NULL, ASK_TIMEOUT_MS, -1, &result, &why) < 0)
        return r;
    if (result.status != 0 || result.timed_out || !step_first_line(&result, ret))
        ret[0] = '\0';
    return 0;
}

int binding_ask(const struct profile *p, json_t *parameters, struct failure *ret_failure)
{
    const char *key;
    json_t *parameter;
    int r = 0;
    json_object_foreach(json_object_get(p->document, "parameters"), key, parameter)
    {
        const json_t *words = json_object_get(parameter, "default_from");
        const char *given = json_string_value(json_object_get(parameters, key));
        char line[STEP_LINE_MAX];
        if (r < 0 || !words || (given && *given))
            continue;
        r = ask(p, words, line, ret_failure);
        if (r == 0 && *line)
            r = parameters_check(p, key, line, ret_failure);
        if (r == 0 && json_object_set_new(parameters, key, json_string(line)) < 0)
            r = failure_set(ret_failure, -EINVAL, "%s: what is set here is not UTF-8", key);
    }
    return r;
}

/* --- the environment ----------------------------------------------------------------- */

/* Says whether a value is the same, to those alone who have it: the name has a random part. */
static json_t *hash_of(const struct place *place, const char *value)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t hash[SHA256_DIGEST_LENGTH];
    char text[2 * HASH_BYTES];
    SHA2_CTX context;
    SHA256Init(&context);
    SHA256Update(&context, (const uint8_t *)place->given_name, strlen(place->given_name) + 1);
    SHA256Update(&context, (const uint8_t *)value, strlen(value));
    SHA256Final(hash, &context);
    for (size_t i = 0; i < HASH_BYTES; i++) {
        text[2 * i] = digits[hash[i] >> 4];
        text[2 * i + 1] = digits[hash[i] & 15];
    }
    return json_stringn(text, sizeof text);
}

static json_t *secret_now(const struct place *place, const char *name)
{
    const char *value = getenv(name);
    return value && *value ? hash_of(place, value) : json_null();
}

static bool can_be_kept(const char *value)
{
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return false;
    return strlen(value) <= PLACE_TEXT_MAX;
}

static int keep(json_t *environment, const char *name, struct failure *f)
{
    const char *value = getenv(name);
    if (value && !can_be_kept(value))
        return failure_set(f, -EINVAL, "%s has control characters or more than %zu bytes", name,
                           PLACE_TEXT_MAX);
    if (json_object_set_new(environment, name, value ? json_string(value) : json_null()) < 0)
        return failure_set(f, -EINVAL, "%s is not UTF-8", name);
    return 0;
}

int binding_take(const struct profile *p, struct place *place, struct failure *ret_failure)
{
    const json_t *bound = json_object_get(p->document, "bound_to");
    _cleanup_(json_release) json_t *environment = json_object(), *secrets = json_object();
    size_t i;
    json_t *name;
    int r = environment && secrets ? 0 : failure_set(ret_failure, -ENOMEM, "out of memory");
    json_array_foreach(json_object_get(bound, "environment"), i, name)
    {
        if (r == 0)
            r = keep(environment, json_string_value(name), ret_failure);
    }
    json_array_foreach(json_object_get(bound, "secrets"), i, name)
    {
        const char *text = json_string_value(name);
        if (r == 0 && json_object_set_new(secrets, text, secret_now(place, text)) < 0)
            r = failure_set(ret_failure, -ENOMEM, "out of memory");
    }
    if (r < 0)
        return r;
    place->environment = take_ptr(environment);
    place->secrets = take_ptr(secrets);
    return 0;
}

const char *binding_changed_secret(const struct place *place)
{
    const char *name;
    json_t *value;
    json_object_foreach(place->secrets, name, value)
    {
        _cleanup_(json_release) json_t *now = secret_now(place, name);
        if (now && !json_equal(now, value))
            return name;
    }
    return NULL;
}

/* --- for people ---------------------------------------------------------------------- */

static int describe(struct buffer *b, const char *name, const char *value)
{
    const char *before = b->len ? ", " : "";
    return value ? buffer_printf(b, "%s%s=%s", before, name, value)
                 : buffer_printf(b, "%s%s is not set", before, name);
}

char *binding_describe(const struct profile *p, const struct place *place)
{
    _cleanup_buffer_ struct buffer b = {0};
    const char *key;
    json_t *value;
    int r = 0;
    json_object_foreach(json_object_get(p->document, "parameters"), key, value)
    {
        const char *given = json_string_value(json_object_get(place->parameters, key));
        if (r == 0 && json_object_get(value, "default_from") && given && *given)
            r = describe(&b, key, given);
    }
    json_object_foreach(place->environment, key, value)
    {
        if (r == 0)
            r = describe(&b, key, json_string_value(value));
    }
    if (r == 0)
        r = buffer_append_u8(&b, 0);
    return r == 0 ? (char *)take_ptr(b.data) : NULL;
}
