#include "config/services.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "config/paths.h"
#include "config/services_private.h"
#include "stream/url.h"

#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

bool service_name_is_valid(const char *name)
{
    size_t len = strlen(name);
    return len > 0 && len <= SERVICE_NAME_MAX && strspn(name, LETTERS) > 0 &&
           strspn(name, LETTERS "._-") == len && strcmp(name, "all") != 0;
}

static void entry_release(struct service_entry *e)
{
    free(e->name);
    free(e->url);
    free(e->token_file);
    free(e->ca_file);
    free(e->cert_file);
    free(e->key_file);
}

void service_list_release(struct service_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        entry_release(&l->entries[i]);
    free(l->entries);
    *l = (struct service_list){0};
}

static int read_entry(const struct document *d, const char *name, json_t *object,
                      struct service_entry *e, struct failure *f)
{
    static const char *const keys[] = {"url",       "token_file", "ca_file",
                                       "cert_file", "key_file",   NULL};
    char where[sizeof "client.services." + SERVICE_NAME_MAX];
    (void)snprintf(where, sizeof where, "client.services.%s", name);
    const struct section section = {where, keys};
    if (!json_is_object(object))
        return failure_set(f, -EINVAL, "%s: %s must be an object { ... }", d->file, where);
    const char *url;
    int r = config_document_check_keys(d->file, object, &section, f);
    if (r == 0)
        r = config_document_string_in(d, object, where, "url", &url, f);
    if (r < 0)
        return r;
    if (!url)
        return failure_set(f, -EINVAL, "%s: %s has no \"url\"", d->file, where);
    struct failure why;
    r = stream_url_check(url, &why);
    if (r < 0)
        return failure_set(f, r, "%s: %s.url: %s", d->file, where, why.text);
    e->name = strdup(name);
    e->url = strdup(url);
    if (!e->name || !e->url)
        return config_document_no_memory(f);
    const struct {
        const char *key;
        char **field;
    } files[] = {{"token_file", &e->token_file},
                 {"ca_file", &e->ca_file},
                 {"cert_file", &e->cert_file},
                 {"key_file", &e->key_file}};
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(files); i++) {
        const char *text;
        r = config_document_string_in(d, object, where, files[i].key, &text, f);
        if (r == 0 && text)
            r = paths_absolute(text, d->directory, files[i].field, f);
    }
    return r;
}

int service_list_read(const struct document *d, struct service_list *ret, struct failure *f)
{
    json_t *services = json_object_get(json_object_get(d->root, "client"), "services");
    _cleanup_service_list_ struct service_list l = {0};
    if (services && !json_is_object(services))
        return failure_set(f, -EINVAL, "%s: client.services must be an object { ... }", d->file);
    size_t count = json_object_size(services);
    if (count > SERVICES_MAX)
        return failure_set(f, -EINVAL, "%s: client.services has more than %d services", d->file,
                           SERVICES_MAX);
    l.entries = calloc(count ? count : 1, sizeof *l.entries);
    if (!l.entries)
        return config_document_no_memory(f);
    const char *name;
    json_t *value;
    json_object_foreach(services, name, value)
    {
        char shown[2 * SERVICE_NAME_MAX];
        if (!service_name_is_valid(name))
            return failure_set(f, -EINVAL,
                               "%s: client.services: \"%s\" is no name for a service: that is 1 "
                               "to %d letters, digits, '.', '_' and '-', the first a letter or "
                               "digit, and not \"all\"",
                               d->file, log_escape(name, strlen(name), shown, sizeof shown),
                               SERVICE_NAME_MAX);
        int r = read_entry(d, name, value, &l.entries[l.count++], f);
        if (r < 0)
            return r;
    }
    *ret = l;
    l = (struct service_list){0};
    return 0;
}

int service_list_load(const char *config_file, struct service_list *ret,
                      struct failure *ret_failure)
{
    _cleanup_(config_document_release) struct document d = {0};
    int r = config_document_load(config_file, &d, ret_failure);
    return r < 0 ? r : service_list_read(&d, ret, ret_failure);
}

const struct service_entry *service_list_find(const struct service_list *l, const char *name)
{
    for (size_t i = 0; i < l->count; i++)
        if (strcmp(l->entries[i].name, name) == 0)
            return &l->entries[i];
    return NULL;
}

static int copy(const char *text, char **ret)
{
    if (!text)
        return 0;
    *ret = strdup(text);
    return *ret ? 0 : -ENOMEM;
}

int client_settings_of_service(const struct client_settings *base, const struct service_entry *e,
                               struct client_settings *ret, struct failure *ret_failure)
{
    _cleanup_client_settings_ struct client_settings s = {
        .symlinks = base->symlinks,
        .connect_timeout_ms = base->connect_timeout_ms,
        .persist_s = base->persist_s,
    };
    if (copy(e->name, &s.service) < 0 || copy(e->url, &s.url) < 0 ||
        copy(e->token_file, &s.token_file) < 0 || copy(e->ca_file, &s.ca_file) < 0 ||
        copy(e->cert_file, &s.cert_file) < 0 || copy(e->key_file, &s.key_file) < 0 ||
        copy(base->system_prefixes, &s.system_prefixes) < 0)
        return config_document_no_memory(ret_failure);
    int r = client_settings_read_token(&s, ret_failure);
    if (r < 0)
        return r;
    *ret = s;
    s = (struct client_settings){0};
    return 0;
}
