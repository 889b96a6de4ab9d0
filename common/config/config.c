#include "config/config.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "config/document.h"
#include "config/paths.h"
#include "config/services_private.h"
#include "stream/url.h"

#define CONNECT_TIMEOUT_MAX 3600    /* seconds */
#define PERSIST_MAX (7 * 24 * 3600) /* seconds */

/* --- client -------------------------------------------------------------------------------- */

static int load_url(const struct document *d, const struct client_flags *flags,
                    struct client_settings *s, struct failure *f)
{
    const char *url = flags->url ? flags->url : config_document_environment("BERTH_URL");
    /* On the command line it may have been an option, a word or a mount option: its text tells. */
    const char *from = flags->url ? NULL : "BERTH_URL";
    int r = 0;
    if (!url) {
        r = config_document_string(d, "client", "url", &url, f);
        from = d->file;
    }
    if (r < 0)
        return r;
    s->url_default = !url;
    if (!url)
        return paths_default_url(&s->url, f);
    struct failure why;
    r = stream_url_check(url, &why);
    if (r < 0)
        return failure_set(f, r, "%s%s%s", from ? from : "", from ? ": " : "", why.text);
    s->url = strdup(url);
    return s->url ? 0 : config_document_no_memory(f);
}

int client_settings_read_token(struct client_settings *s, struct failure *ret_failure)
{
    _cleanup_token_list_ struct token_list l = {0};
    if (!s->token_file)
        return 0;
    int r = token_list_load(s->token_file, &l, ret_failure);
    if (r == 0)
        s->token = take_ptr(l.tokens[0]);
    return r;
}

static int load_token(const struct document *d, const struct client_flags *flags,
                      struct client_settings *s, struct failure *f)
{
    const char *direct = config_document_environment("BERTH_TOKEN");
    if (direct && !flags->token_file) {
        s->token = strdup(direct);
        return s->token ? 0 : config_document_no_memory(f);
    }
    int r = config_document_file(d, flags->token_file, "BERTH_TOKEN_FILE", "client", "token_file",
                                 &s->token_file, f);
    return r < 0 ? r : client_settings_read_token(s, f);
}

static int load_timeout(const struct document *d, const struct client_flags *flags,
                        struct client_settings *s, struct failure *f)
{
    s->connect_timeout_ms = flags->connect_timeout_ms;
    json_t *value = json_object_get(json_object_get(d->root, "client"), "connect_timeout");
    if (!value)
        return 0;
    double seconds = json_is_number(value) ? json_number_value(value) : 0;
    if (!(seconds >= 0.001 && seconds <= CONNECT_TIMEOUT_MAX))
        return failure_set(f, -EINVAL,
                           "%s: client.connect_timeout must be a number of seconds, 0.001 to %d",
                           d->file, CONNECT_TIMEOUT_MAX);
    if (!s->connect_timeout_ms)
        s->connect_timeout_ms = (uint32_t)(seconds * 1000 + 0.5);
    return 0;
}

/* -1: it is none. */
static long long whole_number(const char *text)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    return end == text || *end || errno ? -1 : number;
}

static int load_persist(const struct document *d, const struct client_flags *flags,
                        struct client_settings *s, struct failure *f)
{
    const char *text =
        flags->persist ? flags->persist : config_document_environment("BERTH_PERSIST");
    json_t *value = json_object_get(json_object_get(d->root, "client"), "persist");
    long long seconds = -1;
    if (text) {
        seconds = whole_number(text);
    } else if (value) {
        seconds = json_is_integer(value) ? json_integer_value(value) : -1;
    } else {
        s->persist_s = -1;
        return 0;
    }
    if (seconds < 0 || seconds > PERSIST_MAX)
        return failure_set(f, -EINVAL, "%s%s must be a number of seconds, 0 to %d",
                           !text ? d->file : "",
                           flags->persist ? "--persist"
                           : text         ? "BERTH_PERSIST"
                                          : ": client.persist",
                           PERSIST_MAX);
    s->persist_s = (int)seconds;
    return 0;
}

/* The array's strings, separated by ':'. */
static int join_prefixes(const struct document *d, json_t *array, struct buffer *ret,
                         struct failure *f)
{
    size_t i;
    json_t *element;
    bool good = json_is_array(array) && json_array_size(array) > 0;
    json_array_foreach(array, i, element)
    {
        const char *prefix = json_string_value(element);
        good =
            good && prefix && !strchr(prefix, ':') && strlen(prefix) == json_string_length(element);
        if (good && ((i && buffer_append_u8(ret, ':') < 0) ||
                     buffer_append(ret, prefix, strlen(prefix)) < 0))
            return config_document_no_memory(f);
    }
    if (good && buffer_append_u8(ret, '\0') < 0)
        return config_document_no_memory(f);
    return good ? 0
                : failure_set(f, -EINVAL,
                              "%s: client.system_prefixes must be an array of paths, at least one, "
                              "for example [\"/usr\", \"/opt\"]",
                              d->file);
}

static int load_links(const struct document *d, const struct client_flags *flags,
                      struct client_settings *s, struct failure *f)
{
    struct failure why;
    const char *mode = flags->symlinks, *prefixes = flags->system_prefixes;
    int r = mode ? 0 : config_document_string(d, "client", "symlinks", &mode, f);
    if (r < 0)
        return r;
    if (mode && (r = link_mode_parse(mode, &s->symlinks, &why)) < 0)
        return failure_set(f, r, "%s%s%s", flags->symlinks ? "" : d->file,
                           flags->symlinks ? "" : ": client.", why.text);
    json_t *array = json_object_get(json_object_get(d->root, "client"), "system_prefixes");
    _cleanup_buffer_ struct buffer joined = {0};
    const char *from = prefixes ? "" : d->file;
    if (!prefixes && array) {
        r = join_prefixes(d, array, &joined, f);
        if (r < 0)
            return r;
        prefixes = (const char *)joined.data;
    }
    if (prefixes && (r = link_prefixes_check(prefixes, &why)) < 0)
        return failure_set(f, r, "%s%s%s", from, *from ? ": client." : "", why.text);
    s->system_prefixes = strdup(prefixes ? prefixes : LINK_PREFIXES_DEFAULT);
    return s->system_prefixes ? 0 : config_document_no_memory(f);
}

bool client_flags_name_service(const struct client_flags *flags)
{
    return flags->url || flags->service || config_document_environment("BERTH_URL") ||
           config_document_environment("BERTH_SERVICE");
}

/* The name of the service that is meant, if it has one. */
static int choose_service(const struct client_flags *flags, const char **ret, struct failure *f)
{
    const char *variable = config_document_environment("BERTH_SERVICE");
    *ret = flags->service;
    if (flags->url && flags->service)
        return failure_set(f, -EINVAL, "a URL and --service both say which service: leave out one");
    if (flags->url || flags->service || !variable)
        return 0;
    if (config_document_environment("BERTH_URL"))
        return failure_set(f, -EINVAL,
                           "BERTH_URL and BERTH_SERVICE both say which service: unset one");
    *ret = variable;
    return 0;
}

static int no_such_service(const struct document *d, const struct service_list *l, const char *name,
                           struct failure *f)
{
    char shown[2 * SERVICE_NAME_MAX], known[256] = "";
    size_t used = 0;
    (void)log_escape(name, strlen(name), shown, sizeof shown);
    for (size_t i = 0; i < l->count && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
                                 l->entries[i].name);
    if (used >= sizeof known)
        (void)snprintf(known + sizeof known - 4, 4, "...");
    if (!d->file)
        return failure_set(f, -ENOENT,
                           "there is no service \"%s\": services get names in the configuration "
                           "file, and there is none; see berth.json(5)",
                           shown);
    return failure_set(f, -ENOENT, "%s: no service \"%s\" in client.services%s%s", d->file, shown,
                       l->count ? ". There are: " : ", which is empty", known);
}

/* Credentials that were given for this service: by flags, else what is said of it. */
static int take_credentials(const struct client_flags *flags, const struct service_entry *e,
                            struct client_settings *s, struct failure *f)
{
    const struct {
        const char *flag;
        const char *own;
        char **field;
    } files[] = {{flags->token_file, e->token_file, &s->token_file},
                 {flags->ca_file, e->ca_file, &s->ca_file},
                 {flags->cert_file, e->cert_file, &s->cert_file},
                 {flags->key_file, e->key_file, &s->key_file}};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(files); i++) {
        const char *path = files[i].flag ? files[i].flag : files[i].own;
        if (path)
            r = paths_absolute(path, NULL, files[i].field, f);
    }
    return r == 0 ? client_settings_read_token(s, f) : r;
}

/* URL and credentials of a service by name. */
static int load_service(const struct document *d, const struct client_flags *flags,
                        const struct service_list *l, const char *name, struct client_settings *s,
                        struct failure *f)
{
    const struct service_entry *e = service_list_find(l, name);
    if (!e)
        return no_such_service(d, l, name, f);
    s->url = strdup(e->url);
    s->service = strdup(e->name);
    if (!s->url || !s->service)
        return config_document_no_memory(f);
    return take_credentials(flags, e, s, f);
}

/* URL and credentials of a service that has no name. */
static int load_unnamed(const struct document *d, const struct client_flags *flags,
                        struct client_settings *s, struct failure *f)
{
    static const struct service_entry nothing = {0};
    int r = load_url(d, flags, s, f);
    s->alone = flags->alone;
    if (r == 0 && flags->alone)
        return take_credentials(flags, &nothing, s, f);
    if (r == 0)
        r = load_token(d, flags, s, f);
    if (r == 0)
        r = config_document_file(d, flags->ca_file, "BERTH_CA_FILE", "client", "ca_file",
                                 &s->ca_file, f);
    if (r == 0)
        r = config_document_file(d, flags->cert_file, "BERTH_CERT_FILE", "client", "cert_file",
                                 &s->cert_file, f);
    if (r == 0)
        r = config_document_file(d, flags->key_file, "BERTH_KEY_FILE", "client", "key_file",
                                 &s->key_file, f);
    return r;
}

int client_settings_load(const struct client_flags *flags, struct client_settings *ret,
                         struct failure *ret_failure)
{
    _cleanup_(config_document_release) struct document d = {0};
    _cleanup_client_settings_ struct client_settings s = {0};
    _cleanup_service_list_ struct service_list services = {0};
    struct failure *f = ret_failure;
    const char *name;
    int r = choose_service(flags, &name, f);
    if (r < 0 || (r = config_document_load(flags->config_file, &d, f)) < 0 ||
        (r = service_list_read(&d, &services, f)) < 0 ||
        (r = name ? load_service(&d, flags, &services, name, &s, f)
                  : load_unnamed(&d, flags, &s, f)) < 0 ||
        (r = load_timeout(&d, flags, &s, f)) < 0 || (r = load_persist(&d, flags, &s, f)) < 0 ||
        (r = load_links(&d, flags, &s, f)) < 0)
        return r;
    *ret = s;
    s = (struct client_settings){0};
    return 0;
}

int client_settings_copy(const struct client_settings *s, struct client_settings *ret)
{
    struct client_settings c = *s;
    char **const fields[] = {&c.url,     &c.service,   &c.token,    &c.token_file,
                             &c.ca_file, &c.cert_file, &c.key_file, &c.system_prefixes};
    bool whole = true;
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        if (*fields[i]) {
            *fields[i] = strdup(*fields[i]);
            whole &= *fields[i] != NULL;
        }
    if (!whole) {
        client_settings_release(&c);
        return -ENOMEM;
    }
    *ret = c;
    return 0;
}

void client_settings_release(struct client_settings *s)
{
    if (s->token)
        explicit_bzero(s->token, strlen(s->token));
    free(s->url);
    free(s->service);
    free(s->token);
    free(s->token_file);
    free(s->ca_file);
    free(s->cert_file);
    free(s->key_file);
    free(s->system_prefixes);
    *s = (struct client_settings){0};
}

struct stream_options client_settings_stream(const struct client_settings *s)
{
    return (struct stream_options){
        .url = s->url,
        .token = s->token,
        .ca_file = s->ca_file,
        .cert_file = s->cert_file,
        .key_file = s->key_file,
        .connect_timeout_ms = s->connect_timeout_ms,
    };
}

/* --- service ------------------------------------------------------------------------------- */

int config_listen_check(const char *url, struct failure *ret_failure)
{
    struct stream_url u;
    return stream_url_parse_listen(url, &u, ret_failure);
}

static int add_listener(struct service_settings *s, const char *url, const char *from,
                        struct failure *f)
{
    struct failure why;
    int r = config_listen_check(url, &why);
    if (r < 0)
        return failure_set(f, r, "%s: %s", from, why.text);
    if (s->listen_count == CONFIG_LISTEN_MAX)
        return failure_set(f, -EINVAL, "%s: more than %d listeners", from, CONFIG_LISTEN_MAX);
    char **listen = reallocarray(s->listen, s->listen_count + 1, sizeof *listen);
    if (!listen)
        return config_document_no_memory(f);
    s->listen = listen;
    listen[s->listen_count] = strdup(url);
    if (!listen[s->listen_count])
        return config_document_no_memory(f);
    s->listen_count++;
    return 0;
}

int service_settings_listen(struct service_settings *s, const char *url, const char *from,
                            struct failure *ret_failure)
{
    for (size_t i = 0; i < s->listen_count; i++)
        if (strcmp(s->listen[i], url) == 0)
            return 0;
    return add_listener(s, url, from, ret_failure);
}

static int load_listen(const struct document *d, const struct service_flags *flags,
                       struct service_settings *s, struct failure *f)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < flags->listen_count; i++)
        r = add_listener(s, flags->listen[i], "--listen", f);
    json_t *value = json_object_get(json_object_get(d->root, "service"), "listen");
    if (r < 0 || flags->listen_count > 0 || !value)
        return r;
    bool good = json_is_array(value) && json_array_size(value) > 0;
    size_t i;
    json_t *element;
    json_array_foreach(value, i, element)
    {
        const char *url = json_string_value(element);
        good = good && url && strlen(url) == json_string_length(element);
        if (good && (r = add_listener(s, url, d->file, f)) < 0)
            return r;
    }
    if (!good)
        return failure_set(f, -EINVAL,
                           "%s: service.listen must be an array of URLs, at least one, for example "
                           "[\"unix:/run/berth/berthd.sock\"]",
                           d->file);
    return 0;
}

/* A setting that is one of a few words, which *ret counts; unchanged when it is not given. */
struct choice {
    const char *given; /* the flag's argument, or NULL */
    const char *flag, *key;
    const char *const *words;
    size_t count;
    const char *expected;
};

static int load_choice(const struct document *d, const struct choice *c, size_t *ret,
                       struct failure *f)
{
    const char *word = c->given;
    int r = word ? 0 : config_document_string(d, "service", c->key, &word, f);
    if (r < 0 || !word)
        return r;
    for (size_t i = 0; i < c->count; i++) {
        if (strcmp(c->words[i], word) == 0) {
            *ret = i;
            return 0;
        }
    }
    if (c->given)
        return failure_set(f, -EINVAL, "%s must be %s", c->flag, c->expected);
    return failure_set(f, -EINVAL, "%s: service.%s must be %s", d->file, c->key, c->expected);
}

static int load_log_level(const struct document *d, const struct service_flags *flags,
                          struct service_settings *s, struct failure *f)
{
    static const char *const words[] = {"error", "warning", "info", "debug"};
    const struct choice c = {.given = flags->log_level,
                             .flag = "--log-level",
                             .key = "log_level",
                             .words = words,
                             .count = ARRAY_SIZE(words),
                             .expected = "error, warning, info or debug"};
    size_t level = LOG_LEVEL_INFO;
    int r = load_choice(d, &c, &level, f);
    s->log_level = (enum log_level)level;
    return r;
}

static const char *const watch_words[] = {
    [CONFIG_WATCH_AUTO] = "auto",
    [CONFIG_WATCH_FANOTIFY] = "fanotify",
    [CONFIG_WATCH_INOTIFY] = "inotify",
    [CONFIG_WATCH_NONE] = "none",
};

const char *config_watch_word(enum config_watch watch)
{
    return watch_words[watch];
}

static int load_watch(const struct document *d, const struct service_flags *flags,
                      struct service_settings *s, struct failure *f)
{
    const struct choice c = {.given = flags->watch,
                             .flag = "--watch",
                             .key = "watch",
                             .words = watch_words,
                             .count = ARRAY_SIZE(watch_words),
                             .expected = "auto, fanotify, inotify or none"};
    size_t watch = CONFIG_WATCH_AUTO;
    int r = load_choice(d, &c, &watch, f);
    s->watch = (enum config_watch)watch;
    return r;
}

static const char *const confine_words[] = {
    [CONFIG_CONFINE_AUTO] = "auto",
    [CONFIG_CONFINE_REQUIRE] = "require",
    [CONFIG_CONFINE_OFF] = "off",
};

const char *config_confine_word(enum config_confine confine)
{
    return confine_words[confine];
}

int config_confine_parse(const char *word, enum config_confine *ret)
{
    for (size_t i = 0; i < ARRAY_SIZE(confine_words); i++)
        if (strcmp(word, confine_words[i]) == 0) {
            *ret = (enum config_confine)i;
            return 0;
        }
    return -EINVAL;
}

static int load_confine(const struct document *d, const struct service_flags *flags,
                        struct service_settings *s, struct failure *f)
{
    const struct choice c = {.given = flags->confine,
                             .flag = "--confine",
                             .key = "confine",
                             .words = confine_words,
                             .count = ARRAY_SIZE(confine_words),
                             .expected = "auto, require or off"};
    size_t confine = CONFIG_CONFINE_AUTO;
    int r = load_choice(d, &c, &confine, f);
    s->confine = (enum config_confine)confine;
    return r;
}

/* A string in the file, too: JSON has no octal numbers. */
static int load_socket_mode(const struct document *d, const struct service_flags *flags,
                            struct service_settings *s, struct failure *f)
{
    const char *text = flags->socket_mode;
    int r = text ? 0 : config_document_string(d, "service", "socket_mode", &text, f);
    s->socket_mode = CONFIG_SOCKET_MODE;
    if (r < 0 || !text)
        return r;
    size_t len = strspn(text, "01234567");
    unsigned long mode = strtoul(text, NULL, 8);
    if (len == 0 || len > 4 || text[len] || mode > 0777 || (mode & 0600) != 0600)
        return failure_set(f, -EINVAL,
                           "%s%s must be an octal mode that has 0600, for example \"0660\"",
                           flags->socket_mode ? "" : d->file,
                           flags->socket_mode ? "--socket-mode" : ": service.socket_mode");
    s->socket_mode = (mode_t)mode;
    return 0;
}

static int load_keep_verdicts(const struct document *d, const struct service_flags *flags,
                              struct service_settings *s, struct failure *f)
{
    const char *text = flags->keep_verdicts;
    json_t *value = json_object_get(json_object_get(d->root, "service"), "keep_verdicts");
    long long seconds = CONFIG_KEEP_VERDICTS_S;
    if (text)
        seconds = whole_number(text);
    else if (value)
        seconds = json_is_integer(value) ? json_integer_value(value) : -1;
    if (seconds < 0 || seconds > CONFIG_KEEP_VERDICTS_MAX)
        return failure_set(
            f, -EINVAL, "%s%s must be a number of seconds, 0 to %d", text ? "" : d->file,
            text ? "--keep-verdicts" : ": service.keep_verdicts", CONFIG_KEEP_VERDICTS_MAX);
    s->keep_verdicts_s = (uint32_t)seconds;
    return 0;
}

/* The array's strings, each a line. */
static int join_rules(const struct document *d, json_t *array, struct buffer *ret,
                      struct failure *f)
{
    size_t i;
    json_t *element;
    bool good = json_is_array(array);
    json_array_foreach(array, i, element)
    {
        const char *line = json_string_value(element);
        if (!line || strlen(line) != json_string_length(element) || strchr(line, '\n')) {
            good = false;
            break;
        }
        if (buffer_append(ret, line, strlen(line)) < 0 || buffer_append_u8(ret, '\n') < 0)
            return config_document_no_memory(f);
    }
    if (!good)
        return failure_set(f, -EINVAL,
                           "%s: service.visibility must be an array of rules, each a string of one "
                           "line, for example [\"profile:ide\", \"hidden:*.pem\"]",
                           d->file);
    return 0;
}

static void warn_of_rule(void *file, size_t line, const char *sentence)
{
    log_warning("%s: service.visibility, rule %zu: %s", (const char *)file, line, sentence);
}

static int load_visibility(const struct document *d, const struct service_flags *flags,
                           struct service_settings *s, struct failure *f)
{
    struct failure why;
    int r;
    if (flags->prune) {
        r = config_rules_load(flags->prune, &s->visibility, &why);
        if (r < 0)
            return failure_set(f, r, "--prune: %s", why.text);
        if (strchr(flags->prune, '/'))
            return paths_absolute(flags->prune, NULL, &s->prune, f);
        s->prune = strdup(flags->prune);
        return s->prune ? 0 : config_document_no_memory(f);
    }
    json_t *array = json_object_get(json_object_get(d->root, "service"), "visibility");
    if (!array)
        return 0;
    _cleanup_buffer_ struct buffer text = {0};
    r = join_rules(d, array, &text, f);
    if (r < 0)
        return r;
    r = visibility_rules_parse(buffer_view(&text), &s->visibility, &why);
    if (r < 0)
        return failure_set(f, r, "%s: service.visibility: %s", d->file, why.text);
    (void)visibility_rules_doubts(buffer_view(&text), warn_of_rule, d->file);
    return 0;
}

/* What it says is read by who enforces it. */
static int load_policy(const struct document *d, const struct service_flags *flags,
                       struct service_settings *s, struct failure *f)
{
    struct failure why;
    json_t *policy = json_object_get(json_object_get(d->root, "service"), "policy");
    if (flags->policy) {
        int r =
            config_document_file(d, flags->policy, NULL, "service", "policy", &s->policy_from, f);
        if (r < 0)
            return r;
        _cleanup_(config_document_json_release) json_t *read = NULL;
        r = config_document_parse_file("the file", s->policy_from, &read, &why);
        if (r < 0)
            return failure_set(f, r, "--policy: %s", why.text);
        s->policy = json_dumps(read, JSON_COMPACT);
        s->policy_file = strdup(s->policy_from);
    } else if (policy) {
        s->policy = json_dumps(policy, JSON_COMPACT | JSON_ENCODE_ANY);
        if (asprintf(&s->policy_from, "%s: service.policy", d->file) < 0)
            s->policy_from = NULL;
    } else {
        return 0;
    }
    return s->policy && s->policy_from && (s->policy_file || !flags->policy)
               ? 0
               : config_document_no_memory(f);
}

int service_settings_load(const struct service_flags *flags, struct service_settings *ret,
                          struct failure *ret_failure)
{
    _cleanup_(config_document_release) struct document d = {0};
    _cleanup_service_settings_ struct service_settings s = {0};
    struct failure *f = ret_failure;
    int r = config_document_load(flags->config_file, &d, f);
    if (r < 0 ||
        (r = config_document_file(&d, flags->root, NULL, "service", "root", &s.root, f)) < 0 ||
        (!s.root && (r = paths_service_root(&s.root, f)) < 0) ||
        (r = load_listen(&d, flags, &s, f)) < 0 ||
        (r = config_document_file(&d, flags->keeper_socket, NULL, "service", "keeper_socket",
                                  &s.keeper_socket, f)) < 0 ||
        (r = config_document_file(&d, flags->audit_log, NULL, "service", "audit_log", &s.audit_log,
                                  f)) < 0 ||
        (r = config_document_file(&d, flags->access_file, NULL, "service", "access_file",
                                  &s.access_file, f)) < 0 ||
        (r = config_document_file(&d, flags->tls_cert, NULL, "service", "tls_cert", &s.tls_cert,
                                  f)) < 0 ||
        (r = config_document_file(&d, flags->tls_key, NULL, "service", "tls_key", &s.tls_key, f)) <
            0 ||
        (r = config_document_file(&d, flags->tls_client_ca, NULL, "service", "tls_client_ca",
                                  &s.tls_client_ca, f)) < 0 ||
        (r = load_log_level(&d, flags, &s, f)) < 0 || (r = load_watch(&d, flags, &s, f)) < 0 ||
        (r = load_socket_mode(&d, flags, &s, f)) < 0 ||
        (r = load_keep_verdicts(&d, flags, &s, f)) < 0 ||
        (r = load_confine(&d, flags, &s, f)) < 0 || (r = load_visibility(&d, flags, &s, f)) < 0 ||
        (r = load_policy(&d, flags, &s, f)) < 0)
        return r;
    s.config_file = take_ptr(d.file);
    *ret = s;
    s = (struct service_settings){0};
    return 0;
}

void service_settings_release(struct service_settings *s)
{
    for (size_t i = 0; i < s->listen_count; i++)
        free(s->listen[i]);
    free(s->listen);
    free(s->config_file);
    free(s->root);
    free(s->keeper_socket);
    free(s->access_file);
    free(s->audit_log);
    free(s->tls_cert);
    free(s->tls_key);
    free(s->tls_client_ca);
    free(s->prune);
    free(s->policy);
    free(s->policy_from);
    free(s->policy_file);
    visibility_rules_unref(s->visibility);
    *s = (struct service_settings){0};
}
