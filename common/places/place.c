#include "places/place.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"

#define VERSION 1

static const char *const states[] = {
    [PLACE_CREATING] = "creating",
    [PLACE_READY] = "ready",
    [PLACE_REMOVING] = "removing",
    [PLACE_FAILED] = "failed",
};

static const char *const keys[] = {"version",    "id",          "id_hex", "provider", "sandbox",
                                   "name",       "parameters",  "url",    "state",    "created",
                                   "created_by", "environment", "secrets"};

void place_clear(struct place *p)
{
    buffer_release(&p->id);
    free(p->provider);
    free(p->sandbox);
    free(p->given_name);
    json_decref(p->parameters);
    free(p->url);
    free(p->created_by);
    json_decref(p->environment);
    json_decref(p->secrets);
    *p = (struct place){0};
}

const char *place_state_name(enum place_state state)
{
    assert((size_t)state < ARRAY_SIZE(states));
    return states[state];
}

static void json_release(json_t **object)
{
    json_decref(*object);
}

/* --- writing --------------------------------------------------------------------- */

static int set_hex(json_t *object, struct bytes id)
{
    static const char digits[] = "0123456789abcdef";
    char hex[2 * THREAD_ID_MAX];
    for (size_t i = 0; i < id.len; i++) {
        hex[2 * i] = digits[id.data[i] >> 4];
        hex[2 * i + 1] = digits[id.data[i] & 15];
    }
    return json_object_set_new(object, "id_hex", json_stringn(hex, 2 * id.len));
}

json_t *place_to_json(const struct place *p)
{
    struct bytes id = buffer_view(&p->id);
    _cleanup_(json_release) json_t *object = json_object();
    /* jansson takes UTF-8 alone. */
    json_t *text = memchr(id.data, 0, id.len) ? NULL : json_stringn((const char *)id.data, id.len);
    int r = json_object_set_new(object, "version", json_integer(VERSION));
    r |= text ? json_object_set_new(object, "id", text) : set_hex(object, id);
    r |= json_object_set_new(object, "provider", json_string(p->provider));
    r |= json_object_set_new(object, "sandbox", json_string(p->sandbox));
    r |= json_object_set_new(object, "name", json_string(p->given_name));
    r |= json_object_set_new(object, "parameters",
                             p->parameters ? json_deep_copy(p->parameters) : json_object());
    r |= json_object_set_new(object, "url", json_string(p->url ? p->url : ""));
    r |= json_object_set_new(object, "state", json_string(place_state_name(p->state)));
    r |= json_object_set_new(object, "created", json_integer((json_int_t)p->created));
    r |= json_object_set_new(object, "created_by", json_string(p->created_by));
    if (p->environment)
        r |= json_object_set_new(object, "environment", json_deep_copy(p->environment));
    if (p->secrets)
        r |= json_object_set_new(object, "secrets", json_deep_copy(p->secrets));
    return r < 0 ? NULL : take_ptr(object);
}

/* --- reading --------------------------------------------------------------------- */

static int no_memory(struct failure *f)
{
    return failure_set(f, -ENOMEM, "out of memory");
}

static int check_keys(const json_t *object, struct failure *f)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        size_t i = 0;
        while (i < ARRAY_SIZE(keys) && strcmp(keys[i], key) != 0)
            i++;
        if (i == ARRAY_SIZE(keys))
            return failure_set(f, -EINVAL, "there is a key that this version does not know");
    }
    return 0;
}

/* A string without control characters, which would go into command lines and onto terminals. */
static const char *plain_text(const json_t *value)
{
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);
    if (!text || len > PLACE_TEXT_MAX || strlen(text) != len)
        return NULL;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return NULL;
    return text;
}

static int get_text(const json_t *object, const char *key, bool may_be_empty, char **ret,
                    struct failure *f)
{
    const char *text = plain_text(json_object_get(object, key));
    if (!text || (!*text && !may_be_empty))
        return failure_set(f, -EINVAL, "\"%s\" is missing, or is no plain text of a line", key);
    *ret = strdup(text);
    return *ret ? 0 : no_memory(f);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int get_hex(const char *hex, size_t len, struct buffer *ret, struct failure *f)
{
    if (len % 2 || len > (size_t)2 * THREAD_ID_MAX)
        return failure_set(f, -EINVAL, "\"id_hex\" is no thread ID");
    for (size_t i = 0; i < len; i += 2) {
        int high = hex_digit(hex[i]), low = hex_digit(hex[i + 1]);
        if (high < 0 || low < 0)
            return failure_set(f, -EINVAL, "\"id_hex\" is no thread ID");
        if (buffer_append_u8(ret, (uint8_t)(high << 4 | low)) < 0)
            return no_memory(f);
    }
    return 0;
}

static int get_id(const json_t *object, struct place *p, struct failure *f)
{
    const json_t *text = json_object_get(object, "id"), *hex = json_object_get(object, "id_hex");
    int r = 0;
    if (json_is_string(text) && !hex && json_string_length(text) <= THREAD_ID_MAX)
        r = buffer_append(&p->id, json_string_value(text), json_string_length(text)) < 0
                ? no_memory(f)
                : 0;
    else if (json_is_string(hex) && !text)
        r = get_hex(json_string_value(hex), json_string_length(hex), &p->id, f);
    if (r == 0)
        r = thread_id_to_name(buffer_view(&p->id), p->name);
    return r == -EINVAL ? failure_set(f, r, "neither \"id\" nor \"id_hex\" is a thread ID") : r;
}

static int get_parameters(const json_t *object, struct place *p, struct failure *f)
{
    json_t *parameters = json_object_get(object, "parameters");
    const char *key;
    json_t *value;
    bool good = json_is_object(parameters);
    json_object_foreach(parameters, key, value)
    {
        good = good && plain_text(value);
    }
    if (!good)
        return failure_set(f, -EINVAL, "\"parameters\" is no object of plain texts");
    p->parameters = json_incref(parameters);
    return 0;
}

bool place_variable_is_valid(const char *name)
{
    size_t len = strlen(name);
    return len > 0 && len <= PLACE_VARIABLE_NAME_MAX && (name[0] < '0' || name[0] > '9') &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == len &&
           strncmp(name, "LD_", 3) != 0 && strncmp(name, "BERTH_", 6) != 0;
}

/* *ret stays NULL where there is none: a place of before this was kept. */
static int get_variables(const json_t *object, const char *key, json_t **ret, struct failure *f)
{
    json_t *variables = json_object_get(object, key);
    const char *name;
    json_t *value;
    if (!variables)
        return 0;
    bool good = json_is_object(variables) && json_object_size(variables) <= PLACE_VARIABLES_MAX;
    json_object_foreach(variables, name, value)
    {
        good = good && place_variable_is_valid(name) && (json_is_null(value) || plain_text(value));
    }
    if (!good)
        return failure_set(f, -EINVAL, "\"%s\" is no object of variables and plain texts", key);
    *ret = json_incref(variables);
    return 0;
}

static int get_state(const json_t *object, struct place *p, struct failure *f)
{
    const char *word = json_string_value(json_object_get(object, "state"));
    const json_t *created = json_object_get(object, "created");
    for (size_t i = 0; word && i < ARRAY_SIZE(states); i++)
        if (strcmp(states[i], word) == 0 && json_is_integer(created)) {
            p->state = (enum place_state)i;
            p->created = json_integer_value(created);
            return 0;
        }
    return failure_set(f, -EINVAL, "\"state\" or \"created\" is missing, or not known");
}

int place_parse(struct bytes text, struct place *ret, struct failure *ret_failure)
{
    struct failure *f = ret_failure;
    _cleanup_place_ struct place p = {0};
    _cleanup_(json_release) json_t *object =
        text.len > PLACE_FILE_MAX
            ? NULL
            : json_loadb((const char *)text.data, text.len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(object))
        return failure_set(f, -EINVAL, "it is not one JSON object");
    if (json_integer_value(json_object_get(object, "version")) != VERSION)
        return failure_set(f, -EINVAL, "it is of another version of Berth");
    int r = check_keys(object, f);
    if (r < 0 || (r = get_id(object, &p, f)) < 0 ||
        (r = get_text(object, "provider", false, &p.provider, f)) < 0 ||
        (r = get_text(object, "sandbox", false, &p.sandbox, f)) < 0 ||
        (r = get_text(object, "name", false, &p.given_name, f)) < 0 ||
        (r = get_parameters(object, &p, f)) < 0 ||
        (r = get_text(object, "url", true, &p.url, f)) < 0 || (r = get_state(object, &p, f)) < 0 ||
        (r = get_text(object, "created_by", false, &p.created_by, f)) < 0 ||
        (r = get_variables(object, "environment", &p.environment, f)) < 0 ||
        (r = get_variables(object, "secrets", &p.secrets, f)) < 0)
        return r;
    *ret = p;
    p = (struct place){0};
    return 0;
}
