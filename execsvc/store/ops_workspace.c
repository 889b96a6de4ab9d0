#include "store/ops.h"

#include "base/clock.h"
#include "store/index.h"
#include "store/labels.h"

#include <stdio.h>
#include <string.h>

/* Workspaces in one page, and list bytes: what a WORKSPACES message can carry. */
#define PAGE_COUNT_MAX 1024
#define PAGE_SIZE_MAX 0x100000

static void explain(int error, struct reply *ret)
{
    if (error == -EIO)
        (void)snprintf(ret->text, sizeof ret->text,
                       "the workspace's meta.json is missing, or it or the file visibility "
                       "beside it is damaged");
}

static struct wire_workspace describe(const struct index_entry *e)
{
    return (struct wire_workspace){
        .slot = e->slot,
        .state = e->state,
        .revision = e->revision,
        .idle_ms = e->idle_ms,
        .created_at = e->created_at,
        .expires_at = {.sec = (int64_t)(e->expires_ms / 1000),
                       .nsec = (uint32_t)(e->expires_ms % 1000 * NSEC_PER_MSEC)},
        .used_at = index_used_at(e),
        .thread_id = bytes_of(e->thread_id, e->thread_id_len),
        .name = bytes_of_string(e->name),
        .labels = bytes_of_string(e->labels)};
}

/* --- one ------------------------------------------------------------------------- */

struct told {
    const char *name;
    const struct bytes *thread_id; /* NULL: any */
    struct reply *reply;
};

/* The reply WORKSPACE, with what it names in the reply's storage. */
static int tell(void *context, const struct index_entry *e)
{
    const struct told *t = context;
    struct reply *ret = t->reply;
    if (strcmp(e->name, t->name) != 0)
        return -ENOENT;
    if (!e->known || e->broken)
        return -EIO;
    if (t->thread_id && !bytes_equal(*t->thread_id, bytes_of(e->thread_id, e->thread_id_len)))
        return -ENOENT;
    ret->message = (struct wire_message){.type = WIRE_WORKSPACE, .workspace = describe(e)};
    struct wire_workspace *w = &ret->message.workspace;
    struct bytes *texts[] = {&w->thread_id, &w->name, &w->labels};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(texts); i++)
        r = buffer_append(&ret->storage, texts[i]->data, texts[i]->len);
    const uint8_t *at = ret->storage.data;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(texts); at += texts[i++]->len)
        texts[i]->data = at;
    return r < 0 ? r : 1;
}

static int answer(struct store *store, const char *name, const struct bytes *thread_id,
                  struct reply *ret)
{
    struct told told = {.name = name, .thread_id = thread_id, .reply = ret};
    int r = index_walk(store->index, bytes_of_string(name), true, tell, &told);
    return r == 1 ? 0 : r == 0 ? -ENOENT : r;
}

struct sought {
    const char *name;
    struct bytes thread_id;
    uint32_t slot;
};

static int see(void *context, const struct index_entry *e)
{
    struct sought *s = context;
    if (strcmp(e->name, s->name) != 0)
        return -ENOENT;
    if (!e->known)
        return -EAGAIN;
    if (e->broken || !bytes_equal(s->thread_id, bytes_of(e->thread_id, e->thread_id_len)))
        return -ENOENT;
    s->slot = e->slot;
    return 1;
}

uint32_t store_workspace_slot(struct store *store, struct bytes thread_id)
{
    char name[THREAD_NAME_MAX + 1];
    const struct bytes *id;
    struct bytes key = thread_id;
    if (workspace_key_name(key, 0, name, &id, &key) < 0)
        return 0;
    struct sought sought = {.name = name, .thread_id = thread_id};
    int r = index_walk(store->index, bytes_of_string(name), true, see, &sought);
    /* The first ones that are asked for after the start. */
    if (r == -EAGAIN && workspace_read(store, name) == 0)
        (void)index_walk(store->index, bytes_of_string(name), true, see, &sought);
    return sought.slot;
}

int workspace_answer(struct store *store, const struct workspace *w, bool created,
                     struct reply *ret)
{
    int r = answer(store, w->name, NULL, ret);
    ret->message.workspace.created = r == 0 && created;
    return r;
}

OPERATION(workspace_create)
{
    _cleanup_workspace_ struct workspace *w = NULL;
    bool created;
    struct failure failure;
    int r = workspace_create(session->store, &m->workspace_create, NULL, &w, &created, &failure);
    if (r == 0)
        r = workspace_answer(session->store, w, created, ret);
    if (r < 0) {
        explain(r, ret);
        if (r == -EINVAL || r == -E2BIG)
            (void)snprintf(ret->text, sizeof ret->text, "%.*s", (int)sizeof ret->text - 1,
                           failure.text);
        return r;
    }
    return 0;
}

OPERATION(workspace_get)
{
    char name[THREAD_NAME_MAX + 1];
    struct bytes key = m->workspace_get.key;
    const struct bytes *id;
    int r = workspace_key_name(key, m->workspace_get.flags, name, &id, &key);
    if (r < 0)
        return r;
    r = answer(session->store, name, id, ret);
    if (r == -EIO || r == -ENOENT) {
        /* Not read yet, or put there by somebody else. */
        r = workspace_read(session->store, name);
        if (r == 0)
            r = answer(session->store, name, id, ret);
    }
    if (r < 0)
        explain(r, ret);
    return r;
}

OPERATION(workspace_set)
{
    char name[WIRE_NAME_MAX + 1];
    struct failure failure;
    int r = workspace_set(session->store, &m->workspace_set, name, &failure);
    if (r < 0) {
        explain(r, ret);
        if (failure.text[0])
            (void)snprintf(ret->text, sizeof ret->text, "%.*s", (int)sizeof ret->text - 1,
                           failure.text);
        return r;
    }
    return answer(session->store, name, NULL, ret);
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

/* --- all ------------------------------------------------------------------------- */

struct page {
    const struct file_session *session;
    uint32_t state;
    struct label_selectors selectors;
    size_t max;
    uint32_t count;
    char unknown[WIRE_NAME_MAX + 1];
    struct buffer *list;
};

/* What a walk that is not over stops with. */
enum { PAGE_FULL = 1, PAGE_UNKNOWN = 2 };

/* Appends one WORKSPACE element; PAGE_FULL when it does not fit any more. */
static int append_workspace(struct buffer *list, const struct index_entry *e)
{
    const struct wire_message element = {.type = WIRE_WORKSPACE, .workspace = describe(e)};
    _cleanup_buffer_ struct buffer encoded = {0};
    int r = wire_encode(&encoded, &element);
    if (r < 0)
        return r;
    if (list->len + 2 * sizeof(uint32_t) + encoded.len > PAGE_SIZE_MAX)
        return PAGE_FULL;
    return wire_list_append(list, buffer_view(&encoded));
}

static bool is_wanted(const struct page *p, const struct index_entry *e)
{
    const struct file_session *session = p->session;
    return !e->broken && (p->state == 0 || p->state == e->state) &&
           labels_match(e->labels, &p->selectors) &&
           (!session->shows ||
            session->shows(session->shows_context, bytes_of(e->thread_id, e->thread_id_len)));
}

static int visit(void *context, const struct index_entry *e)
{
    struct page *p = context;
    if (!e->known) {
        (void)snprintf(p->unknown, sizeof p->unknown, "%s", e->name);
        return PAGE_UNKNOWN;
    }
    if (!is_wanted(p, e))
        return 0;
    if (p->count == p->max)
        return PAGE_FULL;
    int r = append_workspace(p->list, e);
    p->count += r == 0;
    return r;
}

OPERATION(workspace_list)
{
    const struct wire_workspace_list *q = &m->workspace_list;
    struct page page = {.session = session, .state = q->state, .list = &ret->storage};
    page.max = q->count == 0 || q->count > PAGE_COUNT_MAX ? PAGE_COUNT_MAX : q->count;
    if (q->state > WIRE_WORKSPACE_STOPPED)
        return -EINVAL;
    int r = label_selectors_parse(&q->selectors, &page.selectors);
    struct index *index = session->store->index;
    if (r == 0)
        r = index_walk(index, q->after, false, visit, &page);
    /* When the service has just begun there may be some that it has not read yet. */
    while (r == PAGE_UNKNOWN) {
        r = workspace_read(session->store, page.unknown);
        if (r == 0)
            r = index_walk(index, bytes_of_string(page.unknown), true, visit, &page);
    }
    label_selectors_release(&page.selectors);
    if (r < 0)
        return r;
    ret->message = (struct wire_message){
        .type = WIRE_WORKSPACES,
        .workspaces = {.more = r == PAGE_FULL, .items = wire_list_of(&ret->storage, page.count)}};
    return 0;
}
