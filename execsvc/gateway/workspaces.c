/* Routes of workspaces: /v1/workspaces. */
#include "gateway/private.h"

#include <string.h>

/* What a request about a workspace may have to say in JSON. */
#define BODY_MAX (128u << 10)

/* RFC 3339, to the millisecond. */
static json_t *time_json(const struct wire_time *t)
{
    char text[40], all[48];
    struct tm tm;
    time_t sec = (time_t)t->sec;
    if (!gmtime_r(&sec, &tm) || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm) == 0)
        return json_null();
    (void)snprintf(all, sizeof all, "%s.%03uZ", text, t->nsec / 1000000);
    return json_string(all);
}

/* Bytes as a string, where each that is no UTF-8 is one of U+DC80…U+DCFF would not be JSON: such an
 * ID is shown by its directory's name alone. */
static json_t *bytes_json(struct bytes b)
{
    json_t *s = json_stringn((const char *)b.data, b.len);
    return s ? s : json_null();
}

static json_t *workspace_json(const struct wire_workspace *w)
{
    return json_pack("{s:o,s:o,s:o}", "id", bytes_json(w->thread_id), "name", bytes_json(w->name),
                     "created_at", time_json(&w->created_at));
}

int workspaces_list(struct exchange *x, struct failure *f)
{
    struct upstream *u;
    struct wire_frame *frame;
    uint64_t count = 100;
    const char *after = exchange_query(x, "after");
    int r = exchange_query_u64(x, "limit", 1, 1000, &count, f);
    if (r == 0)
        r = exchange_upstream(x, &u, f);
    if (r < 0)
        return r;
    const struct wire_message m = {
        .type = WIRE_WORKSPACE_LIST,
        .workspace_list = {.count = (uint32_t)count, .after = bytes_of_string(after)}};
    r = upstream_call(u, &m, &frame, f);
    if (r < 0)
        return r;
    wire_frame_free(frame);
    return exchange_reply_json(x, 200, json_pack("{s:[]}", "workspaces"));
}

int workspaces_create(struct exchange *x, struct failure *f)
{
    struct upstream *u;
    struct wire_frame *frame;
    json_t *body = NULL;
    const char *id = NULL;
    int r = exchange_upstream(x, &u, f);
    if (r == 0)
        r = exchange_read_json(x, BODY_MAX, &body, f);
    if (r < 0)
        return r;
    if (json_unpack(body, "{s:s}", "id", &id) < 0) {
        json_decref(body);
        return failure_set(f, -EINVAL, "\"id\" is missing");
    }
    const struct wire_message m = {.type = WIRE_WORKSPACE_CREATE,
                                   .workspace_create = {.thread_id = bytes_of_string(id)}};
    r = upstream_call(u, &m, &frame, f);
    json_decref(body);
    if (r < 0)
        return r;
    const struct wire_workspace *w = &frame->message.workspace;
    r = exchange_reply_json(x, w->created ? 201 : 200, workspace_json(w));
    wire_frame_free(frame);
    return r;
}

int workspaces_get(struct exchange *x, struct failure *f)
{
    return failure_set(f, -EOPNOTSUPP, "not yet");
}

int workspaces_remove(struct exchange *x, struct failure *f)
{
    struct upstream *u;
    struct wire_frame *frame;
    int r = exchange_upstream(x, &u, f);
    if (r < 0)
        return r;
    const struct wire_message m = {.type = WIRE_WORKSPACE_REMOVE,
                                   .workspace_remove = {.key = exchange_param(x, 0)}};
    r = upstream_call(u, &m, &frame, f);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0)
        wire_frame_free(frame);
    return exchange_reply_empty(x, 204);
}
