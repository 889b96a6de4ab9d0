#include "store/ops.h"

#include <stdio.h>

/* An empty set is none: it costs nothing then. */
static int parse(struct bytes text, struct visibility_rules **ret, struct failure *failure)
{
    int r = visibility_rules_parse(text, ret, failure);
    if (r == 0 && visibility_rules_count(*ret) == 0)
        visibility_rules_unref(take_ptr(*ret));
    return r;
}

static int refuse(int error, const struct failure *failure, struct reply *ret)
{
    if (error == -EINVAL)
        (void)snprintf(ret->text, sizeof ret->text, "%.*s", (int)sizeof ret->text - 1,
                       failure->text);
    return error;
}

int store_set_visibility(struct store *store, struct bytes rules, struct failure *ret_failure)
{
    struct visibility_rules *parsed = NULL;
    int r = parse(rules, &parsed, ret_failure);
    if (r < 0)
        return r;
    store_lock(store);
    struct visibility_rules *old = store->rules;
    store->rules = parsed;
    store_unlock(store);
    visibility_rules_unref(old);
    return 0;
}

OPERATION(visibility)
{
    struct store *store = session->store;
    struct visibility_rules *rules = NULL;
    struct failure failure;
    int r = parse(m->visibility.rules, &rules, &failure);
    if (r < 0)
        return refuse(r, &failure, ret);
    store_lock(store);
    struct visibility_rules *old = session->rules;
    session->rules = rules;
    view_changed_locked(store, &session->view_changed);
    store_unlock(store);
    visibility_rules_unref(old);
    reply_ok(ret);
    return 0;
}

static int reply_rules(struct file_session *session, uint32_t flags, struct bytes key,
                       struct reply *ret)
{
    struct visibility_rules *service, *own;
    int r = workspace_visibility(session->store, key, flags, &service, &own);
    if (r < 0)
        return r;
    const struct bytes none = {0};
    struct bytes first = service ? visibility_rules_text(service) : none;
    struct bytes second = own ? visibility_rules_text(own) : none;
    r = buffer_append(&ret->storage, first.data, first.len);
    if (r == 0)
        r = buffer_append(&ret->storage, second.data, second.len);
    const uint8_t *texts = ret->storage.data; /* NULL: neither has any */
    ret->message = (struct wire_message){
        .type = WIRE_WORKSPACE_RULES,
        .workspace_rules = {.service = bytes_of(texts, first.len),
                            .workspace = bytes_of(texts ? texts + first.len : NULL, second.len)}};
    visibility_rules_unref(service);
    visibility_rules_unref(own);
    return r;
}

OPERATION(workspace_visibility)
{
    return reply_rules(session, m->workspace_visibility.flags, m->workspace_visibility.key, ret);
}

OPERATION(workspace_set_visibility)
{
    uint32_t flags = m->workspace_set_visibility.flags;
    struct bytes key = m->workspace_set_visibility.key;
    struct failure failure = {0};
    int r = workspace_set_visibility(session->store, key, flags, m->workspace_set_visibility.rules,
                                     &failure);
    if (r < 0)
        return refuse(r, &failure, ret);
    return reply_rules(session, flags & ~(uint32_t)WIRE_WORKSPACE_APPEND, key, ret);
}
