#include "cli/rm_provider.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/at_place.h"
#include "cli/orphans.h"
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

/* 1: it is to be destroyed; 0: nothing is, and it was said why. */
static int leave_workspace(struct cli *cli, const struct profile *profile, struct place *p,
                           const char *key, uint32_t flags, bool force)
{
    struct failure f = {0};
    bool reached, has_steps = json_array_size(json_object_get(profile->document, "destroy")) > 0;
    if (!p->url[0] || (p->state != PLACE_READY && has_steps))
        return 1;
    int r = remove_workspace(cli, p, flags, force, &reached, &f);
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

static int destroy(struct cli *cli, const struct profile *profile, struct place *p, const char *key)
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
    r = sandbox_destroy(&s, &f);
    progress_end(take_ptr(progress));
    if (r < 0)
        cli_error(cli, "%s: its sandbox (%s, %s) could not be destroyed: %s", key, p->provider,
                  p->sandbox, f.text);
    return r;
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
    if (!leave_workspace(cli, &profile, p, key, flags, force))
        return -EBUSY;
    p->state = PLACE_REMOVING;
    r = place_write(p, false, &f);
    if (r < 0) {
        cli_error(cli, "%s: %s", key, f.text);
        return r;
    }
    r = destroy(cli, &profile, p, key);
    if (r < 0)
        return r;
    int left = orphans_check(&profile, p, &f);
    if (left < 0)
        cli_error(cli, "%s: forgotten here; %s", key, f.text);
    r = place_remove(p->name, &f);
    if (r < 0 && r != -ENOENT)
        cli_error(cli, "%s: %s", key, f.text);
    return r == -ENOENT || r == 0 ? left : r;
}
