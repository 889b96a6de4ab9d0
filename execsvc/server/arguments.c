#include "server/arguments.h"

#include "base/cleanup.h"

void arguments_add(struct arguments *a, const char *option, const char *value)
{
    size_t n = 0;
    while (a->argv[n])
        n++;
    a->argv[n++] = option;
    a->argv[n] = value;
}

void arguments_set(struct arguments *a, const char *first, const struct service_settings *s)
{
    *a = (struct arguments){.argv = {"berthd", first}};
    (void)snprintf(a->keep, sizeof a->keep, "%u", s->keep_verdicts_s);
    (void)snprintf(a->mode, sizeof a->mode, "%#o", (unsigned)s->socket_mode);
    const struct {
        const char *option;
        const char *value;
    } options[] = {
        {"--config", s->config_file},
        {"--root", s->root},
        {"--keeper-socket", s->keeper_socket},
        {"--access-file", s->access_file},
        {"--audit-log", s->audit_log},
        {"--tls-cert", s->tls_cert},
        {"--tls-key", s->tls_key},
        {"--tls-client-ca", s->tls_client_ca},
        {"--prune", s->prune},
        {"--policy", s->policy_file},
        {"--watch", config_watch_word(s->watch)},
        {"--socket-mode", a->mode},
        {"--confine", config_confine_word(s->confine)},
        {"--keep-verdicts", a->keep},
        {"--log-level", log_level_name(s->log_level)},
    };
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        if (options[i].value)
            arguments_add(a, options[i].option, options[i].value);
    for (size_t i = 0; i < s->listen_count; i++)
        arguments_add(a, "--listen", s->listen[i]);
}
