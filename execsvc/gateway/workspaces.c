/* Routes of workspaces: /v1/workspaces, and what commands may do there. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gateway/archives.h"
#include "gateway/conditions.h"
#include "gateway/documents.h"
#include "gateway/files.h"
#include "gateway/routes.h"

/* What a request has to say in JSON: labels, a policy, and some. */
#define BODY_MAX (64u << 10)

#define PAGE_DEFAULT 100
#define PAGE_MAX 1000

/* --- answers --------------------------------------------------------------------------------- */

/* What If-Match of a change is compared with. */
static void revision_tag(const struct wire_workspace *w, char ret[32])
{
    (void)snprintf(ret, 32, "\"%llu\"", (unsigned long long)w->revision);
}

static int add_etag(struct exchange *x, const struct wire_workspace *w)
{
    char tag[32];
    revision_tag(w, tag);
    return exchange_add_field(x, "ETag", "%s", tag);
}

/* Takes the frame of a WORKSPACE. */
static int reply_workspace(struct exchange *x, int status, struct wire_frame *frame,
                           const char *only)
{
    const struct wire_workspace *w = &frame->message.workspace;
    json_t *document = document_of_workspace(w);
    int r = add_etag(x, w);
    if (document && w->ended > 0)
        (void)json_object_set_new(document, "ended", json_integer(w->ended));
    if (document && only) {
        json_t *part = json_incref(json_object_get(document, only));
        json_decref(document);
        document = part;
    }
    wire_frame_free(frame);
    if (r == 0)
        return exchange_reply_json(x, status, document);
    json_decref(document);
    return r;
}

static int call(struct exchange *x, const struct wire_message *m, struct wire_frame **ret,
                struct failure *f)
{
    struct upstream *u;
    int r = exchange_upstream(x, &u, f);
    if (r == 0)
        r = upstream_call(u, m, ret, f);
    return r == -ENOENT && strcmp(f->text, strerror(ENOENT)) == 0
               ? failure_set(f, r, "there is no such workspace")
               : r;
}

/* --- list, get ------------------------------------------------------------------------------- */

static int state_of(const char *word, uint32_t *ret, struct failure *f)
{
    if (strcmp(word, "running") == 0)
        *ret = WIRE_WORKSPACE_RUNNING;
    else if (strcmp(word, "stopped") == 0)
        *ret = WIRE_WORKSPACE_STOPPED;
    else
        return failure_set(f, -EINVAL, "state is running or stopped");
    return 0;
}

static int selectors_of(struct exchange *x, struct buffer *list, uint32_t *ret_count,
                        struct failure *f)
{
    const char *label;
    uint32_t n = 0;
    for (; (label = exchange_query_nth(x, "label", n)); n++) {
        if (n == WIRE_SELECTORS_MAX)
            return failure_set(f, -EINVAL, "more than %d labels to select by", WIRE_SELECTORS_MAX);
        if (wire_list_append(list, bytes_of_string(label)) < 0)
            return failure_set(f, -ENOMEM, "out of memory");
    }
    *ret_count = n;
    return 0;
}

static int reply_list(struct exchange *x, const struct wire_workspaces *page, struct failure *f)
{
    json_t *items = json_array();
    struct bytes element, last = {0};
    uint32_t offset = 0;
    struct wire_message m;
    while (wire_list_next(&page->items, &offset, &element)) {
        if (wire_decode(WIRE_WORKSPACE, element, &m) < 0) {
            json_decref(items);
            return failure_set(f, -EPROTO, "the service's answer makes no sense");
        }
        (void)json_array_append_new(items, document_of_workspace(&m.workspace));
        last = m.workspace.name;
    }
    char next[WIRE_NAME_MAX + 1];
    (void)snprintf(next, sizeof next, "%.*s", (int)last.len, (const char *)last.data);
    return exchange_reply_json(x, 200, document_page("workspaces", items, page->more, next));
}

int workspaces_list(struct exchange *x, struct failure *f)
{
    _cleanup_buffer_ struct buffer selectors = {0};
    struct wire_frame *frame;
    const char *state = exchange_query(x, "state");
    const char *after = exchange_query(x, "after");
    uint64_t limit = PAGE_DEFAULT;
    uint32_t count = 0;
    struct wire_message m = {.type = WIRE_WORKSPACE_LIST};
    int r = exchange_query_u64(x, "limit", 1, PAGE_MAX, &limit, f);
    if (r == 0 && state)
        r = state_of(state, &m.workspace_list.state, f);
    if (r == 0 && after && strlen(after) > WIRE_NAME_MAX)
        r = failure_set(f, -EINVAL, "after is the \"next\" of a page");
    if (r == 0)
        r = selectors_of(x, &selectors, &count, f);
    if (r < 0)
        return r;
    m.workspace_list.count = (uint32_t)limit;
    m.workspace_list.after = bytes_of_string(after);
    m.workspace_list.selectors = wire_list_of(&selectors, count);
    r = call(x, &m, &frame, f);
    if (r < 0)
        return r;
    r = reply_list(x, &frame->message.workspaces, f);
    wire_frame_free(frame);
    return r;
}

static int get(struct exchange *x, const char *only, struct failure *f)
{
    struct wire_frame *frame;
    struct wire_message m = {.type = WIRE_WORKSPACE_GET};
    const char *match = NULL, *none = NULL;
    char tag[32];
    int r = document_key(x, &m.workspace_get.key, &m.workspace_get.flags, f);
    if (r == 0)
        r = exchange_tags(x, "if-match", &match, f);
    if (r == 0)
        r = exchange_tags(x, "if-none-match", &none, f);
    if (r == 0)
        r = call(x, &m, &frame, f);
    if (r < 0)
        return r;
    revision_tag(&frame->message.workspace, tag);
    bool other = match && !conditions_tag_listed(match, tag, true);
    if (!other && !(none && conditions_tag_listed(none, tag, false)))
        return reply_workspace(x, 200, frame, only);
    r = other ? 0 : add_etag(x, &frame->message.workspace);
    wire_frame_free(frame);
    return r < 0   ? r
           : other ? exchange_refuse(x, 412, "the workspace's revision is %s", tag)
                   : exchange_reply_empty(x, 304);
}

int workspaces_get(struct exchange *x, struct failure *f)
{
    return get(x, NULL, f);
}

int workspaces_get_labels(struct exchange *x, struct failure *f)
{
    return get(x, "labels", f);
}

/* --- create ---------------------------------------------------------------------------------- */

/* {"snapshot": ID} or {"workspace": ID, "live": …} */
static int source_of(const json_t *body, struct wire_workspace_create *c, struct failure *f)
{
    static const char *const names[] = {"snapshot", "workspace", "live", NULL};
    const json_t *source = json_object_get(body, "source");
    const char *snapshot = NULL, *workspace = NULL;
    bool live = false;
    if (!source)
        return 0;
    if (!json_is_object(source))
        return failure_set(f, -EINVAL, "\"source\" is an object");
    int r = document_check(source, names, f);
    if (r == 0)
        r = document_string(source, "snapshot", &snapshot, f);
    if (r == 0)
        r = document_string(source, "workspace", &workspace, f);
    if (r == 0)
        r = document_bool(source, "live", &live, f);
    if (r == 0 && (!snapshot == !workspace || (snapshot && live)))
        r = failure_set(f, -EINVAL, "\"source\" has a \"snapshot\" or a \"workspace\"");
    c->source = bytes_of_string(snapshot ? snapshot : workspace);
    c->flags |= snapshot ? WIRE_WORKSPACE_FROM_SNAPSHOT : WIRE_WORKSPACE_FROM_WORKSPACE;
    c->flags |= live ? WIRE_WORKSPACE_LIVE : 0;
    return r;
}

/* archive: the request's body is one. */
static int create_from(struct exchange *x, const json_t *body, bool archive, struct failure *f)
{
    static const char *const names[] = {"id",     "labels", "ttl",       "idle_ttl",
                                        "policy", "source", "exclusive", NULL};
    _cleanup_free_ char *labels = NULL;
    _cleanup_free_ char *policy = NULL;
    struct wire_frame *frame;
    struct wire_message m = {.type = WIRE_WORKSPACE_CREATE};
    struct wire_workspace_create *c = &m.workspace_create;
    const json_t *asked = json_object_get(body, "policy");
    const char *id = NULL;
    bool exclusive = false, given;
    int r = document_check(body, names, f);
    if (r == 0)
        r = document_string(body, "id", &id, f);
    if (r == 0 && (!id || !*id || strlen(id) > WIRE_THREAD_ID_MAX))
        r = failure_set(f, -EINVAL, "\"id\" is a string of 1 to %d bytes", WIRE_THREAD_ID_MAX);
    if (r == 0)
        r = document_bool(body, "exclusive", &exclusive, f);
    if (r == 0)
        r = document_life(body, "ttl", &given, &c->ttl_ms, f);
    if (r == 0)
        r = document_life(body, "idle_ttl", &given, &c->idle_ms, f);
    if (r == 0)
        r = document_labels(body, false, &labels, f);
    if (r == 0)
        r = source_of(body, c, f);
    if (r == 0 && asked && !(policy = json_dumps(asked, JSON_COMPACT | JSON_ENCODE_ANY)))
        r = failure_set(f, -ENOMEM, "out of memory");
    if (r == 0 && policy && strlen(policy) > WIRE_POLICY_MAX)
        r = failure_set(f, -EMSGSIZE, "the policy is larger than %d bytes", WIRE_POLICY_MAX);
    if (r < 0)
        return r;
    c->flags |= exclusive ? WIRE_WORKSPACE_EXCLUSIVE : 0;
    c->thread_id = bytes_of_string(id);
    c->labels = bytes_of_string(labels);
    c->policy = bytes_of_string(policy);
    c->flags |= archive ? WIRE_WORKSPACE_FROM_STREAM : 0;
    r = archive ? archives_import(x, &m, &frame, f) : call(x, &m, &frame, f);
    if (r == -EEXIST && archive && !exclusive) {
        const struct wire_message found = {.type = WIRE_WORKSPACE_GET,
                                           .workspace_get.key = c->thread_id};
        r = call(x, &found, &frame, f);
    }
    if (r < 0)
        return r;
    return reply_workspace(x, frame->message.workspace.created ? 201 : 200, frame, NULL);
}

/* As JSON would say it; what is not to be read as that stays text, for which it is refused. */
static json_t *query_number(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    return value ? value : json_string(text);
}

static int query_labels(struct exchange *x, json_t *labels, struct failure *f)
{
    const char *value;
    for (size_t n = 0; (value = exchange_query_nth(x, "label", n)); n++) {
        size_t len = strcspn(value, "=");
        _cleanup_free_ char *key = strndup(value, len);
        if (!key)
            return failure_set(f, -ENOMEM, "out of memory");
        if (json_object_set_new(labels, key, json_string(value[len] ? value + len + 1 : "")) < 0)
            return failure_set(f, -EINVAL, "label is KEY=VALUE, in UTF-8");
    }
    return 0;
}

/* What else than the body has to say, which is an archive: the query. */
static int query_document(struct exchange *x, json_t *all, struct failure *f)
{
    static const char *const numbers[] = {"ttl", "idle_ttl"};
    json_t *labels = json_object();
    bool exclusive;
    const char *value;
    (void)json_object_set_new(all, "labels", labels);
    if ((value = exchange_query(x, "id")))
        (void)json_object_set_new(all, "id", document_of_bytes(bytes_of_string(value)));
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        if ((value = exchange_query(x, numbers[i])) &&
            json_object_set_new(all, numbers[i], query_number(value)) < 0)
            return failure_set(f, -EINVAL, "%s is a number of seconds", numbers[i]);
    int r = files_query_flag(x, "exclusive", &exclusive, f);
    (void)json_object_set_new(all, "exclusive", json_boolean(exclusive));
    return r < 0 ? r : query_labels(x, labels, f);
}

static int create_from_archive(struct exchange *x, struct failure *f)
{
    json_t *document = json_object();
    int r = document ? query_document(x, document, f) : failure_set(f, -ENOMEM, "out of memory");
    if (r == 0)
        r = create_from(x, document, true, f);
    json_decref(document);
    return r;
}

int workspaces_create(struct exchange *x, struct failure *f)
{
    json_t *body;
    if (archives_is_one(x))
        return create_from_archive(x, f);
    const char *type = exchange_field(x, "content-type");
    if (type && !strcasestr(type, "json"))
        return exchange_refuse(x, 415,
                               "application/json is taken here, and archives: application/x-tar, "
                               "application/zstd, application/gzip");
    int r = exchange_read_json(x, BODY_MAX, &body, f);
    if (r < 0)
        return r;
    r = create_from(x, body, false, f);
    json_decref(body);
    return r;
}

/* --- change ---------------------------------------------------------------------------------- */

/* The revision that there is, if the conditions hold of it: that one alone is changed then. */
static int revision_of(struct exchange *x, const struct wire_workspace_set *s, uint64_t *ret,
                       struct failure *f)
{
    const struct wire_message m = {.type = WIRE_WORKSPACE_GET,
                                   .workspace_get = {.key = s->key, .flags = s->flags}};
    struct wire_frame *frame;
    const char *match = NULL, *none = NULL;
    char tag[32];
    int r = exchange_tags(x, "if-match", &match, f);
    if (r == 0)
        r = exchange_tags(x, "if-none-match", &none, f);
    if (r < 0 || (!match && !none))
        return r;
    r = call(x, &m, &frame, f);
    if (r < 0)
        return r;
    revision_tag(&frame->message.workspace, tag);
    bool any = match && strcmp(match, "*") == 0;
    *ret = any && !none ? 0 : frame->message.workspace.revision;
    wire_frame_free(frame);
    if ((match && !conditions_tag_listed(match, tag, true)) ||
        (none && conditions_tag_listed(none, tag, false)))
        return exchange_refuse(x, 412, "the workspace's revision is %s", tag);
    return 0;
}

static int set(struct exchange *x, struct wire_message *m, const char *only, struct failure *f)
{
    struct wire_workspace_set *s = &m->workspace_set;
    struct wire_frame *frame;
    m->type = WIRE_WORKSPACE_SET;
    int r = document_key(x, &s->key, &s->flags, f);
    if (r == 0)
        r = revision_of(x, s, &s->revision, f);
    if (r == 0)
        r = call(x, m, &frame, f);
    return r < 0 ? r : reply_workspace(x, 200, frame, only);
}

/* RFC 7396: labels that are null go, those that are not named stay. */
static int change(struct exchange *x, const json_t *body, struct failure *f)
{
    static const char *const names[] = {"labels", "ttl", "idle_ttl", "state", NULL};
    _cleanup_free_ char *labels = NULL;
    struct wire_message m = {0};
    struct wire_workspace_set *s = &m.workspace_set;
    const char *state = NULL;
    bool ttl = false, idle = false;
    int r = document_check(body, names, f);
    if (r == 0)
        r = document_life(body, "ttl", &ttl, &s->ttl_ms, f);
    if (r == 0)
        r = document_life(body, "idle_ttl", &idle, &s->idle_ms, f);
    if (r == 0)
        r = document_labels(body, true, &labels, f);
    if (r == 0)
        r = document_string(body, "state", &state, f);
    if (r == 0 && state)
        r = state_of(state, &s->state, f);
    if (r < 0)
        return r;
    s->labels = bytes_of_string(labels);
    s->valid = (labels ? WIRE_WORKSPACE_SET_MERGE : 0) | (ttl ? WIRE_WORKSPACE_SET_TTL : 0) |
               (idle ? WIRE_WORKSPACE_SET_IDLE : 0) | (state ? WIRE_WORKSPACE_SET_STATE : 0);
    if (s->valid == 0)
        return failure_set(f, -EINVAL, "nothing is to be changed");
    return set(x, &m, NULL, f);
}

int workspaces_change(struct exchange *x, struct failure *f)
{
    json_t *body;
    int r = exchange_read_json(x, BODY_MAX, &body, f);
    if (r < 0)
        return r;
    r = change(x, body, f);
    json_decref(body);
    return r;
}

int workspaces_put_labels(struct exchange *x, struct failure *f)
{
    _cleanup_free_ char *labels = NULL;
    struct wire_message m = {.workspace_set = {.valid = WIRE_WORKSPACE_SET_LABELS}};
    json_t *body;
    int r = exchange_read_json(x, BODY_MAX, &body, f);
    if (r < 0)
        return r;
    json_t *wrapped = json_pack("{s:o}", "labels", body);
    r = wrapped ? document_labels(wrapped, false, &labels, f)
                : failure_set(f, -ENOMEM, "out of memory");
    json_decref(wrapped);
    m.workspace_set.labels = bytes_of_string(labels);
    return r < 0 ? r : set(x, &m, "labels", f);
}

static int set_state(struct exchange *x, enum wire_workspace_state state, struct failure *f)
{
    struct wire_message m = {
        .workspace_set = {.valid = WIRE_WORKSPACE_SET_STATE, .state = (uint32_t)state}};
    return set(x, &m, NULL, f);
}

int workspaces_stop(struct exchange *x, struct failure *f)
{
    return set_state(x, WIRE_WORKSPACE_STOPPED, f);
}

int workspaces_start(struct exchange *x, struct failure *f)
{
    return set_state(x, WIRE_WORKSPACE_RUNNING, f);
}

/* One that is not there is as it was to be. */
int workspaces_remove(struct exchange *x, struct failure *f)
{
    struct wire_frame *frame;
    struct wire_message m = {.type = WIRE_WORKSPACE_REMOVE};
    uint64_t force = 0;
    int r = document_key(x, &m.workspace_remove.key, &m.workspace_remove.flags, f);
    if (r == 0)
        r = exchange_query_u64(x, "force", 0, 1, &force, f);
    m.workspace_remove.flags |= force ? WIRE_WORKSPACE_FORCE : 0;
    if (r == 0)
        r = call(x, &m, &frame, f);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0)
        wire_frame_free(frame);
    return exchange_reply_empty(x, 204);
}

/* --- policy ---------------------------------------------------------------------------------- */

/* Takes the frame. */
static int reply_policy(struct exchange *x, struct wire_frame *frame)
{
    const struct bytes json = frame->message.exec_policy_reply.json;
    int r = exchange_reply(x, 200, "application/json", json.data, json.len);
    wire_frame_free(frame);
    return r;
}

int workspaces_get_policy(struct exchange *x, struct failure *f)
{
    struct wire_frame *frame;
    struct wire_message m = {.type = WIRE_EXEC_POLICY};
    int r = document_key(x, &m.exec_policy.workspace, &m.exec_policy.workspace_flags, f);
    if (r == 0)
        r = call(x, &m, &frame, f);
    return r < 0 ? r : reply_policy(x, frame);
}

int workspaces_change_policy(struct exchange *x, struct failure *f)
{
    struct wire_frame *frame;
    _cleanup_free_ char *text = NULL;
    json_t *body;
    struct wire_message m = {.type = WIRE_EXEC_POLICY_SET};
    int r = document_key(x, &m.exec_policy_set.workspace, &m.exec_policy_set.workspace_flags, f);
    if (r == 0)
        r = exchange_read_json(x, WIRE_POLICY_MAX, &body, f);
    if (r < 0)
        return r;
    text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (!text)
        return failure_set(f, -ENOMEM, "out of memory");
    m.exec_policy_set.policy = bytes_of_string(text);
    r = call(x, &m, &frame, f);
    return r < 0 ? r : reply_policy(x, frame);
}

int workspaces_lift_fence(struct exchange *x, struct failure *f)
{
    struct wire_frame *frame;
    struct wire_message m = {.type = WIRE_EXEC_LIFT};
    int r = document_key(x, &m.exec_lift.workspace, &m.exec_lift.workspace_flags, f);
    if (r == 0)
        r = call(x, &m, &frame, f);
    if (r < 0)
        return r;
    wire_frame_free(frame);
    return exchange_reply_empty(x, 204);
}
