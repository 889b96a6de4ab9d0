#include "keeper/place.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "confine/policy_file.h"
#include "confine/view.h"
#include "keeper/fence.h"
#include "names/thread_id.h"

/* Of a thread ID in logs. */
#define NAME_SHOWN 256

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
    json_t *fence = fence_read(directory);
    if (!fence)
        return 0;
    command_verdict_not_started(
        refusal, WIRE_STAGE_ATTEST, -EPERM,
        "the workspace is fenced: %s; `berth policy --lift` lets commands run again",
        json_string_value(json_object_get(fence, "why")));
    json_decref(fence);
    return -EPERM;
}

static struct cell_options cell_options(const struct keeper *k, struct bytes workspace,
                                        const struct place *place, const struct policy *policy,
                                        char name[NAME_SHOWN])
{
    return (struct cell_options){.root = place->tree,
                                 .policy = policy,
                                 .home = k->user.home,
                                 .name =
                                     log_escape(workspace.data, workspace.len, name, NAME_SHOWN),
                                 .directory = place->directory};
}

static int hold_cell(struct keeper *k, struct bytes workspace, struct place *place,
                     struct command_verdict *refusal)
{
    struct failure failure;
    char name[NAME_SHOWN];
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
    const struct cell_options options = cell_options(k, workspace, place, &policy, name);
    r = confinement_hold_cell(k->confinement, &options, &place->cell, &failure);
    if (r < 0)
        command_verdict_not_started(refusal, WIRE_STAGE_CONFINE, r, "%s", failure.text);
    return r;
}

static int open_place(struct keeper *k, struct bytes workspace, struct place *ret)
{
    struct place place = PLACE_NONE;
    int r = open_directory(k, workspace, &place.directory);
    if (r == 0) {
        place.tree = openat(place.directory, "tree", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        r = place.tree < 0 ? -errno : 0;
    }
    if (r < 0) {
        place_release(k, &place);
        return r;
    }
    *ret = place;
    return 0;
}

int place_find(struct keeper *k, struct bytes workspace, struct place *ret,
               struct command_verdict *refusal)
{
    struct place place = PLACE_NONE;
    int r = open_place(k, workspace, &place);
    if (r < 0)
        command_verdict_not_started(refusal, WIRE_STAGE_WORKSPACE, r, "the workspace: %s",
                                    strerror(-r));
    if (r == 0)
        r = refuse_fenced(place.directory, refusal);
    if (r == 0)
        r = hold_cell(k, workspace, &place, refusal);
    if (r < 0) {
        place_release(k, &place);
        return r;
    }
    *ret = place;
    return 0;
}

/* Its own path, which is another one in no sandbox. */
static int path_of_tree(int tree, char **ret)
{
    char link[64], path[PATH_MAX];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", tree);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return -errno;
    path[n] = 0;
    *ret = strdup(path);
    return *ret ? 0 : -ENOMEM;
}

static int choose(struct keeper *k, const struct wire_exec *exec, struct place *place,
                  struct failure *f)
{
    struct bytes path = exec->mount_path;
    if (path.len == 0 || memchr(path.data, 0, path.len))
        return failure_set(f, -EINVAL, "no path was named");
    _cleanup_free_ char *copy = strndup((const char *)path.data, path.len);
    if (!copy)
        return failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
    int r = cell_hold_view(k->confinement, place->cell, copy, &place->view, f);
    if (r == 0) {
        place->chosen = true;
        place->path = take_ptr(copy);
    }
    return r;
}

int place_choose_path(struct keeper *k, const struct wire_exec *exec, struct place *place,
                      struct command_verdict *refusal)
{
    struct failure f = {.text = ""};
    int r = exec->flags & (WIRE_EXEC_PATH | WIRE_EXEC_PATH_ONLY) ? choose(k, exec, place, &f) : 0;
    if (r == -EPERM) {
        command_verdict_not_started(refusal, WIRE_STAGE_ATTEST, r, "%s", f.text);
        place_fence(k, exec->workspace, f.text);
        return r;
    }
    if (r < 0 && (exec->flags & WIRE_EXEC_PATH_ONLY)) {
        command_verdict_not_started(refusal, WIRE_STAGE_CONFINE, r, "%s", f.text);
        return r;
    }
    (void)snprintf(place->path_text, sizeof place->path_text, "%s", f.text);
    r = place->path ? 0 : path_of_tree(place->tree, &place->path);
    if (r < 0)
        command_verdict_not_started(refusal, WIRE_STAGE_WORKSPACE, r, "the workspace: %s",
                                    strerror(-r));
    return r;
}

void place_release(struct keeper *k, struct place *place)
{
    free(take_ptr(place->path));
    if (place->view)
        view_release(take_ptr(place->view));
    if (place->cell)
        confinement_release_cell(k->confinement, take_ptr(place->cell));
    close_fd(&place->tree);
    close_fd(&place->directory);
}

void place_fence(struct keeper *k, struct bytes workspace, const char *why)
{
    _cleanup_close_ int directory = -1;
    char name[NAME_SHOWN];
    int r = open_directory(k, workspace, &directory);
    if (r == 0)
        r = fence_write(directory, why);
    (void)log_escape(workspace.data, workspace.len, name, sizeof name);
    log_error("%s is fenced: %s%s%s", name, why, r < 0 ? "; this cannot be put on record: " : "",
              r < 0 ? strerror(-r) : "");
}

int place_lift(struct keeper *k, struct bytes workspace)
{
    struct place place = PLACE_NONE;
    int r = open_place(k, workspace, &place);
    json_t *fence = r == 0 ? fence_read(place.directory) : NULL;
    if (r == 0 && !fence)
        r = -ENOENT;
    json_decref(fence);
    /* What was changed is gone with it. */
    if (r == 0)
        r = confinement_drop_cells(k->confinement, place.tree);
    if (r == 0)
        r = fence_remove(place.directory);
    place_release(k, &place);
    return r;
}

static int describe(struct keeper *k, struct bytes workspace, struct place *place, json_t *object)
{
    struct command_verdict refusal = {.text = ""};
    _cleanup_policy_ struct policy policy = {0};
    json_t *fence = fence_read(place->directory);
    int r = fence ? json_object_set(object, "fenced", json_object_get(fence, "why")) : 0;
    json_decref(fence);
    if (r < 0)
        return -ENOMEM;
    r = policy_file_read(place->directory, &policy);
    if (r < 0)
        return r;
    if (json_object_set_new(object, "asked", policy_to_json(&policy)) < 0)
        return -ENOMEM;
    r = hold_cell(k, workspace, place, &refusal);
    if (r == -ENOMEM)
        return r;
    if (r < 0)
        return json_object_set_new(object, "refused", json_string(refusal.text));
    return json_object_set_new(object, "measured", cell_measured(k->confinement, place->cell)) < 0
               ? -ENOMEM
               : 0;
}

int place_describe(struct keeper *k, struct bytes workspace, json_t *object)
{
    struct place place = PLACE_NONE;
    int r = open_place(k, workspace, &place);
    if (r == 0)
        r = describe(k, workspace, &place, object);
    place_release(k, &place);
    return r;
}

/* --- changing what is asked ------------------------------------------------------------------ */

/* Lists of hosts are the proxy's. Of all else those that run keep what they were started with. */
static bool holds_at_once(const struct policy *before, const struct policy *after,
                          const json_t *changed)
{
    size_t i;
    const json_t *name;
    bool live = before->network == POLICY_NETWORK_ALLOW && after->network != POLICY_NETWORK_HOST;
    json_array_foreach((json_t *)(uintptr_t)changed, i, name)
    {
        const char *field = json_string_value(name);
        if (strcmp(field, "require") != 0 && !(live && strcmp(field, "network") == 0))
            return false;
    }
    return true;
}

static int change(struct keeper *k, struct bytes workspace, const struct place *place,
                  struct bytes text, json_t *object, bool *ret_at_once, struct failure *f)
{
    _cleanup_policy_ struct policy before = {0};
    _cleanup_policy_ struct policy after = {0};
    struct cell *fresh = NULL;
    char name[NAME_SHOWN];
    int r = policy_file_read(place->directory, &before);
    if (r < 0)
        return failure_set(f, r, "the workspace's " POLICY_FILE ": %s", strerror(-r));
    r = policy_parse(text, &before, &after, f);
    if (r < 0)
        return r;
    json_t *changed = policy_differences(&before, &after);
    if (!changed || json_object_set(object, "changed", changed) < 0 ||
        json_object_set_new(object, "asked", policy_to_json(&after)) < 0)
        r = failure_set(f, -ENOMEM, "%s", strerror(ENOMEM));
    bool at_once = r == 0 && holds_at_once(&before, &after, changed);
    json_decref(changed);
    const struct cell_options options = cell_options(k, workspace, place, &after, name);
    if (r == 0)
        r = confinement_prepare_change(k->confinement, &options, &before, &fresh, f);
    if (r < 0)
        return r;
    r = policy_file_write(place->directory, &after);
    if (r < 0) {
        confinement_forget_change(k->confinement, &fresh);
        return failure_set(f, r, "the workspace's " POLICY_FILE ": %s", strerror(-r));
    }
    confinement_change(k->confinement, place->tree, &after, &fresh);
    log_info("%s: its policy was changed", options.name);
    *ret_at_once = at_once;
    return 0;
}

int place_change(struct keeper *k, struct bytes workspace, struct bytes policy, json_t *object,
                 bool *ret_at_once, struct failure *ret_failure)
{
    struct place place = PLACE_NONE;
    int r = open_place(k, workspace, &place);
    r = r < 0 ? failure_set(ret_failure, r, "%s", r == -ENOENT ? "no such workspace" : strerror(-r))
              : change(k, workspace, &place, policy, object, ret_at_once, ret_failure);
    place_release(k, &place);
    return r;
}
