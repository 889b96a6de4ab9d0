/* E2B's control plane, as far as it fits: a sandbox is a workspace, by its thread ID; its metadata
 * are labels; its end is a TTL; a paused one is stopped, and its processes are gone; a template is
 * nothing, or a snapshot. */
#include "gateway/e2b_request.h"
#include "gateway/routes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "gateway/problem.h"

/* The thread ID that a client wishes for its new sandbox: metadata, which becomes no label. */
#define THREAD_ID_WISH "berth.thread_id"

/* Which template it was made from, if that was not the default. */
#define TEMPLATE_LABEL "e2b.template"

#define TEMPLATE_DEFAULT "base"

/* Sandboxes of one answer. */
#define PAGE_DEFAULT 100

#define FORKS_MAX 16

/* What E2B gives one that is not told for how long it is to be. */
#define TIMEOUT_DEFAULT_MS 300000

/* A year: more than any client means. */
#define TIMEOUT_MAX_S (366 * 86400)

/* Lower case alone, so that an ID can be in a host name. */
#define NEW_ID_LETTERS 20

/* --- answers ---------------------------------------------------------------------------------- */

/* The token of a workspace, or NULL: this caller's credential makes none. */
static int token_of(struct upstream *u, struct bytes workspace, struct wire_frame **ret,
                    struct failure *f)
{
    const struct wire_message m = {.type = WIRE_ACCESS, .access = {.thread_id = workspace}};
    int r = upstream_call(u, &m, ret, f);
    return r == -EACCES || r == -EOPNOTSUPP ? 0 : r;
}

/* What create and connect are answered. NULL with a failure. */
static json_t *session_json(struct upstream *u, const struct wire_workspace *w, struct failure *f)
{
    struct wire_frame *frame = NULL;
    if (token_of(u, w->thread_id, &frame, f) < 0)
        return NULL;
    json_t *json =
        json_pack("{s:o,s:s,s:s,s:s}", "sandboxID", e2b_string(w->thread_id), "templateID",
                  TEMPLATE_DEFAULT, "clientID", "berth", "envdVersion", E2B_VERSION);
    struct bytes token = frame ? frame->message.access_reply.token : (struct bytes){0};
    if (json && token.len > 0)
        (void)json_object_set_new(json, "envdAccessToken",
                                  json_stringn((const char *)token.data, token.len));
    if (frame)
        wire_frame_free(frame);
    if (!json)
        (void)failure_set(f, -ENOMEM, "out of memory");
    return json;
}

static json_t *labels_of(const struct wire_workspace *w)
{
    json_t *labels = json_loadb((const char *)w->labels.data, w->labels.len, 0, NULL);
    return labels ? labels : json_object();
}

/* One in a list, or what is told of one. */
static json_t *info_json(const struct wire_workspace *w)
{
    /* Something has to be there; a workspace without a TTL ends in a hundred years. */
    const struct wire_time never = {.sec = w->created_at.sec + 100LL * 366 * 86400};
    json_t *metadata = labels_of(w);
    const char *template = json_string_value(json_object_get(metadata, TEMPLATE_LABEL));
    json_t *json = json_pack(
        "{s:o,s:s,s:s,s:o,s:o,s:s,s:i,s:i,s:i,s:s,s:[]}", "sandboxID", e2b_string(w->thread_id),
        "templateID", template ? template : TEMPLATE_DEFAULT, "clientID", "berth", "startedAt",
        e2b_time(&w->created_at), "endAt", e2b_time(w->expires_at.sec ? &w->expires_at : &never),
        "state", w->state == WIRE_WORKSPACE_STOPPED ? "paused" : "running", "cpuCount", 0,
        "memoryMB", 0, "diskSizeMB", 0, "envdVersion", E2B_VERSION, "volumeMounts");
    (void)json_object_del(metadata, E2B_ENVIRONMENT_LABEL);
    (void)json_object_del(metadata, TEMPLATE_LABEL);
    (void)json_object_del(metadata, E2B_SANDBOX_LABEL);
    if (!json || json_object_set_new(json, "metadata", metadata) < 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

/* Whether it was made by this dialect. */
static bool is_ours(const struct wire_workspace *w)
{
    json_t *labels = labels_of(w);
    bool ours = json_object_get(labels, E2B_SANDBOX_LABEL);
    json_decref(labels);
    return ours;
}

/* --- requests --------------------------------------------------------------------------------- */

/* Seconds, of which 0 are at once and not never; *ret_ms untouched when they are not there. */
static int read_timeout(const json_t *body, uint64_t *ret_ms, struct failure *f)
{
    uint64_t seconds = UINT64_MAX;
    int r = e2b_number(body, "timeout", TIMEOUT_MAX_S, &seconds, f);
    if (r == 0 && seconds != UINT64_MAX)
        *ret_ms = seconds ? seconds * 1000 : 1;
    return r;
}

static int get(struct upstream *u, struct bytes id, struct wire_frame **ret, struct failure *f)
{
    const struct wire_message m = {.type = WIRE_WORKSPACE_GET, .workspace_get = {.key = id}};
    return upstream_call(u, &m, ret, f);
}

static int set(struct upstream *u, struct bytes id, uint32_t valid, uint32_t state, uint64_t ttl_ms,
               struct wire_frame **ret, struct failure *f)
{
    const struct wire_message m = {
        .type = WIRE_WORKSPACE_SET,
        .workspace_set = {.valid = valid, .state = state, .ttl_ms = ttl_ms, .key = id}};
    return upstream_call(u, &m, ret, f);
}

/* The workspace whose ID is in the path, the caller's connection, and the body. */
static int begin(struct exchange *x, struct upstream **ret, json_t **ret_body, struct failure *f)
{
    int r = ret_body ? e2b_read(x, false, ret_body, f) : 0;
    return r < 0 ? r : exchange_upstream(x, ret, f);
}

/* --- making one ------------------------------------------------------------------------------- */

struct wish {
    const char *template; /* a snapshot's ID; NULL: none */
    char id[NEW_ID_LETTERS + 2];
    struct bytes thread_id;
    char *labels;
    uint64_t ttl_ms;
    const char *policy; /* or NULL: the service's own */
};

static int new_id(char ret[NEW_ID_LETTERS + 2])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    uint8_t bytes[NEW_ID_LETTERS];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return -EIO;
    ret[0] = 'i';
    for (size_t i = 0; i < NEW_ID_LETTERS; i++)
        ret[i + 1] = letters[bytes[i] & 31];
    ret[NEW_ID_LETTERS + 1] = '\0';
    return 0;
}

static int read_labels(const json_t *body, struct wish *w, struct failure *f)
{
    json_t *metadata = json_object_get(body, "metadata"), *envs = json_object_get(body, "envVars");
    json_t *labels = json_is_object(metadata) ? json_copy(metadata) : json_object();
    json_t *wish = json_object_get(labels, THREAD_ID_WISH);
    int r = 0;
    if (json_is_string(wish))
        w->thread_id = bytes_of(json_string_value(wish), json_string_length(wish)); /* the body's */
    (void)json_object_del(labels, THREAD_ID_WISH);
    if (json_object_get(labels, E2B_ENVIRONMENT_LABEL) || json_object_get(labels, TEMPLATE_LABEL) ||
        json_object_get(labels, E2B_SANDBOX_LABEL))
        r = failure_set(f, -EINVAL, "metadata: %s, %s and %s are not for clients",
                        E2B_ENVIRONMENT_LABEL, TEMPLATE_LABEL, E2B_SANDBOX_LABEL);
    if (r == 0 && json_object_set_new(labels, E2B_SANDBOX_LABEL, json_string("")) < 0)
        r = -ENOMEM;
    if (r == 0 && json_object_size(envs) > 0) {
        _cleanup_free_ char *text = json_dumps(envs, JSON_COMPACT);
        if (!text || json_object_set_new(labels, E2B_ENVIRONMENT_LABEL, json_string(text)) < 0)
            r = -ENOMEM;
    }
    if (r == 0 && w->template)
        r = json_object_set_new(labels, TEMPLATE_LABEL, json_string(w->template)) < 0 ? -ENOMEM : 0;
    w->labels = r == 0 ? json_dumps(labels, JSON_COMPACT) : NULL;
    json_decref(labels);
    return r < 0 ? r : w->labels ? 0 : failure_set(f, -ENOMEM, "out of memory");
}

static bool is_said(const json_t *value)
{
    return json_object_size(value) > 0 || json_array_size(value) > 0 ||
           json_string_length(value) > 0;
}

/* All or nothing is what can be had: what denies all is held to, what denies some is not. */
static int read_network(const json_t *network, bool *ret_none, struct failure *f)
{
    const char *name;
    json_t *value;
    size_t i;
    bool other = network && !json_is_object(network) && !json_is_null(network);
    const json_t *denied = json_object_get(network, "denyOut");
    json_array_foreach(denied, i, value)
    {
        const char *text = json_string_value(value);
        *ret_none = *ret_none || (text && strcmp(text, "0.0.0.0/0") == 0);
    }
    json_object_foreach((json_t *)(uintptr_t)network, name, value) other =
        other || (is_said(value) && (strcmp(name, "denyOut") != 0 || !*ret_none));
    return other ? failure_set(f, -EINVAL,
                               "network cannot be had here, but denyOut of 0.0.0.0/0 alone. What "
                               "commands may reach the workspace's policy says (berth policy)")
                 : 0;
}

/* What would have to be held to, and is not, is refused: to ignore it would be to lie. */
static int read_bounds(const json_t *body, struct wish *w, struct failure *f)
{
    static const char *const others[] = {"iam", "mcp", "volumeMounts"};
    bool internet = true, none = false, pause = false;
    int r = e2b_flag(body, "allow_internet_access", &internet, f);
    if (r == 0)
        r = read_network(json_object_get(body, "network"), &none, f);
    if (r == 0)
        r = e2b_flag(body, "autoPause", &pause, f);
    if (r == 0 && pause)
        r = failure_set(f, -EINVAL,
                        "autoPause (onTimeout: pause) cannot be had here: at its end a sandbox is "
                        "removed. Give it more time, or pause it");
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(others); i++) {
        const json_t *value = json_object_get(body, others[i]);
        if (is_said(value))
            r = failure_set(f, -EINVAL,
                            "%s cannot be had here. What commands may reach the workspace's policy "
                            "says (berth policy)",
                            others[i]);
    }
    if (!internet || none)
        w->policy = "{\"network\":\"none\"}";
    return r;
}

static int read_wish(const json_t *body, struct wish *w, struct failure *f)
{
    int r = new_id(w->id);
    w->thread_id = bytes_of_string(w->id);
    w->ttl_ms = TIMEOUT_DEFAULT_MS;
    if (r == 0)
        r = e2b_text(body, "templateID", &w->template, f);
    if (r == 0 && (!*w->template || strcmp(w->template, TEMPLATE_DEFAULT) == 0))
        w->template = NULL;
    if (r == 0)
        r = read_timeout(body, &w->ttl_ms, f);
    if (r == 0)
        r = read_bounds(body, w, f);
    return r < 0 ? r : read_labels(body, w, f);
}

static int create(struct upstream *u, const struct wish *w, uint32_t flags, struct bytes source,
                  struct wire_frame **ret, struct failure *f)
{
    const struct wire_message m = {.type = WIRE_WORKSPACE_CREATE,
                                   .workspace_create = {.flags = flags,
                                                        .ttl_ms = w->ttl_ms,
                                                        .thread_id = w->thread_id,
                                                        .policy = bytes_of_string(w->policy),
                                                        .labels = bytes_of_string(w->labels),
                                                        .source = source}};
    return upstream_call(u, &m, ret, f);
}

int e2b_sandboxes_create(struct exchange *x, struct failure *ret_failure)
{
    struct wish w = {0};
    struct upstream *u;
    struct wire_frame *frame = NULL;
    json_t *body = NULL, *answer = NULL;
    int r = begin(x, &u, &body, ret_failure);
    if (r == 0)
        r = read_wish(body, &w, ret_failure);
    if (r == 0) {
        exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
        r = create(u, &w, w.template ? WIRE_WORKSPACE_FROM_SNAPSHOT : 0,
                   bytes_of_string(w.template), &frame, ret_failure);
        if (r == -ENOENT)
            r = failure_set(ret_failure, r, "template '%s' not found: it is no snapshot",
                            w.template);
    }
    if (r == 0) {
        answer = session_json(u, &frame->message.workspace, ret_failure);
        r = answer ? 0 : ret_failure->error;
    }
    if (frame)
        wire_frame_free(frame);
    free(w.labels);
    json_decref(body);
    return r < 0 ? r : exchange_reply_json(x, 201, answer);
}

int e2b_sandboxes_connect(struct exchange *x, struct failure *ret_failure)
{
    struct upstream *u;
    struct wire_frame *frame;
    struct bytes id = exchange_param(x, 0);
    uint64_t ttl_ms = 0;
    json_t *body = NULL;
    int r = begin(x, &u, &body, ret_failure);
    if (r == 0)
        r = read_timeout(body, &ttl_ms, ret_failure);
    json_decref(body);
    if (r == 0)
        r = get(u, id, &frame, ret_failure);
    if (r < 0)
        return r;
    const struct wire_workspace *w = &frame->message.workspace;
    bool stopped = w->state == WIRE_WORKSPACE_STOPPED;
    /* Its end comes later by this, never sooner; what was paused had none. */
    bool resumed = stopped && is_ours(w) && w->expires_at.sec == 0;
    bool later = resumed || (ttl_ms > 0 && w->expires_at.sec > 0 &&
                             w->expires_at.sec < (int64_t)time(NULL) + (int64_t)(ttl_ms / 1000));
    if (resumed && ttl_ms == 0)
        ttl_ms = TIMEOUT_DEFAULT_MS;
    uint32_t valid =
        (later ? WIRE_WORKSPACE_SET_TTL : 0U) | (stopped ? WIRE_WORKSPACE_SET_STATE : 0U);
    if (valid) {
        wire_frame_free(frame);
        exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
        r = set(u, id, valid, WIRE_WORKSPACE_RUNNING, ttl_ms, &frame, ret_failure);
        if (r < 0)
            return r;
    }
    json_t *answer = session_json(u, &frame->message.workspace, ret_failure);
    wire_frame_free(frame);
    return answer ? exchange_reply_json(x, stopped ? 201 : 200, answer) : ret_failure->error;
}

/* --- looking ---------------------------------------------------------------------------------- */

int e2b_sandboxes_get(struct exchange *x, struct failure *ret_failure)
{
    struct upstream *u;
    struct wire_frame *frame, *token = NULL;
    int r = begin(x, &u, NULL, ret_failure);
    if (r == 0)
        r = get(u, exchange_param(x, 0), &frame, ret_failure);
    if (r < 0)
        return r;
    json_t *answer = info_json(&frame->message.workspace);
    r = answer ? token_of(u, frame->message.workspace.thread_id, &token, ret_failure) : -ENOMEM;
    wire_frame_free(frame);
    if (token) {
        const struct bytes text = token->message.access_reply.token;
        (void)json_object_set_new(answer, "envdAccessToken",
                                  json_stringn((const char *)text.data, text.len));
        wire_frame_free(token);
    }
    if (r < 0) {
        json_decref(answer);
        return r;
    }
    return exchange_reply_json(x, 200, answer);
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* As in a query. */
static int append_decoded(struct buffer *b, const char *text, size_t len)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < len; i++) {
        bool escape =
            text[i] == '%' && i + 2 < len && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0;
        char c = text[i] == '+' ? ' ' : text[i];
        if (escape) {
            c = (char)(hex(text[i + 1]) * 16 + hex(text[i + 2]));
            i += 2;
        }
        r = buffer_append(b, &c, 1);
    }
    return r;
}

/* "key=value&…", of which keys and values were encoded once more before, to selectors. */
static int read_selectors(const char *text, struct buffer *list, uint32_t *count, struct failure *f)
{
    while (text && *text) {
        _cleanup_buffer_ struct buffer once = {0}, twice = {0};
        size_t len = strcspn(text, "&");
        int r = append_decoded(&once, text, len);
        if (r == 0)
            r = append_decoded(&twice, (const char *)once.data, once.len);
        if (r == 0 && twice.len > 0)
            r = wire_list_append(list, buffer_view(&twice));
        if (r < 0)
            return failure_set(f, r, "%s", strerror(-r));
        if (twice.len > 0 && ++*count > WIRE_SELECTORS_MAX)
            return failure_set(f, -E2BIG, "more than %d metadata", WIRE_SELECTORS_MAX);
        text += len + (text[len] == '&');
    }
    return 0;
}

static uint32_t wanted_state(struct exchange *x)
{
    bool running = false, paused = false;
    const char *value;
    for (size_t i = 0; (value = exchange_query_nth(x, "state", i)); i++) {
        running = running || strstr(value, "running");
        paused = paused || strstr(value, "paused");
    }
    return running == paused ? 0 : running ? WIRE_WORKSPACE_RUNNING : WIRE_WORKSPACE_STOPPED;
}

/* Takes all. r: of what filled it; last: of the page, where the next one begins if there is more.
 */
static int reply_page(struct exchange *x, int r, json_t *all, bool more, struct bytes last)
{
    if (r == 0 && more && last.len > 0)
        r = exchange_add_field(x, "X-Next-Token", "%.*s", (int)last.len, (const char *)last.data);
    if (r < 0) {
        json_decref(all);
        return r;
    }
    return exchange_reply_json(x, 200, all);
}

int e2b_sandboxes_list(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_buffer_ struct buffer selectors = {0};
    uint64_t limit = PAGE_DEFAULT;
    uint32_t count = 0, offset = 0;
    struct upstream *u;
    struct wire_frame *frame;
    struct wire_message m;
    struct bytes element;
    int r = begin(x, &u, NULL, ret_failure);
    if (r == 0)
        r = exchange_query_u64(x, "limit", 1, 1000, &limit, ret_failure);
    /* Of others' a script that ends all that it finds would make an end, too. */
    if (r == 0)
        r = wire_list_append(&selectors, bytes_of_string(E2B_SANDBOX_LABEL));
    count = 1;
    if (r == 0)
        r = read_selectors(exchange_query(x, "metadata"), &selectors, &count, ret_failure);
    if (r < 0)
        return r;
    const struct wire_message request = {
        .type = WIRE_WORKSPACE_LIST,
        .workspace_list = {.count = (uint32_t)limit,
                           .state = wanted_state(x),
                           .after = bytes_of_string(exchange_query(x, "nextToken")),
                           .selectors = wire_list_of(&selectors, count)}};
    r = upstream_call(u, &request, &frame, ret_failure);
    if (r < 0)
        return r;
    json_t *all = json_array();
    m.workspace.name = (struct bytes){0};
    while (r == 0 && wire_list_next(&frame->message.workspaces.items, &offset, &element)) {
        r = wire_decode(WIRE_WORKSPACE, element, &m);
        if (r == 0)
            r = json_array_append_new(all, info_json(&m.workspace)) < 0 ? -ENOMEM : 0;
    }
    r = reply_page(x, r, all, frame->message.workspaces.more, m.workspace.name);
    wire_frame_free(frame);
    return r;
}

/* We measure nothing of a sandbox. */
int e2b_sandboxes_metrics(struct exchange *x, struct failure *ret_failure)
{
    struct upstream *u;
    struct wire_frame *frame;
    int r = begin(x, &u, NULL, ret_failure);
    if (r == 0)
        r = get(u, exchange_param(x, 0), &frame, ret_failure);
    if (r < 0)
        return r;
    wire_frame_free(frame);
    return exchange_reply_json(x, 200, json_array());
}

/* Nothing of it is changed from here: who asks for less than there was has to know. */
int e2b_sandboxes_network(struct exchange *x, struct failure *ret_failure)
{
    struct upstream *u;
    int r = begin(x, &u, NULL, ret_failure);
    return r < 0 ? r
                 : failure_set(ret_failure, -EINVAL,
                               "what commands may reach is not changed by this, but by the "
                               "workspace's policy (berth policy)");
}

/* --- changing --------------------------------------------------------------------------------- */

int e2b_sandboxes_remove(struct exchange *x, struct failure *ret_failure)
{
    struct upstream *u;
    struct wire_frame *frame;
    int r = begin(x, &u, NULL, ret_failure);
    if (r < 0)
        return r;
    const struct wire_message m = {
        .type = WIRE_WORKSPACE_REMOVE,
        .workspace_remove = {.flags = WIRE_WORKSPACE_FORCE, .key = exchange_param(x, 0)}};
    exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    r = upstream_call(u, &m, &frame, ret_failure);
    if (r < 0)
        return r;
    wire_frame_free(frame);
    return exchange_reply_empty(x, 204);
}

int e2b_sandboxes_set_timeout(struct exchange *x, struct failure *ret_failure)
{
    struct upstream *u;
    struct wire_frame *frame;
    uint64_t ttl_ms = UINT64_MAX;
    json_t *body = NULL;
    int r = begin(x, &u, &body, ret_failure);
    if (r == 0)
        r = read_timeout(body, &ttl_ms, ret_failure);
    json_decref(body);
    if (r == 0 && ttl_ms == UINT64_MAX)
        r = failure_set(ret_failure, -EINVAL, "timeout is missing");
    if (r < 0)
        return r;
    exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    r = set(u, exchange_param(x, 0), WIRE_WORKSPACE_SET_TTL, 0, ttl_ms, &frame, ret_failure);
    if (r < 0)
        return r;
    wire_frame_free(frame);
    return exchange_reply_empty(x, 204);
}

int e2b_sandboxes_pause(struct exchange *x, struct failure *ret_failure)
{
    struct upstream *u;
    struct wire_frame *frame;
    struct bytes id = exchange_param(x, 0);
    int r = begin(x, &u, NULL, ret_failure);
    if (r == 0)
        r = get(u, id, &frame, ret_failure);
    if (r < 0)
        return r;
    bool stopped = frame->message.workspace.state == WIRE_WORKSPACE_STOPPED;
    /* What is paused is kept until it is wanted again. */
    uint32_t valid = WIRE_WORKSPACE_SET_STATE |
                     (is_ours(&frame->message.workspace) ? WIRE_WORKSPACE_SET_TTL : 0U);
    wire_frame_free(frame);
    if (stopped)
        return exchange_refuse(x, 409, "the sandbox is paused already");
    exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    r = set(u, id, valid, WIRE_WORKSPACE_STOPPED, 0, &frame, ret_failure);
    if (r < 0)
        return r;
    wire_frame_free(frame);
    return exchange_reply_empty(x, 204);
}

/* --- snapshots and forks ---------------------------------------------------------------------- */

static json_t *snapshot_json(const struct wire_snapshot *s)
{
    json_t *id = e2b_string(s->id);
    return json_pack("{s:O,s:[o]}", "snapshotID", id, "names", id);
}

int e2b_snapshots_create(struct exchange *x, struct failure *ret_failure)
{
    struct upstream *u;
    struct wire_frame *frame;
    const char *name = "";
    json_t *body = NULL;
    int r = begin(x, &u, &body, ret_failure);
    if (r == 0)
        r = e2b_text(body, "name", &name, ret_failure);
    if (r == 0) {
        const struct wire_message m = {
            .type = WIRE_SNAPSHOT_CREATE,
            .snapshot_create = {.workspace = exchange_param(x, 0), .id = bytes_of_string(name)}};
        exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
        r = upstream_call(u, &m, &frame, ret_failure);
    }
    json_decref(body);
    if (r < 0)
        return r;
    json_t *answer = snapshot_json(&frame->message.snapshot);
    wire_frame_free(frame);
    return exchange_reply_json(x, 201, answer);
}

int e2b_snapshots_list(struct exchange *x, struct failure *ret_failure)
{
    uint64_t limit = PAGE_DEFAULT;
    uint32_t offset = 0;
    struct upstream *u;
    struct wire_frame *frame;
    struct wire_message m;
    struct bytes element;
    int r = begin(x, &u, NULL, ret_failure);
    if (r == 0)
        r = exchange_query_u64(x, "limit", 1, 1000, &limit, ret_failure);
    if (r < 0)
        return r;
    const struct wire_message request = {
        .type = WIRE_SNAPSHOT_LIST,
        .snapshot_list = {.count = (uint32_t)limit,
                          .after = bytes_of_string(exchange_query(x, "nextToken")),
                          .workspace = bytes_of_string(exchange_query(x, "sandboxID"))}};
    r = upstream_call(u, &request, &frame, ret_failure);
    if (r < 0)
        return r;
    json_t *all = json_array();
    m.snapshot.id = (struct bytes){0};
    while (r == 0 && wire_list_next(&frame->message.snapshots.items, &offset, &element)) {
        r = wire_decode(WIRE_SNAPSHOT, element, &m);
        if (r == 0)
            r = json_array_append_new(all, snapshot_json(&m.snapshot)) < 0 ? -ENOMEM : 0;
    }
    r = reply_page(x, r, all, frame->message.snapshots.more, m.snapshot.id);
    wire_frame_free(frame);
    return r;
}

/* A snapshot is a template to E2B. */
int e2b_snapshots_remove(struct exchange *x, struct failure *ret_failure)
{
    struct upstream *u;
    struct wire_frame *frame;
    int r = begin(x, &u, NULL, ret_failure);
    if (r < 0)
        return r;
    const struct wire_message m = {.type = WIRE_SNAPSHOT_REMOVE,
                                   .snapshot_remove = {.id = exchange_param(x, 0)}};
    exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    r = upstream_call(u, &m, &frame, ret_failure);
    if (r < 0)
        return r;
    wire_frame_free(frame);
    return exchange_reply_empty(x, 204);
}

/* {"sandbox": …} or {"error": {"code", "message"}} */
static json_t *fork_one(struct upstream *u, struct bytes source, const char *labels,
                        uint64_t ttl_ms)
{
    struct wish w = {.ttl_ms = ttl_ms, .labels = (char *)(uintptr_t)labels};
    struct failure f = {.text = ""};
    struct wire_frame *frame = NULL;
    json_t *sandbox = NULL;
    int r = new_id(w.id);
    w.thread_id = bytes_of_string(w.id);
    if (r == 0)
        r = create(u, &w, WIRE_WORKSPACE_EXCLUSIVE | WIRE_WORKSPACE_FROM_WORKSPACE, source, &frame,
                   &f);
    if (r == 0)
        sandbox = session_json(u, &frame->message.workspace, &f);
    if (frame)
        wire_frame_free(frame);
    if (sandbox)
        return json_pack("{s:o}", "sandbox", sandbox);
    return json_pack("{s:{s:i,s:o}}", "error", "code", problem_of(r < 0 ? r : f.error).status,
                     "message", e2b_string(bytes_of_string(*f.text ? f.text : strerror(-r))));
}

int e2b_sandboxes_fork(struct exchange *x, struct failure *ret_failure)
{
    struct upstream *u;
    struct wire_frame *frame = NULL;
    struct bytes id = exchange_param(x, 0);
    uint64_t ttl_ms = TIMEOUT_DEFAULT_MS, count = 1;
    json_t *body = NULL;
    int r = begin(x, &u, &body, ret_failure);
    if (r == 0)
        r = read_timeout(body, &ttl_ms, ret_failure);
    if (r == 0)
        r = e2b_number(body, "count", FORKS_MAX, &count, ret_failure);
    json_decref(body);
    if (r == 0)
        r = get(u, id, &frame, ret_failure);
    if (r < 0)
        return r;
    json_t *labels = labels_of(&frame->message.workspace), *all = json_array();
    (void)json_object_set_new(labels, E2B_SANDBOX_LABEL, json_string(""));
    _cleanup_free_ char *text = json_dumps(labels, JSON_COMPACT);
    json_decref(labels);
    wire_frame_free(frame);
    exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    for (uint64_t i = 0; i < count; i++)
        (void)json_array_append_new(all, fork_one(u, id, text, ttl_ms));
    return exchange_reply_json(x, 201, all);
}
