#include "config/document.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "config/paths.h"

#define CONFIG_FILE_MAX (1024 * 1024) /* a wrong file, such as a device, must not fill memory */

void config_document_release(struct document *d)
{
    free(d->file);
    free(d->directory);
    json_decref(d->root);
}

void config_document_json_release(json_t **object)
{
    json_decref(*object);
}

int config_document_no_memory(struct failure *f)
{
    return failure_set(f, -ENOMEM, "out of memory");
}

/* --- the file ------------------------------------------------------------------------------ */

static const char *const client_keys[] = {
    "url",      "token_file",      "ca_file", "cert_file", "key_file", "connect_timeout",
    "symlinks", "system_prefixes", "persist", "services",  NULL};
static const char *const service_keys[] = {"root",     "listen",      "access_file",   "audit_log",
                                           "tls_cert", "tls_key",     "tls_client_ca", "log_level",
                                           "watch",    "visibility",  "keep_verdicts", "policy",
                                           "confine",  "socket_mode", "keeper_socket", NULL};
static const struct section sections[] = {{"client", client_keys}, {"service", service_keys}};

static void join_keys(const char *const *keys, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; keys[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", keys[i]);
}

int config_document_check_keys(const char *file, json_t *object, const struct section *section,
                               struct failure *f)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        size_t i = 0;
        while (section->keys[i] && strcmp(section->keys[i], key) != 0)
            i++;
        if (section->keys[i])
            continue;
        char shown[80];
        char known[256];
        (void)log_escape(key, strlen(key), shown, sizeof shown);
        join_keys(section->keys, known, sizeof known);
        return failure_set(f, -EINVAL, "%s: unknown key %s.%s. The keys of %s are: %s", file,
                           section->name, shown, section->name, known);
    }
    return 0;
}

static int check_sections(const char *file, json_t *root, struct failure *f)
{
    if (!json_is_object(root))
        return failure_set(f, -EINVAL, "%s: the whole must be one JSON object { ... }", file);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        const struct section *section = NULL;
        for (size_t i = 0; i < ARRAY_SIZE(sections); i++)
            if (strcmp(sections[i].name, key) == 0)
                section = &sections[i];
        char shown[80];
        (void)log_escape(key, strlen(key), shown, sizeof shown);
        if (!section)
            return failure_set(f, -EINVAL,
                               "%s: unknown key %s. At the top are \"client\" and \"service\"",
                               file, shown);
        if (!json_is_object(value))
            return failure_set(f, -EINVAL, "%s: %s must be an object { ... }", file, shown);
        int r = config_document_check_keys(file, value, section, f);
        if (r < 0)
            return r;
    }
    return 0;
}

int config_document_parse_file(const char *what, const char *file, json_t **ret, struct failure *f)
{
    FILE *stream = fopen(file, "re");
    if (!stream) {
        int error = errno == ENOENT || errno == EACCES ? -errno : -EINVAL;
        return failure_set(f, error, "%s %s: %s. Check the path", what, file, strerror(errno));
    }
    _cleanup_free_ char *text = malloc(CONFIG_FILE_MAX + 1);
    size_t len = text ? fread(text, 1, CONFIG_FILE_MAX + 1, stream) : 0;
    int error = text && ferror(stream) ? errno : 0;
    (void)fclose(stream);
    if (!text)
        return config_document_no_memory(f);
    if (error)
        return failure_set(f, -EINVAL, "%s %s: cannot be read: %s", what, file, strerror(error));
    if (len > CONFIG_FILE_MAX)
        return failure_set(f, -EINVAL, "%s %s: larger than %d KiB. Check the path", what, file,
                           CONFIG_FILE_MAX / 1024);
    json_error_t where;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return failure_set(f, -EINVAL, "%s:%d:%d: not valid JSON: %s", file, where.line,
                           where.column, where.text);
    *ret = root;
    return 0;
}

int config_document_load(const char *flag, struct document *ret, struct failure *f)
{
    _cleanup_(config_document_release) struct document d = {0};
    int r = flag ? paths_absolute(flag, NULL, &d.file, f) : paths_config_file(&d.file, f);
    if (r < 0)
        return r;
    if (d.file) {
        d.directory = strndup(d.file, (size_t)(strrchr(d.file, '/') - d.file));
        if (!d.directory)
            return config_document_no_memory(f);
        r = config_document_parse_file("configuration file", d.file, &d.root, f);
        if (r == 0)
            r = check_sections(d.file, d.root, f);
        if (r < 0)
            return r;
    }
    *ret = d;
    d = (struct document){0};
    return 0;
}

/* --- one setting ---------------------------------------------------------------------------- */

int config_document_string_in(const struct document *d, json_t *object, const char *section,
                              const char *key, const char **ret, struct failure *f)
{
    json_t *value = json_object_get(object, key);
    *ret = NULL;
    if (!value)
        return 0;
    const char *text = json_string_value(value);
    if (!text || !*text || strlen(text) != json_string_length(value))
        return failure_set(f, -EINVAL, "%s: %s.%s must be a string that is not empty", d->file,
                           section, key);
    *ret = text;
    return 0;
}

int config_document_string(const struct document *d, const char *section, const char *key,
                           const char **ret, struct failure *f)
{
    return config_document_string_in(d, json_object_get(d->root, section), section, key, ret, f);
}

const char *config_document_environment(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

int config_document_file(const struct document *d, const char *flag, const char *variable,
                         const char *section, const char *key, char **ret, struct failure *f)
{
    const char *given = flag ? flag : config_document_environment(variable);
    if (given)
        return paths_absolute(given, NULL, ret, f);
    const char *text;
    int r = config_document_string(d, section, key, &text, f);
    if (r == 0 && text)
        r = paths_absolute(text, d->directory, ret, f);
    return r;
}
