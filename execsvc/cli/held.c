#include "cli/held.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/at_place.h"
#include "cli/exec_find.h"
#include "cli/text.h"

struct visit {
    const struct cli *cli;
    held_each_fn *each;
    void *context;
    size_t left;
};

static int connect_held(const struct cli *cli, const struct place *p, struct cli *other,
                        struct client **ret)
{
    struct failure f;
    int r = at_place_enter(cli, p, other);
    if (r < 0)
        return r;
    other->passive = true;
    r = client_settings_load(&other->flags, &other->settings, &f);
    other->settings_loaded = r == 0;
    return r < 0 ? r : cli_reach_warm(other, ret, &f);
}

static int visit(void *context, struct place *p)
{
    struct visit *v = context;
    _cleanup_at_place_ struct cli other = {0};
    _cleanup_client_ struct client *client = NULL;
    /* Whoever names workspaces here does so by a string. */
    if (p->state != PLACE_READY || !p->url[0] || memchr(p->id.data, 0, p->id.len))
        return 0;
    if (connect_held(v->cli, p, &other, &client) < 0) {
        v->left++;
        return 0;
    }
    _cleanup_free_ char *workspace = text_copy(buffer_view(&p->id));
    return workspace ? v->each(v->context, &other, client, workspace) : -ENOMEM;
}

int held_each(const struct cli *cli, held_each_fn *each, void *context, size_t *ret_left)
{
    struct visit v = {.cli = cli, .each = each, .context = context};
    struct failure f;
    int r = cli->url_given || cli->here ? 0 : places_list(visit, &v, &f);
    *ret_left = v.left;
    /* -ECANCELED: it has what it wanted. */
    if (r < 0 && r != -ECANCELED)
        cli_error(cli, "%s", f.text);
    return r;
}

static int count(void *context, struct place *p)
{
    (*(size_t *)context)++;
    return 0;
}

int held_connect_own(struct cli *cli, bool warm, struct client **ret)
{
    struct failure f, ignored;
    size_t places = 0;
    *ret = NULL;
    if (!cli_load_settings(cli))
        return -EINVAL;
    int r = warm ? cli_reach_warm(cli, ret, &f) : cli_connect_alone(cli, ret, &f);
    if (r < 0 && cli->settings.url_default && !cli->here)
        (void)places_list(count, &places, &ignored);
    if (r < 0 && places > 0)
        return 0;
    if (r < 0)
        cli_error(cli, "%s", f.text);
    return r;
}

struct search {
    const char *id;
    char *workspace;
};

static int found(void *context, const struct wire_exec_command *command)
{
    *(bool *)context = true;
    return 0;
}

static int look(void *context, struct cli *cli, struct client *client, const char *workspace)
{
    struct search *s = context;
    struct failure f;
    bool is_there = false;
    if (exec_each(client, workspace, s->id, found, &is_there, &f) < 0 || !is_there)
        return 0;
    s->workspace = strdup(workspace);
    return s->workspace ? -ECANCELED : -ENOMEM;
}

int held_find_command(const struct cli *cli, const char *id, struct place *ret, size_t *ret_left)
{
    struct search s = {.id = id};
    int r = held_each(cli, look, &s, ret_left);
    if (r == -ECANCELED)
        r = at_place_find(cli, s.workspace, false, ret);
    free(s.workspace);
    return r;
}
