#include "store/ops.h"

#include <stdio.h>
#include <string.h>

/* Workspaces in one page, and list bytes: what a WORKSPACES message can carry. Stops one
 * request from reading the meta.json of every workspace of a large service. */
#define PAGE_COUNT_MAX 1024
#define PAGE_SIZE_MAX 0x100000

static void explain(int error, struct reply *ret)
{
    if (error == -EIO)
        (void)snprintf(ret->text, sizeof ret->text,
                       "the workspace's meta.json is missing, or it or the file visibility "
                       "beside it is damaged");
}

static struct wire_workspace describe(const struct meta *meta, const char *name)
{
    return (struct wire_workspace){.slot = meta->slot,
                                   .state = WIRE_WORKSPACE_RUNNING,
                                   .revision = 1,
                                   .created_at = meta->created_at,
                                   .used_at = meta->created_at,
                                   .thread_id = bytes_of(meta->thread_id, meta->thread_id_len),
                                   .name = bytes_of_string(name),
                                   .labels = bytes_of_string("{}")};
}

int workspace_answer(struct store *store, const struct workspace *w, bool created,
                     struct reply *ret)
{
    struct meta meta;
    int r = workspace_describe(store, w->name, &meta);
    if (r < 0)
        return r;
    struct wire_workspace *reply = &ret->message.workspace;
    ret->message =
        (struct wire_message){.type = WIRE_WORKSPACE, .workspace = describe(&meta, w->name)};
    reply->created = created;
    size_t id_len = reply->thread_id.len, name_len = reply->name.len;
    r = buffer_append(&ret->storage, reply->thread_id.data, id_len);
    if (r == 0)
        r = buffer_append(&ret->storage, reply->name.data, name_len);
    if (r < 0)
        return r;
    reply->thread_id = bytes_of(ret->storage.data, id_len);
    reply->name = bytes_of(ret->storage.data + id_len, name_len);
    return 0;
}

OPERATION(workspace_create)
{
    _cleanup_workspace_ struct workspace *w = NULL;
    bool created;
    struct failure failure;
    int r = workspace_create(session->store, &m->workspace_create, NULL, &w, &created, &failure);
    if (r < 0) {
        explain(r, ret);
        if (r == -EINVAL)
            (void)snprintf(ret->text, sizeof ret->text, "%.*s", (int)sizeof ret->text - 1,
                           failure.text);
        return r;
    }
    return workspace_answer(session->store, w, created, ret);
}

OPERATION(workspace_get)
{
    _cleanup_workspace_ struct workspace *w = NULL;
    int r = store_workspace_find(session->store, m->workspace_get.key, m->workspace_get.flags, &w);
    if (r < 0) {
        explain(r, ret);
        return r;
    }
    return workspace_answer(session->store, w, false, ret);
}

OPERATION(workspace_set)
{
    return -EOPNOTSUPP;
}

OPERATION(workspace_open)
{
    _cleanup_workspace_ struct workspace *w = NULL;
    int r =
        store_workspace_find(session->store, m->workspace_open.key, m->workspace_open.flags, &w);
    if (r < 0) {
        explain(r, ret);
        return r;
    }
    size_t name_len = strlen(w->name);
    r = buffer_append(&ret->storage, w->thread_id, w->thread_id_len);
    if (r == 0)
        r = buffer_append(&ret->storage, w->name, name_len);
    if (r < 0)
        return r;
    struct statx stx;
    r = grip_statx_fd(w->tree_fd, &stx);
    if (r < 0)
        return r;
    const struct sighting seen = {.at_fd = w->tree_fd, .at_name = "", .stx = &stx};
    _cleanup_node_ struct node *root = NULL;
    r = node_enter(session, w, &seen, &root);
    if (r < 0)
        return r;
    const uint8_t *data = ret->storage.data;
    ret->message = (struct wire_message){
        .type = WIRE_WORKSPACE_ROOT,
        .workspace_root = {.node = root->number,
                           .slot = w->slot,
                           .thread_id = bytes_of(data, w->thread_id_len),
                           .name = bytes_of(data + w->thread_id_len, name_len)}};
    r = node_attr(root, &stx, &ret->message.workspace_root.attr);
    if (r < 0)
        node_forget(session, root->number, 1);
    return r;
}

OPERATION(workspace_remove)
{
    int r = workspace_remove(session->store, m->workspace_remove.key, m->workspace_remove.flags);
    if (r == 0)
        reply_ok(ret);
    else
        explain(r, ret);
    return r;
}

/* Appends one WORKSPACE element; 0 when it does not fit any more, else 1. */
static int append_workspace(struct buffer *list, const char *name, const struct meta *meta)
{
    const struct wire_message element = {.type = WIRE_WORKSPACE, .workspace = describe(meta, name)};
    _cleanup_buffer_ struct buffer encoded = {0};
    int r = wire_encode(&encoded, &element);
    if (r < 0)
        return r;
    if (list->len + 2 * sizeof(uint32_t) + encoded.len > PAGE_SIZE_MAX)
        return 0;
    r = wire_list_append(list, buffer_view(&encoded));
    return r < 0 ? r : 1;
}

/* A workspace that is not for this session does not cost a look at its meta.json, unless its name
 * alone does not tell its ID. */
static bool is_shown(const struct file_session *session, const char *name)
{
    uint8_t id[THREAD_ID_MAX];
    struct meta meta;
    if (!session->shows)
        return true;
    int r = thread_id_from_name(bytes_of_string(name), id);
    if (r >= 0)
        return session->shows(session->shows_context, bytes_of(id, (size_t)r));
    return r == -ENODATA && workspace_describe(session->store, name, &meta) == 0 &&
           session->shows(session->shows_context, bytes_of(meta.thread_id, meta.thread_id_len));
}

/* Appends the workspace of this name. 1: it was appended; 0: it has no place any more; -ENOENT: it
 * is not to be listed. */
static int list_one(struct file_session *session, const char *name, struct buffer *list)
{
    struct meta meta;
    if (!is_shown(session, name))
        return -ENOENT;
    int r = workspace_describe(session->store, name, &meta);
    if (r == -ENOMEM || r == -EMFILE || r == -ENFILE)
        return r;
    if (r < 0)
        return -ENOENT; /* removed meanwhile, or not a workspace */
    return append_workspace(list, name, &meta);
}

OPERATION(workspace_list)
{
    size_t max = m->workspace_list.count;
    if (max == 0 || max > PAGE_COUNT_MAX)
        max = PAGE_COUNT_MAX;
    _cleanup_buffer_ struct buffer names = {0};
    struct bytes after = m->workspace_list.after;
    char last[WIRE_NAME_MAX + 1];
    uint32_t count = 0;
    bool more = true, full = false;
    /* Until the page has all it can, for the client goes on from its last. */
    while (more && !full) {
        names.len = 0;
        int r = workspace_names(session->store, after, max, &names, &more);
        if (r < 0)
            return r;
        for (size_t at = 0; at < names.len && !full;) {
            const char *name = (const char *)names.data + at;
            at += strlen(name) + 1;
            r = list_one(session, name, &ret->storage);
            if (r < 0 && r != -ENOENT)
                return r;
            full = r == 0 || (r > 0 && ++count == max);
            more = full ? more || r == 0 || at < names.len : more;
            after = bytes_of(last, (size_t)snprintf(last, sizeof last, "%s", name));
        }
    }
    ret->message = (struct wire_message){
        .type = WIRE_WORKSPACES,
        .workspaces = {.more = more, .items = wire_list_of(&ret->storage, count)}};
    return 0;
}
