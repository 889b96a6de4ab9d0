#include "cli/which.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/here.h"
#include "places/place.h"

/* Nothing is meant of the default service where we may stand in a mount of another: only who stands
 * outside of mounts for certain, or in one of several services and changes nothing. */
static bool is_clear(const struct cli *cli, int error)
{
    return error == 0 || error == -ENOENT || (error == -ENOTUNIQ && !cli->command->changes);
}

static int unclear(const struct cli *cli, int error, const char *why)
{
    if (error == -ENOTUNIQ || error == -EPERM)
        cli_error(cli, "%s; or go elsewhere (cd)", why);
    else
        cli_error(cli, "%s: go elsewhere (cd), or name a service (--service, --url)", why);
    return error;
}

static void keep(struct cli *cli, struct here *found)
{
    if (cli->stands) {
        here_release(cli->stands);
        free(cli->stands);
    }
    cli->stands = found;
}

/* What the mount says of where we stand, or (name) of that name in it. It is the cli's. */
static int look(struct cli *cli, const struct which *named, struct failure *f)
{
    struct here *found = calloc(1, sizeof *found);
    if (!found)
        return failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
    int r =
        named ? here_find_member(named->key, named->by_name, found, f) : here_find(NULL, found, f);
    if (r < 0) {
        free(found);
        return r;
    }
    found->named = named;
    cli_use_here(cli, found);
    keep(cli, found);
    return 0;
}

/* What an earlier word led to is not where we stand. */
static int stand(struct cli *cli, struct failure *f)
{
    if (cli->here && cli->here->named)
        cli_leave_here(cli);
    return cli->here ? 0 : look(cli, NULL, f);
}

bool which_service(struct cli *cli)
{
    struct failure f = {0};
    int r = cli->url_given ? 0 : stand(cli, &f);
    if (!is_clear(cli, r))
        return unclear(cli, r, f.text) == 0;
    if (r == -ENOTUNIQ)
        cli_error(cli, "%s; this is of the default service", f.text);
    return true;
}

static int no_workspace(const struct cli *cli, const char *why)
{
    (void)cli_usage_error(cli, "which workspace? %s", why);
    return -EINVAL;
}

/* The one in which we stand, of which a service that was named knows the name alone. */
static int own_name(struct cli *cli, struct which *w)
{
    struct failure f;
    struct here *found = calloc(1, sizeof *found);
    int r = found ? here_find(NULL, found, &f) : failure_set(&f, -ENOMEM, "no memory");
    if (r == -ENOENT && w->key) {
        free(found);
        return 0;
    }
    if (r < 0) {
        free(found);
        return no_workspace(cli, f.text);
    }
    keep(cli, found);
    if (!found->workspace)
        return no_workspace(cli, "in the root of a mount none is stood in");
    if (!cli_load_settings(cli))
        return -EINVAL;
    if (cli->command->changes && strcmp(cli->settings.url, found->url) != 0) {
        cli_error(cli,
                  "the workspace in which you stand is at %s, and the service that is named "
                  "(--url, --service, BERTH_URL, BERTH_SERVICE) is %s: name the workspace",
                  found->url, cli->settings.url);
        return -ENOTUNIQ;
    }
    *w = (struct which){.key = found->workspace, .by_name = found->by_name};
    return 0;
}

/* Of several services, one of which is meant only if that is said. */
static int refuse(const struct cli *cli, const struct which *w)
{
    const struct here *here = cli->here;
    const char *name = cli->command->name;
    if (here->member && strcmp(here->member, here->workspace) != 0)
        cli_error(cli,
                  "%s shows the workspaces of several services, and %s there is one of %s: say "
                  "which, berth %s … %s@%s",
                  here->mountpoint, w->key, here->member, name, here->workspace, here->member);
    else
        cli_error(cli,
                  "%s shows the workspaces of several services, and %s there is one of a "
                  "provider: go into it, and say berth %s … .",
                  here->mountpoint, w->key, name);
    return -ENOTUNIQ;
}

/* A place may have it that this mount does not show. */
static bool has_place(const struct which *w)
{
    _cleanup_place_ struct place p = {0};
    char name[THREAD_NAME_MAX + 1];
    struct failure f;
    if (w->by_name)
        return strlen(w->key) < sizeof name && place_read(w->key, &p, &f) == 0;
    return thread_id_to_name(bytes_of_string(w->key), name) == 0 && place_read(name, &p, &f) == 0;
}

/* What a mount of several services shows. 1: it is not said of which, or it is in a place. */
static int shown(struct cli *cli, struct which *w)
{
    struct failure f;
    int r = look(cli, w, &f);
    if (r == -ENXIO || (r == -ENODATA && !cli->command->changes && has_place(w)))
        return 1;
    if (r < 0) {
        cli_error(cli, "%s", f.text);
        return r;
    }
    if (cli->command->changes && !cli->here->qualified)
        return refuse(cli, w);
    *w = (struct which){.key = cli->here->workspace, .by_name = true};
    return 0;
}

int which_check_new(const struct cli *cli, const char *id)
{
    if (!cli->here || !cli->here->member || !here_names_member(id))
        return 0;
    const char *service = strrchr(id, '@') + 1;
    cli_error(cli,
              "%s: it would be made at the service of the workspace in which you stand, %s, under "
              "a thread ID "
              "with an @; to make one at %s, name that: berth --service %s create ID",
              id, cli->here->member, service, service);
    return -EINVAL;
}

int which_find(struct cli *cli, struct which *w)
{
    struct failure f = {0};
    bool own = !w->is_new && (!w->key || (!w->by_name && strcmp(w->key, ".") == 0));
    if (cli->url_given)
        return own ? own_name(cli, w) : 0;
    int r = stand(cli, &f);
    if (own && r == 0 && cli->here->workspace) {
        *w = (struct which){.key = cli->here->workspace, .by_name = cli->here->by_name};
        return 0;
    }
    if (own && (r != -ENOENT || !w->key))
        return no_workspace(cli, r < 0 ? f.text : "in the root of a mount none is stood in");
    bool several = r == -ENOTUNIQ || (r == 0 && cli->here->member && strchr(w->key, '@'));
    if (several && !w->is_new) {
        int found = shown(cli, w);
        if (found <= 0)
            return found;
    }
    if (!is_clear(cli, r))
        return unclear(cli, r, f.text);
    return w->is_new ? which_check_new(cli, w->key) : 0;
}

int which_find_id(struct cli *cli, const char *word, char ret_id[static WHICH_ID_SIZE])
{
    struct which w = {.key = word};
    int r = which_find(cli, &w);
    if (r < 0)
        return r;
    if (w.by_name) {
        r = thread_id_from_name(bytes_of_string(w.key), (uint8_t *)ret_id);
        if (r < 0)
            cli_error(cli, "%s: its name is a shortened one; name it by its thread ID", w.key);
        else
            ret_id[r] = '\0';
        return r < 0 ? r : 0;
    }
    (void)snprintf(ret_id, WHICH_ID_SIZE, "%s", w.key);
    return 0;
}
