/* Which services a joined mount has, as its options and the configuration say. */
#include "join_private.h"

#include "base/log.h"
#include "outside.h"

static int no_memory(struct failure *f)
{
    return failure_set(f, -ENOMEM, "out of memory");
}

int join_name(const struct options *o, struct client_settings *settings, struct failure *f)
{
    _cleanup_buffer_ struct buffer text = {0};
    int r = buffer_printf(&text, "joined:%s", o->services ? o->services : "");
    for (size_t i = 0; r == 0 && i < o->url_count; i++)
        r = buffer_printf(&text, "%s%s", i ? "+" : "", o->urls[i]);
    if (r == 0)
        r = buffer_append_u8(&text, '\0');
    if (r < 0)
        return no_memory(f);
    free(settings->url);
    settings->url = (char *)text.data;
    text = (struct buffer){0};
    return 0;
}

static int add(struct driver *hub, const char *name, struct client_settings *s, const char *why,
               bool quiet, struct failure *f)
{
    int r = outside_files(hub->mountpoint, s, f);
    if (r < 0)
        return r;
    r = join_add(hub->join, name, s, why, quiet);
    if (r == -E2BIG)
        return failure_set(f, r, "a joined mount has at most %d services", JOIN_MEMBERS_MAX);
    return r < 0 ? failure_set(f, r, "%s: %s", name, strerror(-r)) : 0;
}

/* One whose token cannot be read is a member that cannot be used, and says why. */
static int add_service(struct driver *hub, const struct service_entry *e, struct failure *f)
{
    _cleanup_client_settings_ struct client_settings s = {0};
    struct failure why = {0};
    int r = client_settings_of_service(hub->settings, e, &s, &why);
    if (r == -ENOMEM)
        return no_memory(f);
    if (r < 0) {
        log_warning("%s: %s", e->name, why.text);
        s.url = strdup(e->url);
        if (!s.url)
            return no_memory(f);
    }
    return add(hub, e->name, &s, r < 0 ? why.text : NULL, false, f);
}

/* name NULL: the service that is meant where none is named. */
static int add_url(struct driver *hub, const char *url, const char *name, struct failure *f)
{
    _cleanup_client_settings_ struct client_settings s = {0};
    struct client_flags flags = options_client_flags(hub->options);
    flags.url = url;
    int r = client_settings_load(&flags, &s, f);
    return r < 0 ? r : add(hub, name, &s, NULL, !url && s.url_default, f);
}

static int add_all(struct driver *hub, const struct service_list *l, struct failure *f)
{
    int r = add_url(hub, NULL, "default", f);
    for (size_t i = 0; r == 0 && i < l->count; i++)
        r = add_service(hub, &l->entries[i], f);
    return r;
}

static int no_such_service(const struct service_list *l, const char *name, struct failure *f)
{
    char known[200] = "";
    size_t used = 0;
    for (size_t i = 0; i < l->count && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
                                 l->entries[i].name);
    return failure_set(f, -ENOENT,
                       "no service \"%s\" in client.services of the configuration file%s%s%s; see "
                       "berth.json(5)",
                       name, l->count ? ". There are: " : ", which is empty", known,
                       used >= sizeof known ? "..." : "");
}

static int add_named(struct driver *hub, const struct service_list *l, const char *names,
                     struct failure *f)
{
    char name[SERVICE_NAME_MAX + 1];
    int r = 0;
    while (r == 0 && *names) {
        size_t len = strcspn(names, ":");
        (void)snprintf(name, sizeof name, "%.*s", (int)len, names);
        const struct service_entry *e = len < sizeof name ? service_list_find(l, name) : NULL;
        if (!e)
            return no_such_service(l, name, f);
        r = add_service(hub, e, f);
        names += len + (names[len] == ':');
    }
    return r;
}

int join_load(struct driver *hub, struct failure *ret_failure)
{
    const struct options *o = hub->options;
    bool all = o->services && strcmp(o->services, "all") == 0;
    const struct join_options join = {.base = hub->settings, .places = all};
    _cleanup_service_list_ struct service_list l = {0};
    int r = join_new(hub, &join, ret_failure);
    if (r == 0 && o->services)
        r = service_list_load(o->config_file, &l, ret_failure);
    if (r == 0 && all)
        r = add_all(hub, &l, ret_failure);
    else if (r == 0 && o->services)
        r = add_named(hub, &l, o->services, ret_failure);
    for (size_t i = 0; r == 0 && i < o->url_count; i++) {
        char name[24];
        (void)snprintf(name, sizeof name, "%zu", i + 1);
        r = add_url(hub, o->urls[i], name, ret_failure);
    }
    return r;
}
