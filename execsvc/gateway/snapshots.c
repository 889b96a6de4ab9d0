/* Routes of snapshots. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gateway/documents.h"
#include "gateway/routes.h"

#define BODY_MAX (64u << 10)
#define PAGE_DEFAULT 100
#define PAGE_MAX 1000

static int call(struct exchange *x, const struct wire_message *m, struct wire_frame **ret,
                struct failure *f)
{
    struct upstream *u;
    int r = exchange_upstream(x, &u, f);
    return r < 0 ? r : upstream_call(u, m, ret, f);
}

static int reply_list(struct exchange *x, const struct wire_snapshots *page, struct failure *f)
{
    json_t *items = json_array();
    struct bytes element, last = {0};
    uint32_t offset = 0;
    struct wire_message m;
    while (wire_list_next(&page->items, &offset, &element)) {
        if (wire_decode(WIRE_SNAPSHOT, element, &m) < 0) {
            json_decref(items);
            return failure_set(f, -EPROTO, "the service's answer makes no sense");
        }
        (void)json_array_append_new(items, document_of_snapshot(&m.snapshot));
        last = m.snapshot.id;
    }
    char next[WIRE_SNAPSHOT_ID_MAX + 1];
    (void)snprintf(next, sizeof next, "%.*s", (int)last.len, (const char *)last.data);
    return exchange_reply_json(x, 200, document_page("snapshots", items, page->more, next));
}

static int list(struct exchange *x, struct wire_message *m, struct failure *f)
{
    struct wire_frame *frame;
    const char *after = exchange_query(x, "after");
    uint64_t limit = PAGE_DEFAULT;
    m->type = WIRE_SNAPSHOT_LIST;
    int r = exchange_query_u64(x, "limit", 1, PAGE_MAX, &limit, f);
    if (r == 0 && after && strlen(after) > WIRE_SNAPSHOT_ID_MAX)
        r = failure_set(f, -EINVAL, "after is the \"next\" of a page");
    m->snapshot_list.count = (uint32_t)limit;
    m->snapshot_list.after = bytes_of_string(after);
    if (r == 0)
        r = call(x, m, &frame, f);
    if (r < 0)
        return r;
    r = reply_list(x, &frame->message.snapshots, f);
    wire_frame_free(frame);
    return r;
}

int snapshots_list(struct exchange *x, struct failure *f)
{
    struct wire_message m = {0};
    return list(x, &m, f);
}

int snapshots_list_of(struct exchange *x, struct failure *f)
{
    struct wire_message m = {0};
    int r = document_key(x, &m.snapshot_list.workspace, &m.snapshot_list.workspace_flags, f);
    return r < 0 ? r : list(x, &m, f);
}

static int create(struct exchange *x, const json_t *body, struct failure *f)
{
    static const char *const names[] = {"id", "labels", "live", NULL};
    _cleanup_free_ char *labels = NULL;
    struct wire_frame *frame;
    struct wire_message m = {.type = WIRE_SNAPSHOT_CREATE};
    struct wire_snapshot_create *s = &m.snapshot_create;
    const char *id = NULL;
    bool live = false;
    int r = document_key(x, &s->workspace, &s->workspace_flags, f);
    if (r == 0)
        r = document_check(body, names, f);
    if (r == 0)
        r = document_string(body, "id", &id, f);
    if (r == 0 && id && (!*id || strlen(id) > WIRE_SNAPSHOT_ID_MAX))
        r = failure_set(f, -EINVAL, "\"id\" is a string of 1 to %d bytes", WIRE_SNAPSHOT_ID_MAX);
    if (r == 0)
        r = document_bool(body, "live", &live, f);
    if (r == 0)
        r = document_labels(body, false, &labels, f);
    s->id = bytes_of_string(id);
    s->labels = bytes_of_string(labels);
    s->flags = live ? WIRE_SNAPSHOT_LIVE : 0;
    if (r == 0)
        r = call(x, &m, &frame, f);
    if (r < 0)
        return r;
    r = exchange_reply_json(x, 201, document_of_snapshot(&frame->message.snapshot));
    wire_frame_free(frame);
    return r;
}

int snapshots_create(struct exchange *x, struct failure *f)
{
    json_t *body;
    int r = exchange_read_json(x, BODY_MAX, &body, f);
    if (r < 0)
        return r;
    r = create(x, body, f);
    json_decref(body);
    return r;
}

/* One that is not there is as it was to be. */
int snapshots_remove(struct exchange *x, struct failure *f)
{
    struct wire_frame *frame;
    const struct wire_message m = {.type = WIRE_SNAPSHOT_REMOVE,
                                   .snapshot_remove.id = exchange_param(x, 0)};
    if (m.snapshot_remove.id.len > WIRE_SNAPSHOT_ID_MAX)
        return failure_set(f, -ENAMETOOLONG, "an ID is at most %d bytes", WIRE_SNAPSHOT_ID_MAX);
    int r = call(x, &m, &frame, f);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0)
        wire_frame_free(frame);
    return exchange_reply_empty(x, 204);
}

static int restore(struct exchange *x, const json_t *body, struct failure *f)
{
    static const char *const names[] = {"snapshot", NULL};
    struct wire_frame *frame;
    struct wire_message m = {.type = WIRE_WORKSPACE_RESTORE};
    struct wire_workspace_restore *w = &m.workspace_restore;
    const char *id = NULL;
    int r = document_key(x, &w->workspace, &w->workspace_flags, f);
    if (r == 0)
        r = document_check(body, names, f);
    if (r == 0)
        r = document_string(body, "snapshot", &id, f);
    if (r == 0 && (!id || !*id || strlen(id) > WIRE_SNAPSHOT_ID_MAX))
        r = failure_set(f, -EINVAL, "\"snapshot\" is the ID of one");
    w->snapshot = bytes_of_string(id);
    if (r == 0)
        r = call(x, &m, &frame, f);
    if (r < 0)
        return r;
    r = exchange_reply_json(x, 200, document_of_workspace(&frame->message.workspace));
    wire_frame_free(frame);
    return r;
}

int snapshots_restore(struct exchange *x, struct failure *f)
{
    json_t *body;
    int r = exchange_read_json(x, BODY_MAX, &body, f);
    if (r < 0)
        return r;
    r = restore(x, body, f);
    json_decref(body);
    return r;
}
