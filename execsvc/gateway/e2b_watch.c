/* filesystem.Filesystem/WatchDir. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "gateway/e2b_request.h"
#include "gateway/observer.h"
#include "gateway/routes.h"

#define KEEPALIVE_DEFAULT_S 50

struct watch {
    struct e2b_stream_out out;
    struct tree *tree;         /* that is watched */
    struct upstream *upstream; /* NULL, or: by which entries are looked at, */
    struct tree *looks;        /* in this */
    struct observer *observer;
    struct place place;
    bool entries;
    int keepalive_ms;
};

static void watch_release(struct watch *w)
{
    observer_close(w->observer);
    path_release(&w->place);
    tree_close(w->looks);
    upstream_free(w->upstream);
    tree_close(w->tree);
    e2b_stream_release(&w->out);
}
#define _cleanup_watch_ _cleanup_(watch_release)

/* From the directory that is watched, not the workspace. */
static struct bytes name_in(const struct watch *w, struct bytes path)
{
    size_t skip = w->place.path.len ? w->place.path.len + 1 : 0;
    return path.len > skip ? bytes_of(path.data + skip, path.len - skip) : path;
}

static json_t *entry_of(struct watch *w, struct bytes path)
{
    _cleanup_place_ struct place p = {0};
    struct failure ignored;
    return path_walk(w->looks, path, 0, &p, &ignored) == 0 ? e2b_entry_at(w->looks, &p, &ignored)
                                                           : NULL;
}

static int send_event(struct watch *w, const char *type, struct bytes path, bool there)
{
    json_t *event = json_pack("{s:o,s:s}", "name", e2b_string(name_in(w, path)), "type", type);
    json_t *entry = event && w->entries && there ? entry_of(w, path) : NULL;
    if (entry)
        (void)json_object_set_new(event, "entry", entry);
    json_t *all = json_pack("{s:o}", "filesystem", event);
    _cleanup_free_ char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    int r = text ? buffer_append(&w->out.json, text, strlen(text)) : -ENOMEM;
    return r < 0 ? r : e2b_send(&w->out, 0);
}

/* As inotify tells it: a file with content was created and written; one with another name was
 * renamed, and the other name was created. */
static int tell(struct watch *w, const struct observer_event *e, struct failure *f)
{
    int r = 0;
    switch (e->kind) {
    case OBSERVER_CREATED:
        r = send_event(w, "EVENT_TYPE_CREATE", e->path, true);
        return r < 0 || !S_ISREG(e->type) ? r : send_event(w, "EVENT_TYPE_WRITE", e->path, true);
    case OBSERVER_REMOVED:
        return send_event(w, "EVENT_TYPE_REMOVE", e->path, false);
    case OBSERVER_MODIFIED:
        /* Of a directory it is told by what is in it. */
        return S_ISDIR(e->type) ? 0 : send_event(w, "EVENT_TYPE_WRITE", e->path, true);
    case OBSERVER_ATTRIBUTES:
        return send_event(w, "EVENT_TYPE_CHMOD", e->path, true);
    case OBSERVER_RENAMED:
        r = send_event(w, "EVENT_TYPE_RENAME", e->from, false);
        return r < 0 ? r : send_event(w, "EVENT_TYPE_CREATE", e->path, true);
    case OBSERVER_RESYNC:
        break;
    }
    /* The dialect has no word for it, and to say nothing would be a lie. */
    return failure_set(f, -EAGAIN, "changes were lost: look at the directory, and watch it again");
}

static int follow(struct watch *w, struct failure *f)
{
    struct observer_event event;
    bool quiet = true;
    for (;;) {
        int r = observer_next(w->observer, quiet ? w->keepalive_ms : 0, &event, f);
        if (r == 0) {
            r = tell(w, &event, f);
            quiet = false;
        } else if (r == -EAGAIN && quiet) {
            r = buffer_printf(&w->out.json, "{\"keepalive\":{}}");
            if (r == 0)
                r = e2b_send(&w->out, 0);
            if (r == 0)
                r = exchange_flush(w->out.x);
        } else if (r == -EAGAIN) {
            r = exchange_flush(w->out.x);
            quiet = true;
        }
        if (r < 0)
            return r;
    }
}

static int open_watch(struct watch *w, struct failure *f)
{
    json_t *body = NULL;
    const char *name;
    struct bytes path;
    bool recursive = false;
    uint64_t seconds = 0;
    const char *pace = exchange_field(w->out.x, "keepalive-ping-interval");
    if (connect_timeout_ms(pace, &seconds) < 0 || seconds == 0 || seconds > 3600)
        seconds = KEEPALIVE_DEFAULT_S;
    w->keepalive_ms = (int)seconds * 1000;
    int r = e2b_read(w->out.x, true, &body, f);
    if (r == 0)
        r = e2b_text(body, "path", &name, f);
    if (r == 0)
        r = e2b_take_path(name, false, &path, f);
    if (r == 0)
        r = e2b_flag(body, "recursive", &recursive, f);
    if (r == 0)
        r = e2b_flag(body, "includeEntry", &w->entries, f);
    if (r == 0)
        r = e2b_open_tree(w->out.x, &w->tree, f);
    if (r == 0)
        r = path_walk(w->tree, path, PATH_FOLLOW, &w->place, f);
    if (r == 0 && !S_ISDIR(w->place.attr.mode))
        r = failure_set(f, -ENOTDIR, "the path is not a directory");
    if (r == 0 && w->entries)
        r = exchange_new_upstream(w->out.x, &w->upstream, f);
    if (r == 0 && w->entries)
        r = tree_open(w->upstream, e2b_workspace(w->out.x), 0, &w->looks, f);
    if (r == 0)
        r = observer_open(w->tree, &w->place, recursive, &w->observer, f);
    json_decref(body);
    return r;
}

int e2b_filesystem_watch_dir(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_watch_ struct watch w = {.out.x = x};
    int r = open_watch(&w, ret_failure);
    if (r == 0)
        r = exchange_begin(x, 200, CONNECT_STREAM_TYPE, EXCHANGE_STREAM);
    if (r == 0)
        r = buffer_printf(&w.out.json, "{\"start\":{}}");
    if (r == 0)
        r = e2b_send(&w.out, 0);
    if (r == 0)
        r = exchange_flush(x);
    if (r == 0)
        r = follow(&w, ret_failure);
    return r == -ECONNABORTED || !exchange_has_begun(x)
               ? r
               : e2b_end(&w.out, r, *ret_failure->text ? ret_failure->text : strerror(-r));
}

/* A watcher that is asked now and then would have to outlive connections. */
int e2b_filesystem_no_watcher(struct exchange *x, struct failure *ret_failure)
{
    return failure_set(ret_failure, -EOPNOTSUPP,
                       "there are no watchers that are polled: use WatchDir, a stream");
}
