#include "cli/at_place.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/here.h"

/* A mount speaks for the workspace in which we stand; of others their place knows better. */
static bool stands_in(const struct cli *cli, const char *name)
{
    const struct here *here = cli->here;
    char own[THREAD_NAME_MAX + 1];
    if (!here || !here->workspace)
        return false;
    if (here->by_name)
        return strcmp(here->workspace, name) == 0;
    return thread_id_to_name(bytes_of_string(here->workspace), own) == 0 && strcmp(own, name) == 0;
}

int at_place_find(const struct cli *cli, const char *key, bool by_name, struct place *ret)
{
    char name[THREAD_NAME_MAX + 1];
    struct failure failure;
    size_t len = strlen(key);
    if (cli->url_given || len == 0 || (by_name && len > THREAD_NAME_MAX))
        return 0;
    if (by_name)
        memcpy(name, key, len + 1);
    else if (thread_id_to_name(bytes_of_string(key), name) < 0)
        return 0;
    if (strchr(name, '/') || name[0] == '.' || stands_in(cli, name))
        return 0;
    int r = place_read(name, ret, &failure);
    /* Who has no home has no places. */
    if (r == -ENOENT || r == -ENOTDIR)
        return 0;
    if (r < 0)
        cli_error(cli, "%s", failure.text);
    if (r < 0 || !cli->here || !cli->command->changes || strcmp(cli->here->url, ret->url) == 0)
        return r < 0 ? r : 1;
    const char *service = cli->here->own_credentials ? cli->here->member : NULL;
    cli_error(cli,
              "%s: a provider (%s) made one, and the service of the mount in which you stand, %s, "
              "may have one: go elsewhere (cd), or name the service: berth %s %s %s …",
              key, ret->provider, cli->here->url, service ? "--service" : "--url",
              service ? service : cli->here->url, cli->command->name);
    return -ENOTUNIQ;
}

static bool is_usable(const struct cli *cli, const char *key, const struct place *p)
{
    if (p->state == PLACE_READY && p->url[0])
        return true;
    cli_error(
        cli,
        "%s: its sandbox (%s, %s) is not ready but %s; `berth provider status` says how it is, "
        "and `berth rm` destroys it",
        key, p->provider, p->sandbox, place_state_name(p->state));
    return false;
}

static bool use_place(struct cli *cli, const struct which *w)
{
    _cleanup_place_ struct place p = {0};
    int r = at_place_find(cli, w->key, w->by_name, &p);
    if (r <= 0)
        return r == 0;
    if (!is_usable(cli, w->key, &p))
        return false;
    free(cli->place_url);
    cli->place_url = take_ptr(p.url);
    if (cli->here)
        cli->flags = cli->given;
    cli->flags.url = cli->place_url;
    cli->flags.alone = true;
    cli->control = NULL;
    return true;
}

bool at_place_use(struct cli *cli, struct which *w)
{
    return which_find(cli, w) == 0 && use_place(cli, w);
}

bool at_place_use_id(struct cli *cli, const char **word, char id[static WHICH_ID_SIZE])
{
    const struct which w = {.key = id};
    if (!*word)
        return which_service(cli);
    if (which_find_id(cli, *word, id) < 0)
        return false;
    *word = id;
    return use_place(cli, &w);
}

int at_place_connect(struct cli *cli, struct client **ret)
{
    return cli->place_url ? cli_connect_warm(cli, ret) : cli_connect(cli, ret);
}

int at_place_enter(const struct cli *cli, const struct place *p, struct cli *ret)
{
    struct cli other = *cli;
    if (cli->here)
        other.flags = cli->given;
    other.here = NULL;
    other.stands = NULL;
    other.settings_loaded = false;
    other.settings = (struct client_settings){0};
    other.control = NULL;
    other.place_url = strdup(p->url);
    other.flags.url = other.place_url;
    other.flags.alone = true;
    other.url_given = true;
    if (!other.place_url) {
        cli_error(cli, "%s", strerror(ENOMEM));
        return -ENOMEM;
    }
    *ret = other;
    return 0;
}

void at_place_leave(struct cli *cli)
{
    client_settings_release(&cli->settings);
    free(cli->place_url);
    *cli = (struct cli){0};
}

int at_places_connect_own(struct at_places *at, struct client **ret)
{
    struct cli *cli = at->cli;
    if (!cli_load_settings(cli))
        return -EINVAL;
    if (at->own && strcmp(at->own_url, cli->settings.url) != 0)
        client_free(take_ptr(at->own));
    if (!at->own) {
        free(at->own_url);
        at->own_url = strdup(cli->settings.url);
        int r = at->own_url ? cli_connect(cli, &at->own) : -ENOMEM;
        if (r < 0)
            return r;
    }
    *ret = at->own;
    return 0;
}

int at_places_connect(struct at_places *at, struct which *w, struct client **ret)
{
    _cleanup_place_ struct place p = {0};
    int r = which_find(at->cli, w);
    if (r == 0)
        r = at_place_find(at->cli, w->key, w->by_name, &p);
    if (r < 0)
        return r;
    if (r == 0)
        return at_places_connect_own(at, ret);
    if (!is_usable(at->cli, w->key, &p))
        return -ENOENT;
    if (!at->client || strcmp(at->other.place_url, p.url) != 0) {
        if (at->client)
            client_free(take_ptr(at->client));
        at_place_leave(&at->other);
        r = at_place_enter(at->cli, &p, &at->other);
        if (r == 0)
            r = cli_connect_warm(&at->other, &at->client);
    }
    if (r == 0)
        *ret = at->client;
    return r;
}

void at_places_release(struct at_places *at)
{
    if (at->own)
        client_free(take_ptr(at->own));
    if (at->client)
        client_free(take_ptr(at->client));
    free(at->own_url);
    at_place_leave(&at->other);
}
