/* The route of changes: /v1/workspaces/{id}/watch/{path}. */
#include <string.h>

#include "gateway/files.h"
#include "gateway/observer.h"
#include "gateway/routes.h"

/* As of commands. */
#define ALIVE_MS 10000
#define STREAM_TYPE "application/x-ndjson"

/* Takes value. */
static int write_line(struct exchange *x, json_t *value, struct failure *f)
{
    _cleanup_free_ char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    int r = text ? exchange_write(x, text, strlen(text)) : -ENOMEM;
    if (r == 0)
        r = exchange_write(x, "\n", 1);
    if (r == 0)
        r = exchange_flush(x);
    return r < 0 ? failure_set(f, r, "%s", strerror(-r)) : 0;
}

static json_t *event_json(const struct observer_event *e)
{
    json_t *o = json_pack("{s:s}", "event", observer_kind_name(e->kind));
    int r = o ? 0 : -ENOMEM;
    if (r == 0 && e->kind != OBSERVER_RESYNC)
        r = files_set_bytes(o, "path", e->path);
    if (r == 0 && e->kind != OBSERVER_RESYNC)
        r = json_object_set_new(o, "type", json_string(files_type_name(e->type)));
    if (r == 0 && e->kind == OBSERVER_RENAMED)
        r = files_set_bytes(o, "from", e->from);
    if (r == 0)
        return o;
    json_decref(o);
    return NULL;
}

static int tell_all(struct exchange *x, struct observer *w, struct failure *f)
{
    int r = write_line(
        x, json_pack("{s:s,s:b}", "event", "watching", "complete", (int)observer_is_complete(w)),
        f);
    while (r == 0) {
        struct observer_event event;
        r = observer_next(w, ALIVE_MS, &event, f);
        if (r == -EAGAIN)
            r = write_line(x, json_pack("{s:s}", "event", "alive"), f);
        else if (r == 0)
            r = write_line(x, event_json(&event), f);
    }
    return r;
}

int changes_watch(struct exchange *x, struct failure *f)
{
    _cleanup_tree_ struct tree *t = NULL;
    _cleanup_place_ struct place p = {0};
    _cleanup_observer_ struct observer *w = NULL;
    bool recursive;
    int r = files_query_flag(x, "recursive", &recursive, f);
    if (r == 0)
        r = files_open(x, &t, f);
    if (r == 0)
        r = files_place(x, t, PATH_FOLLOW, &p, f);
    if (r == 0 && exchange_is_head(x))
        return exchange_begin(x, 200, STREAM_TYPE, EXCHANGE_STREAM);
    if (r == 0)
        r = observer_open(t, &p, recursive, &w, f);
    if (r == 0)
        r = exchange_begin(x, 200, STREAM_TYPE, EXCHANGE_STREAM);
    if (r < 0)
        return r;
    r = tell_all(x, w, f);
    /* What was watched is gone, of which the last line tells: a proper end. */
    return r == -ENOENT ? 0 : r;
}
