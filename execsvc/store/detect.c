#include "store/changes.h"

#include <string.h>

#include "base/log.h"
#include "store/grip.h"
#include "store/writers.h"
#include "watch/watch.h"

/* A directory was moved by somebody else: whoever knows it goes on using it. */
static void note_place(struct store *store, const struct watch_event *event)
{
    char name[WIRE_NAME_MAX + 1];
    if (event->name.len == 0 || event->name.len > WIRE_NAME_MAX)
        return;
    memcpy(name, event->name.data, event->name.len);
    name[event->name.len] = '\0';
    _cleanup_node_ struct node *target = node_of_generation(store, event->target, NULL);
    _cleanup_node_ struct node *dir = target ? node_of_generation(store, event->dir, NULL) : NULL;
    _cleanup_grip_ struct grip grip = {.fd = -1};
    if (dir && grip_take(dir, &grip, NULL) == 0)
        node_note_place(dir, grip.fd, name);
}

static void on_event(void *context, const struct watch_event *event)
{
    struct store *store = context;
    if (event->kinds & WATCH_ALL_LOST) {
        log_warning("more changed than the kernel could report; every mount looks again");
        writers_lost(store);
        changes_note_all(store);
        return;
    }
    if ((event->kinds & WATCH_OPENED) && !event->directory)
        writers_opened(store, event->target);
    uint32_t kinds = 0;
    if (event->kinds & (WATCH_CONTENT | WATCH_CLOSED_WRITE))
        kinds |= WIRE_CHANGE_CONTENT;
    if (event->kinds & (WATCH_ATTR | WATCH_NAME))
        kinds |= WIRE_CHANGE_ATTR;
    if ((event->kinds & WATCH_NAME) && event->directory && event->dir && event->target)
        note_place(store, event);
    if (event->dir && (event->kinds & WATCH_NAME))
        (void)changes_note_file(store, event->dir, WIRE_CHANGE_NAME, event->name);
    if (event->target && kinds)
        (void)changes_note_file(store, event->target, kinds, (struct bytes){0});
}

int detect_open(struct store *store)
{
    writers_setup();
    const struct watch_events events = {.event = on_event, .context = store};
    const struct watch_options options = {.mode = WATCH_FANOTIFY, .opens = true};
    struct failure f;
    int r = watch_new(store->root_fd, &options, &events, &store->watch, &f);
    if (r < 0) {
        log_info("mounts keep nothing for long: %s", f.text);
        return r == -ENOMEM ? r : 0;
    }
    r = watch_start(store->watch);
    if (r < 0)
        return r;
    store->detects = true;
    return 0;
}

void detect_close(struct store *store)
{
    if (store->watch)
        watch_free(take_ptr(store->watch));
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
    json_t *changes = json_pack(
        "{s:s,s:I,s:I,s:I,s:I}", "mode", store->detects ? watch_mode_name(status.mode) : "none",
        "noticed", (json_int_t)status.events, "noted", (json_int_t)store_change_count(store),
        "overflows", (json_int_t)status.overflows, "behind_us",
        (json_int_t)(status.behind_ns / 1000));
    return changes && json_object_set_new(object, "changes", changes) == 0 ? 0 : -ENOMEM;
}
