#include "store/detect.h"

#include <fcntl.h>
#include <string.h>

#include "base/log.h"
#include "store/changes.h"
#include "store/grip.h"
#include "store/writers.h"

/* --- events -------------------------------------------------------------------------- */

static uint32_t kinds_of(const struct watch_event *event)
{
    uint32_t kinds = 0;
    if (event->kinds & (WATCH_CONTENT | WATCH_CLOSED_WRITE))
        kinds |= WIRE_CHANGE_CONTENT;
    if (event->kinds & (WATCH_ATTR | WATCH_NAME))
        kinds |= WIRE_CHANGE_ATTR;
    return kinds;
}

static bool copy_name(struct bytes name, char ret[WIRE_NAME_MAX + 1])
{
    if (name.len == 0 || name.len > WIRE_NAME_MAX)
        return false;
    memcpy(ret, name.data, name.len);
    ret[name.len] = '\0';
    return true;
}

/* A directory was moved by somebody else: whoever knows it goes on using it. */
static void note_place(struct store *store, const struct watch_event *event)
{
    char name[WIRE_NAME_MAX + 1];
    if (!copy_name(event->name, name))
        return;
    _cleanup_node_ struct node *target = node_of_generation(store, event->target, NULL);
    /* inotify does not tell what has the name. */
    if (!target && event->target)
        return;
    _cleanup_node_ struct node *dir = node_of_generation(store, event->dir, NULL);
    _cleanup_grip_ struct grip grip = {.fd = -1};
    if (dir && grip_take(dir, &grip, NULL) == 0)
        node_note_place(dir, grip.fd, name);
}

static bool note_opened(struct store *store, uint64_t generation)
{
    struct node *node = NULL;
    bool known = false;
    while ((node = node_of_generation(store, generation, node))) {
        writers_opened(node);
        known = true;
    }
    return known;
}

/* The kernel has dropped the watch, because the file is gone. */
static void note_unwatched(struct store *store, uint64_t generation)
{
    struct node *node = NULL;
    while ((node = node_of_generation(store, generation, node))) {
        store_lock(store);
        detect_forget_locked(node);
        store_unlock(store);
        changes_note(store, NULL, node, WIRE_CHANGE_CONTENT, (struct bytes){0});
    }
}

/* Whether it is of a node. */
static bool on_file(struct store *store, const struct watch_event *event)
{
    uint32_t kinds = kinds_of(event);
    bool known = false;
    if ((event->kinds & WATCH_OPENED) && !event->directory)
        known = note_opened(store, event->target);
    if (event->kinds & WATCH_UNWATCHED)
        note_unwatched(store, event->target);
    if ((event->kinds & WATCH_NAME) && event->directory && event->dir)
        note_place(store, event);
    if (event->dir && (event->kinds & WATCH_NAME))
        known |= changes_note_file(store, event->dir, WIRE_CHANGE_NAME, event->name);
    if (event->target && kinds)
        known |= changes_note_file(store, event->target, kinds, (struct bytes){0});
    return known;
}

static bool on_event(void *context, const struct watch_event *event)
{
    struct store *store = context;
    if (event->kinds & WATCH_ALL_LOST) {
        log_warning("more changed than the kernel could report; every mount looks again");
        writers_lost(store);
        changes_note_all(store);
        return true;
    }
    return on_file(store, event);
}

/* --- watched files ----------------------------------------------------------------------- */

static int open_same(struct node *node, int at_fd, const char *at_name)
{
    struct statx stx;
    uint64_t generation;
    _cleanup_close_ int fd = openat(at_fd, at_name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || grip_statx_fd(fd, &stx) < 0 || !node_matches(node, &stx) ||
        node_generation(node->workspace, fd, "", &stx, &generation) < 0 ||
        generation != node->generation)
        return -ESTALE;
    return take_fd(&fd);
}

bool detect_watch(struct node *node, int at_fd, const char *at_name)
{
    struct workspace *workspace = node->workspace;
    struct store *store = workspace->store;
    bool directory = node->type == S_IFDIR;
    if (!store->by_file || !changes_cover(node) || atomic_load(&workspace->handles_missing))
        return false;
    store_lock(store);
    bool watched = node->watched;
    store_unlock(store);
    if (watched || !watch_room(store->watch, directory))
        return false;
    _cleanup_close_ int fd = *at_name ? open_same(node, at_fd, at_name) : -1;
    if (*at_name && fd < 0)
        return false;
    if (watch_file(store->watch, *at_name ? fd : at_fd, directory, node->generation) < 0)
        return false;
    store_lock(store);
    watched = node->watched;
    node->watched = true;
    store_unlock(store);
    if (watched)
        watch_forget(store->watch, node->generation);
    return !watched;
}

bool detect_covers(struct node *node)
{
    struct store *store = node->workspace->store;
    if (!store->by_file)
        return changes_cover(node);
    store_lock(store);
    bool covers = store->detects && node->watched;
    store_unlock(store);
    return covers;
}

void detect_forget_locked(struct node *node)
{
    if (!node->watched)
        return;
    node->watched = false;
    watch_forget(node->workspace->store->watch, node->generation);
}

/* --- all ------------------------------------------------------------------------------ */

int detect_open(struct store *store, enum watch_mode mode, struct failure *ret_failure)
{
    const struct watch_events events = {.event = on_event, .context = store};
    const struct watch_options options = {
        .mode = mode, .opens = true, .bounded_queue = true, .files = true};
    struct failure f;
    if (mode == WATCH_NONE)
        return 0;
    writers_setup();
    int r = watch_new(store->root_fd, &options, &events, &store->watch, &f);
    if (r < 0 && (r == -ENOMEM || mode != WATCH_AUTO))
        return failure_set(ret_failure, r, "cannot watch for changes: %s", f.text);
    if (r < 0) {
        log_info("mounts keep nothing for long: %s", f.text);
        return 0;
    }
    store->by_file = watch_mode(store->watch) == WATCH_INOTIFY;
    return 0;
}

int detect_begin(struct store *store, struct failure *ret_failure)
{
    int r = store->watch ? watch_start(store->watch) : 0;
    if (r < 0)
        return failure_set(ret_failure, r, "cannot watch for changes: %s", strerror(-r));
    store->detects = store->watch != NULL;
    return 0;
}

void detect_close(struct store *store)
{
    /* Until it has ended, its thread may let go of nodes, which are then watched no more. */
    if (store->watch)
        watch_free(store->watch);
    store->watch = NULL;
}

bool store_detects(const struct store *store)
{
    return store->detects;
}

int store_detect(struct store *store)
{
    if (!store->watch)
        return 0;
    int r = watch_drain(store->watch);
    if (r < 0 && store->detects) {
        log_error("changes are not noticed any more: %s", strerror(-r));
        store->detects = false;
    }
    return r;
}

int detect_status(struct store *store, json_t *object)
{
    struct watch_status status = {0};
    if (store->watch)
        watch_status(store->watch, &status);
    store_lock(store);
    json_int_t written = (json_int_t)store->written.count;
    store_unlock(store);
    json_t *changes = json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "mode",
        store->detects ? watch_mode_name(status.mode) : "none", "noticed",
        (json_int_t)status.events, "noted", (json_int_t)store_change_count(store), "overflows",
        (json_int_t)status.overflows, "behind_us", (json_int_t)(status.behind_ns / 1000), "written",
        written, "watches", (json_int_t)status.directories, "watches_max",
        (json_int_t)(status.limit < INT64_MAX ? status.limit : 0), "watches_refused",
        (json_int_t)status.refused);
    return changes && json_object_set_new(object, "changes", changes) == 0 ? 0 : -ENOMEM;
}
