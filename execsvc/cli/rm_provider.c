#include "cli/rm_provider.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/at_place.h"
#include "cli/orphans.h"
#include "provider/binding.h"
#include "provider/sandbox.h"
#include "provider/step.h"
#include "terminal/progress.h"

/* One that does not answer is destroyed nonetheless. */
#define CONNECT_TIMEOUT_MS 20000

static void tell(void *progress, const char *what)
{
    progress_step(progress, what);
}

/* Asks the service in the sandbox. *ret_reached: it was there to be asked. */
static int remove_workspace(struct cli *cli, const struct place *p, uint32_t flags, bool force,
                            bool *ret_reached, struct failure *f)
{
    _cleanup_at_place_ struct cli other = {0};
    _cleanup_client_ struct client *client = NULL;
    struct wire_frame *reply;
    const struct wire_message request = {
        .type = WIRE_WORKSPACE_REMOVE,
        .workspace_remove = {.flags = force ? WIRE_WORKSPACE_FORCE : 0,
                             .key = buffer_view(&p->id)}};
    *ret_reached = false;
    int r = at_place_enter(cli, p, &other);
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    other.flags.connect_timeout_ms = CONNECT_TIMEOUT_MS;
    if (!cli_load_settings(&other))
        return failure_set(f, -EINVAL, "its settings cannot be read");
    r = cli_reach_warm(&other, &client, f);
    if (r < 0)
        return r;
    *ret_reached = true;
    r = cli_call(client, &request, &reply, f);
    if (r == 0)
        wire_frame_free(reply);
    if (r == -ENOTCONN || r == -ETIMEDOUT)
        *ret_reached = false;
    return r == -ENOENT ? 0 : r;
}

/* 1: it is to be destroyed; 0: nothing is, and it was said why. *ret_answered: the service in it
 * did, so that it is there. */
static int leave_workspace(struct cli *cli, const struct profile *profile, struct place *p,
                           const char *key, uint32_t flags, bool force, bool *ret_answered)
{
    struct failure f = {0};
    bool reached, has_steps = json_array_size(json_object_get(profile->document, "destroy")) > 0;
    *ret_answered = false;
    if (!p->url[0] || (p->state != PLACE_READY && has_steps))
        return 1;
    int r = remove_workspace(cli, p, flags, force, &reached, &f);
    *ret_answered = reached;
    if (r == 0)
        return 1;
    /* A service that refuses is obeyed; one that is gone needs nothing more. */
    if (reached) {
        cli_error(cli, "%s: %s", key, f.text);
        return 0;
    }
    if (has_steps)
        return 1;
    if (!force) {
        cli_error(cli,
                  "%s: the service of its sandbox does not answer: %s; --force forgets it, and "
                  "leaves the workspace there",
                  key, f.text);
        return 0;
    }
    cli_error(cli, "%s: forgotten; its files may still be there: %s", key, f.text);
    return 1;
}

/* Some say nothing when what they are to remove is not there. */
static bool is_gone(struct sandbox *s)
{
    struct failure f;
    const char *state = NULL;
    char words[200];
    return sandbox_status(s, &state, words, &f) == 0 && state && strcmp(state, "gone") == 0;
}

/* *ret_gone: it was gone. answered: it was there. */
static int destroy(struct cli *cli, const struct profile *profile, struct place *p, const char *key,
                   bool answered, bool *ret_gone)
{
    struct failure f;
    _cleanup_step_signals_ int signals = -1;
    int r = step_signals_block(&signals);
    if (r < 0) {
        cli_error(cli, "%s", strerror(-r));
        return r;
    }
    _cleanup_progress_ struct progress *progress = progress_start(
        key, json_array_size(json_object_get(profile->document, "destroy")), PROGRESS_STEPS);
    struct sandbox s = {
        .profile = profile, .place = p, .signal_fd = signals, .tell = tell, .context = progress};
    bool gone = !answered && p->url[0] && is_gone(&s);
    r = sandbox_destroy(&s, ret_gone, &f);
    *ret_gone = *ret_gone || gone;
    progress_end(take_ptr(progress));
    if (r < 0)
        cli_error(cli, "%s: its sandbox (%s, %s) could not be destroyed: %s", key, p->provider,
                  p->sandbox, f.text);
    return r;
}

/* One that was made, and of which its provider knows nothing: that may be since another engine or
 * account was asked. -EUCLEAN: so it seems, and it stays in the list. */
static int tell_gone(struct cli *cli, const struct profile *profile, const struct place *p,
                     const char *key)
{
    const char *changed = binding_changed_secret(p);
    _cleanup_free_ char *where = binding_describe(profile, p);
    const char *asked = where && *where ? where : NULL;
    if (changed) {
        cli_error(cli,
                  "%s: the provider %s has no sandbox %s, but %s is not what it was made with, and "
                  "may be another account's: set that, or take the workspace off the list with "
                  "`berth rm --forget`",
                  key, p->provider, p->sandbox, changed);
        return -EUCLEAN;
    }
    cli_error(cli, "%s: the provider %s has no sandbox %s any more%s%s%s: forgotten here", key,
              p->provider, p->sandbox, asked ? " (asked with " : "", asked ? asked : "",
              asked ? ")" : "");
    return 0;
}

static int take_lock(struct cli *cli, const struct place *p, const char *key, int *ret_lock)
{
    struct failure f;
    int r = place_lock(p->name, ret_lock, &f);
    if (r == -EAGAIN)
        cli_error(cli, "%s: another process is making or removing its sandbox", key);
    else if (r < 0)
        cli_error(cli, "%s: %s", key, f.text);
    return r;
}

int rm_provider_forget(struct cli *cli, const struct place *p, const char *key)
{
    struct failure f;
    _cleanup_close_ int lock = -1;
    _cleanup_profile_ struct profile profile = {0};
    int r = take_lock(cli, p, key, &lock);
    if (r < 0)
        return r;
    r = place_remove(p->name, &f);
    if (r < 0) {
        cli_error(cli, "%s: %s", key, f.text);
        return r;
    }
    bool lists =
        profile_find(p->provider, &profile, &f) == 0 && json_object_get(profile.document, "list");
    cli_error(
        cli, "%s: forgotten; its sandbox (%s, %s), or what was begun of it, may live on: %s%s%s",
        key, p->provider, p->sandbox,
        lists ? "see `berth provider orphans " : "look for it with the provider's own program",
        lists ? p->provider : "", lists ? "`" : "");
    return 0;
}

int rm_provider_run(struct cli *cli, struct place *p, const char *key, uint32_t flags, bool force)
{
    struct failure f;
    _cleanup_close_ int lock = -1;
    _cleanup_profile_ struct profile profile = {0};
    int r = take_lock(cli, p, key, &lock);
    if (r < 0)
        return r;
    r = profile_find(p->provider, &profile, &f);
    if (r < 0) {
        cli_error(cli, "%s: its sandbox cannot be destroyed: %s", key, f.text);
        return r;
    }
    bool answered, gone, was_made = p->url[0];
    enum place_state before = p->state;
    if (!leave_workspace(cli, &profile, p, key, flags, force, &answered))
        return -EBUSY;
    p->state = PLACE_REMOVING;
    r = place_write(p, false, &f);
    if (r < 0) {
        cli_error(cli, "%s: %s", key, f.text);
        return r;
    }
    r = destroy(cli, &profile, p, key, answered, &gone);
    if (r < 0)
        return r;
    if (gone && (was_made || binding_changed_secret(p)) && tell_gone(cli, &profile, p, key) < 0) {
        p->state = before;
        if (place_write(p, false, &f) < 0)
            cli_error(cli, "%s: %s", key, f.text);
        return -EUCLEAN;
    }
    int left = orphans_check(&profile, p, &f);
    if (left < 0)
        cli_error(cli, "%s: forgotten here; %s", key, f.text);
    r = place_remove(p->name, &f);
    if (r < 0 && r != -ENOENT)
        cli_error(cli, "%s: %s", key, f.text);
    return r == -ENOENT || r == 0 ? left : r;
}
