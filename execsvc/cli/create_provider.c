#include "cli/create_provider.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/at_place.h"
#include "cli/last_words.h"
#include "cli/orphans.h"
#include "cli/policy_text.h"
#include "cli/programs.h"
#include "provider/binding.h"
#include "provider/parameters.h"
#include "provider/sandbox.h"
#include "provider/step.h"
#include "terminal/progress.h"

/* What all of the IDs have in common. */
struct request {
    struct cli *cli;
    const struct create_provider *c;
    const struct create_source *source;
    const struct wire_workspace_create *create;
    struct profile profile;
    json_t *parameters;
    struct enforced enforced;
    char *berthd;
};

static void request_release(struct request *q)
{
    profile_release(&q->profile);
    json_decref(q->parameters);
    enforced_release(&q->enforced);
    free(q->berthd);
}

/* --- before anything is made --------------------------------------------------------------- */

static int complete_parameters(struct request *q, json_t *given, struct failure *f)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < q->c->option_count; i++)
        r = parameters_add(given, q->c->options[i], f);
    return r < 0 ? r : parameters_complete(&q->profile, given, &q->parameters, f);
}

static int find_berthd(struct request *q, struct failure *f)
{
    int r = program_find_static_berthd(&q->berthd);
    return r < 0 && sandbox_needs_berthd(&q->profile, false) ? failure_set(f, r, SANDBOX_NO_BERTHD)
                                                             : 0;
}

static int prepare(struct request *q)
{
    struct failure f;
    _cleanup_free_ char *name = NULL;
    json_t *given = NULL;
    int r = parameters_split(q->c->spec, &name, &given, &f);
    if (r == 0)
        r = profile_find(name, &q->profile, &f);
    if (r == 0)
        r = complete_parameters(q, given, &f);
    json_decref(given);
    if (r == 0)
        r = enforce_policy(&q->profile, q->create->policy, &q->enforced, &f);
    if (r == 0)
        r = sandbox_check_needs(&q->profile, &f);
    if (r == 0)
        r = binding_ask(&q->profile, q->parameters, &f);
    if (r == 0)
        r = find_berthd(q, &f);
    if (r < 0)
        cli_error(q->cli, "--provider %s: %s", name ? name : q->c->spec, f.text);
    return r;
}

/* --- one that is there ----------------------------------------------------------------------- */

/* As without a provider: it is left as it is, unless an option says what it is to have. */
static int use_existing(const struct request *q, const char *id, const struct place *p)
{
    const char *error;
    if (p->state != PLACE_READY)
        cli_error(q->cli,
                  "%s: the making of its sandbox has not come to an end (%s, %s, %s): `berth rm` "
                  "destroys what there is",
                  id, p->provider, p->sandbox, place_state_name(p->state));
    else if (strcmp(p->provider, profile_text(&q->profile, "name")) != 0)
        cli_error(q->cli, "%s: a workspace of this ID exists, made by the provider %s", id,
                  p->provider);
    else if (q->c->exclusive || q->create->labels.len || q->create->ttl_ms || q->create->idle_ms ||
             q->create->policy.len || create_source_given(q->source, &error))
        cli_error(q->cli, "%s: a workspace of this ID exists, and is left as it is", id);
    else
        return printf("%s\n", p->name) < 0 ? -EIO : 0;
    return -EEXIST;
}

/* --- making one --------------------------------------------------------------------------------
 */

static void json_release(json_t **object)
{
    json_decref(*object);
}

static void tell(void *progress, const char *what)
{
    progress_step(progress, what);
}

/* One that the berthd inside would refuse every command of is nothing to be left behind. Where
 * there is no sandbox to be destroyed, the workspace goes by itself. */
static int check_policy(const struct request *q, struct client *client, const char *id)
{
    struct failure f;
    struct wire_frame *reply;
    const struct wire_message asked = {.type = WIRE_EXEC_POLICY,
                                       .exec_policy.workspace = bytes_of_string(id)};
    const struct wire_message remove = {.type = WIRE_WORKSPACE_REMOVE,
                                        .workspace_remove.key = bytes_of_string(id)};
    int r = cli_call(client, &asked, &reply, &f);
    if (r < 0) {
        cli_error(q->cli, "%s: whether its policy is held cannot be seen: %s", id, f.text);
        return r;
    }
    struct bytes text = reply->message.exec_policy_reply.json;
    _cleanup_(json_release) json_t *object =
        json_loadb((const char *)text.data, text.len, JSON_REJECT_DUPLICATES, NULL);
    wire_frame_free(reply);
    const char *why = json_string_value(json_object_get(object, "refused"));
    if (object && !why)
        return 0;
    cli_error(q->cli, "%s: the berthd in the sandbox cannot hold its policy: %s", id,
              why ? why : "its answer makes no sense");
    if (cli_call(client, &remove, &reply, &f) == 0)
        wire_frame_free(reply);
    return -EOPNOTSUPP;
}

static int make_workspace(const struct request *q, const char *id, const struct place *p)
{
    const char *error;
    _cleanup_at_place_ struct cli other = {0};
    _cleanup_client_ struct client *client = NULL;
    struct wire_workspace_create create = *q->create;
    create.policy = buffer_view(&q->enforced.inside);
    int r = at_place_enter(q->cli, p, &other);
    other.silent = true;
    if (r == 0 && create_source_given(q->source, &error))
        r = create_source_run(&other, q->source, id, &create);
    else if (r == 0 && (r = cli_connect_warm(&other, &client)) == 0)
        r = create_one(&other, client, id, q->c->policy_file, &create);
    if (r == 0 && q->create->policy.len && !client)
        r = cli_connect_warm(&other, &client);
    if (r == 0 && q->create->policy.len)
        r = check_policy(q, client, id);
    if (r == 0)
        (void)printf("%s\n", p->name);
    return r;
}

static void tell_of_a_late_one(const struct request *q, const char *id, const struct place *p)
{
    if (json_object_get(q->profile.document, "list"))
        cli_error(
            q->cli,
            "%s: should it come to be made all the same, `berth provider orphans %s` finds it", id,
            p->provider);
    else
        cli_error(q->cli,
                  "%s: should it come to be made all the same, look for it (%s) with the "
                  "provider's own program",
                  id, p->sandbox);
}

/* What was made is destroyed, and forgotten once that is certain. */
static void undo(const struct request *q, const char *id, struct sandbox *s, int error)
{
    struct failure f;
    struct place *p = s->place;
    bool gone;
    const json_t *steps = json_object_get(q->profile.document, "destroy");
    if (!s->touched && !p->url[0]) {
        if (place_remove(p->name, &f) < 0)
            cli_error(q->cli, "%s: %s", id, f.text);
        return;
    }
    /* Where there is no sandbox, a workspace may have been made that nobody has told us of. */
    bool unknown = json_array_size(steps) == 0 && p->url[0] &&
                   (error == -ENOTCONN || error == -ETIMEDOUT || error == -ECONNRESET);
    int r = sandbox_destroy(s, &gone, &f);
    if (r == 0 && !unknown) {
        struct failure left;
        bool may_be_left = orphans_check(&q->profile, p, &left) < 0;
        r = place_remove(p->name, &f);
        if (may_be_left)
            cli_error(q->cli, "%s: %s", id, left.text);
        else if (r == 0 && json_array_size(steps) > 0 && !gone)
            cli_error(q->cli, "%s: what had been made of its sandbox (%s) was destroyed", id,
                      p->sandbox);
        if (!may_be_left && (error == -ETIMEDOUT || error == -EINTR))
            tell_of_a_late_one(q, id, p);
        if (r == 0 || r == -ENOENT)
            return;
    }
    if (r < 0)
        cli_error(q->cli, "%s: what had been made of its sandbox (%s) could not be destroyed: %s",
                  id, p->sandbox, f.text);
    p->state = PLACE_FAILED;
    if (place_write(p, false, &f) < 0)
        cli_error(q->cli, "%s: %s", id, f.text);
    cli_error(q->cli, "%s: something of it may be there; `berth rm` tries again", id);
}

static int make_sandbox(const struct request *q, const char *id, struct sandbox *s,
                        const char *unit)
{
    struct failure f = {0};
    const json_t *document = q->profile.document;
    size_t steps = json_array_size(json_object_get(document, "create")) +
                   json_array_size(json_object_get(document, "install"));
    _cleanup_step_signals_ int signals = -1;
    int r = step_signals_block(&signals);
    if (r < 0) {
        cli_error(q->cli, "%s", strerror(-r));
        return r;
    }
    _cleanup_progress_ struct progress *progress = progress_start(unit, steps, PROGRESS_STEPS);
    s->signal_fd = signals;
    s->context = progress;
    s->tell = tell;
    r = sandbox_create(s, &f);
    s->context = NULL;
    s->tell = NULL;
    progress_end(take_ptr(progress));
    if (r < 0) {
        cli_error(q->cli, "%s: %s: %s", id, s->place->provider, f.text);
        undo(q, id, s, r);
    }
    s->signal_fd = -1;
    return r;
}

static int make(const struct request *q, const char *id)
{
    struct failure f;
    _cleanup_close_ int lock = -1;
    _cleanup_place_ struct place p = {0};
    int r = sandbox_new_place(&q->profile, bytes_of_string(id), q->parameters, &p, &f);
    if (r == 0)
        r = place_lock(p.name, &lock, &f);
    if (r == -EAGAIN)
        (void)failure_set(&f, r, "another process is making or removing its sandbox");
    if (r == 0)
        r = place_write(&p, true, &f);
    if (r < 0) {
        cli_error(q->cli, "%s: %s", id, f.text);
        return r;
    }
    struct sandbox s = {.profile = &q->profile,
                        .place = &p,
                        .berthd = q->berthd,
                        .words = q->enforced.words,
                        .signal_fd = -1};
    r = make_sandbox(q, id, &s, id);
    if (r < 0)
        return r;
    _cleanup_last_words_ bool words =
        last_words_begin(q->cli,
                         "%s: interrupted; what has been made of its sandbox (%s) stays: `berth rm "
                         "%s` destroys it",
                         id, p.sandbox, id);
    r = make_workspace(q, id, &p);
    if (r < 0) {
        undo(q, id, &s, r);
        return r;
    }
    p.state = PLACE_READY;
    r = place_write(&p, false, &f);
    if (r < 0)
        cli_error(q->cli, "%s: %s", id, f.text);
    return r;
}

/* --- the service that is used anyway -------------------------------------------------------------
 */

static int make_here(const struct request *q, char **ids)
{
    const char *repository = json_string_value(json_object_get(q->parameters, "repository"));
    const char *ref = json_string_value(json_object_get(q->parameters, "ref")), *error;
    _cleanup_free_ char *worktree = NULL;
    _cleanup_client_ struct client *client = NULL;
    struct create_source source = *q->source;
    int r = 0;
    if (repository && *repository) {
        r = asprintf(&worktree, "%s%s%s", repository, ref && *ref ? "@" : "", ref ? ref : "");
        if (r < 0) {
            worktree = NULL;
            return CLI_FAILED;
        }
        if (source.worktree)
            return cli_usage_error(q->cli, "--worktree and the parameter repository mean the same");
        source.worktree = worktree;
    }
    bool filled = create_source_given(&source, &error);
    if (error)
        return cli_usage_error(q->cli, "%s", error);
    if (filled)
        return create_source_run(q->cli, &source, ids[0], q->create) < 0 ? CLI_FAILED : CLI_OK;
    if (cli_connect(q->cli, &client) < 0)
        return CLI_FAILED;
    int status = CLI_OK;
    for (; *ids; ids++)
        if (create_one(q->cli, client, *ids, q->c->policy_file, q->create) < 0)
            status = CLI_FAILED;
    return status;
}

int create_provider_run(struct cli *cli, const struct create_provider *c,
                        const struct create_source *source, char **ids,
                        const struct wire_workspace_create *create)
{
    _cleanup_(request_release) struct request q = {
        .cli = cli, .c = c, .source = source, .create = create};
    int status = CLI_OK;
    if (prepare(&q) < 0)
        return CLI_FAILED;
    if (profile_is_default_service(&q.profile))
        return cli_finish_output(cli, make_here(&q, ids));
    /* What reads archives begins this program anew: before there is anything. */
    struct failure f;
    if (source->from && cli_need_network(cli, &f) < 0) {
        cli_error(cli, "%s", f.text);
        return CLI_FAILED;
    }
    cli->under_way = true;
    if (cli->url_given)
        return cli_usage_error(cli, "a service was named (--url, BERTH_URL), and --provider makes "
                                    "another one for each workspace");
    for (; *ids; ids++) {
        _cleanup_place_ struct place p = {0};
        int r = at_place_find(cli, *ids, false, &p);
        r = r < 0 ? r : r > 0 ? use_existing(&q, *ids, &p) : make(&q, *ids);
        if (r < 0)
            status = CLI_FAILED;
        if (r == -EINTR)
            break;
    }
    return cli_finish_output(cli, status);
}
