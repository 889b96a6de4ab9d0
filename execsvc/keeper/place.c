#include "keeper/place.h"

#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "confine/policy_file.h"
#include "names/thread_id.h"
#include "store/json_file.h"

/* In the workspace's directory: why no command is started there, and since when. */
#define FENCE_FILE "fence.json"

/* By names that are ours alone: no link is followed. */
static int open_directory(const struct keeper *k, struct bytes workspace, int *ret)
{
    char name[THREAD_NAME_MAX + 1];
    int r = thread_id_to_name(workspace, name);
    if (r < 0)
        return r;
    int fd = openat(k->workspaces, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    *ret = fd;
    return 0;
}

static int refuse_fenced(int directory, struct command_verdict *refusal)
{
    json_t *fence = NULL;
    if (faccessat(directory, FENCE_FILE, F_OK, 0) < 0 && errno == ENOENT)
        return 0;
    const char *why = NULL;
    if (json_file_read(directory, FENCE_FILE, &fence) == 0)
        why = json_string_value(json_object_get(fence, "why"));
    command_verdict_not_started(
        refusal, WIRE_STAGE_ATTEST, -EPERM,
        "the workspace is fenced: %s; `berth policy --lift` lets commands run again",
        why ? why : "nobody knows why");
    json_decref(fence);
    return -EPERM;
}

static int hold_cell(struct keeper *k, struct place *place, struct command_verdict *refusal)
{
    struct failure failure;
    int r = confinement_find_cell(k->confinement, place->tree, &place->cell);
    if (r != -ENOENT)
        return r;
    _cleanup_policy_ struct policy policy = {0};
    r = policy_file_read(place->directory, &policy);
    if (r < 0) {
        command_verdict_not_started(refusal, WIRE_STAGE_CONFINE, r,
                                    "the workspace's " POLICY_FILE ": %s", strerror(-r));
        return r;
    }
    const struct cell_options options = {.root = place->tree,
                                         .policy = &policy,
                                         .home = k->user.home,
                                         .directory = place->directory};
    r = confinement_hold_cell(k->confinement, &options, &place->cell, &failure);
    if (r < 0)
        command_verdict_not_started(refusal, WIRE_STAGE_CONFINE, r, "%s", failure.text);
    return r;
}

int place_find(struct keeper *k, struct bytes workspace, struct place *ret,
               struct command_verdict *refusal)
{
    struct place place = PLACE_NONE;
    int r = open_directory(k, workspace, &place.directory);
    if (r == 0) {
        place.tree = openat(place.directory, "tree", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        r = place.tree < 0 ? -errno : 0;
    }
    if (r < 0)
        command_verdict_not_started(refusal, WIRE_STAGE_WORKSPACE, r, "the workspace: %s",
                                    strerror(-r));
    if (r == 0)
        r = refuse_fenced(place.directory, refusal);
    if (r == 0)
        r = hold_cell(k, &place, refusal);
    if (r < 0) {
        place_release(k, &place);
        return r;
    }
    *ret = place;
    return 0;
}

void place_release(struct keeper *k, struct place *place)
{
    if (place->cell)
        confinement_release_cell(k->confinement, take_ptr(place->cell));
    close_fd(&place->tree);
    close_fd(&place->directory);
}

void place_fence(struct keeper *k, struct bytes workspace, const char *why)
{
    _cleanup_close_ int directory = -1;
    char name[128];
    json_t *fence = json_pack("{s:s}", "why", why);
    int r = open_directory(k, workspace, &directory);
    if (r == 0)
        r = fence ? json_file_write(directory, FENCE_FILE, fence) : -ENOMEM;
    json_decref(fence);
    (void)log_escape(workspace.data, workspace.len, name, sizeof name);
    log_error("%s is fenced: %s%s%s", name, why, r < 0 ? "; this cannot be put on record: " : "",
              r < 0 ? strerror(-r) : "");
}
