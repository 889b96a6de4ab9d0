#include "store/transfer.h"

#include "base/dir.h"
#include "base/log.h"
#include "store/changes.h"
#include "store/file_copy.h"
#include "store/grip.h"
#include "store/restore.h"
#include "store/rules_file.h"
#include "store/snapshot.h"
#include "store/tree_file.h"
#include "store/workspace_source.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static int explain(struct reply *ret, const struct failure *f, int error)
{
    if (f->text[0])
        (void)snprintf(ret->text, sizeof ret->text, "%.*s", (int)sizeof ret->text - 1, f->text);
    return error;
}

static bool shows(const struct transfer *t, struct bytes thread_id)
{
    return !t->shows || t->shows(t->shows_context, thread_id);
}

static struct tree_stop stop_of(const struct transfer *t)
{
    return (struct tree_stop){.cancelled = t->cancelled, .context = t->context};
}

static bool was_removed(struct workspace *workspace)
{
    store_lock(workspace->store);
    bool removed = workspace->removed;
    store_unlock(workspace->store);
    return removed;
}

/* A snapshot of a workspace that the caller may know of. */
static int find_snapshot(struct store *store, const struct transfer *t, struct bytes id,
                         struct snapshot *ret_snapshot, struct snapshot_use **ret)
{
    int r = snapshot_open(store, id, ret);
    if (r < 0)
        return r;
    r = snapshot_read(store, (*ret)->id, ret_snapshot);
    if (r == 0 &&
        !shows(t, bytes_of(ret_snapshot->meta.thread_id, ret_snapshot->meta.thread_id_len)))
        r = -ENOENT;
    return r;
}

static int explain_snapshot(struct reply *ret, int error)
{
    static const struct failure missing = {.text = "no such snapshot; see `berth snapshot ls`"};
    static const struct failure damaged = {.text = "the snapshot is damaged"};
    return explain(ret, error == -EIO ? &damaged : &missing, error);
}

/* --- export ------------------------------------------------------------------------------ */

struct sending {
    const struct transfer *transfer;
    uint64_t total;
    const struct visibility_view *view; /* NULL: nothing is hidden */
    struct tree_batch *batch;           /* with a view: what is left of the parts */
    bool dropped;                       /* the last entry was, and so is what follows of it */
    bool own;
};

static int send_part(void *context, const struct wire_list *items)
{
    const struct sending *s = context;
    const struct wire_message m = {.type = WIRE_TREE_OUT,
                                   .tree_out = {.total = s->total, .items = *items}};
    return s->transfer->send(s->transfer->context, &m);
}

/* What may be seen of a part that was written when nobody asked for whom. */
static int filter_part(void *context, const struct wire_list *items)
{
    struct sending *s = context;
    struct bytes element;
    uint32_t offset = 0;
    int r = 0;
    while (r == 0 && wire_list_next(items, &offset, &element)) {
        struct wire_message m;
        if (wire_decode(WIRE_TREE_ITEM, element, &m) < 0)
            return -EIO;
        const struct wire_tree_item *item = &m.tree_item;
        if (item->kind < WIRE_ITEM_DATA)
            s->dropped =
                tree_hides(s->view, item->path, item->kind == WIRE_ITEM_DIRECTORY) ||
                (item->kind == WIRE_ITEM_HARD_LINK && tree_hides(s->view, item->value, false));
        if (s->dropped || (item->kind == WIRE_ITEM_XATTR &&
                           (item->path.len < 5 || memcmp(item->path.data, "user.", 5) != 0)))
            continue;
        r = tree_batch_add(s->batch, item);
    }
    return r;
}

/* The rules that hold for whoever asks for files that were of this workspace. */
static int open_rules(struct store *store, int directory_fd, struct visibility_view *ret)
{
    int r = rules_file_read(directory_fd, &ret->sources[VISIBILITY_WORKSPACE]);
    if (r < 0)
        return r;
    store_lock(store);
    if (store->rules)
        ret->sources[VISIBILITY_SERVICE] = visibility_rules_ref(store->rules);
    store_unlock(store);
    return 0;
}

static void close_rules(struct visibility_view *view)
{
    for (size_t i = 0; i < VISIBILITY_SOURCES; i++)
        visibility_rules_unref(view->sources[i]);
}
#define _cleanup_rules_ _cleanup_(close_rules)

static int export_tree(struct store *store, const struct transfer *t, int tree_fd, uint64_t total,
                       const struct visibility_view *view, struct failure *f)
{
    struct sending sending = {.transfer = t, .total = total};
    const struct tree_sink sink = {.part = send_part, .context = &sending};
    const struct tree_reader_options options = {.openat2_missing = store->openat2_missing,
                                                .view = view};
    const struct tree_stop stop = stop_of(t);
    struct tree_counts counts;
    return tree_send(tree_fd, &options, false, &sink, &stop, &counts, f);
}

static int export_file(const struct transfer *t, int file_fd, uint64_t total,
                       const struct visibility_view *view, struct failure *f)
{
    struct tree_batch batch = {0};
    struct sending sending = {.transfer = t, .total = total, .view = view, .batch = &batch};
    const struct tree_sink sink = {.part = filter_part, .context = &sending};
    const struct tree_stop stop = stop_of(t);
    batch.sink = (struct tree_sink){.part = send_part, .context = &sending};
    int r = tree_file_read(file_fd, &sink, &stop);
    if (r == 0)
        r = tree_batch_flush(&batch);
    tree_batch_release(&batch);
    return r < 0 ? failure_set(f, r, "%s", r == -EIO ? "the snapshot is damaged" : strerror(-r))
                 : 0;
}

static int export_snapshot(struct store *store, const struct transfer *t, struct bytes id,
                           struct reply *ret)
{
    _cleanup_snapshot_use_ struct snapshot_use *use = NULL;
    _cleanup_snapshot_ struct snapshot s = {0};
    _cleanup_rules_ struct visibility_view view = {0};
    struct failure f = {0};
    int r = find_snapshot(store, t, id, &s, &use);
    if (r == 0)
        r = open_rules(store, use->fd, &view);
    if (r < 0)
        return explain_snapshot(ret, r);
    r = use->tree_fd >= 0 ? export_tree(store, t, use->tree_fd, s.size, &view, &f)
                          : export_file(t, use->file_fd, s.size, &view, &f);
    return r < 0 ? explain(ret, &f, r) : 0;
}

static int export_workspace(struct store *store, const struct transfer *t,
                            const struct wire_tree_export *m, struct reply *ret)
{
    _cleanup_workspace_ struct workspace *w = NULL;
    _cleanup_rules_ struct visibility_view view = {0};
    struct failure f = {0};
    int r = store_workspace_find(store, m->workspace, m->workspace_flags, &w);
    if (r < 0)
        return r;
    store_lock(store);
    view.sources[VISIBILITY_SERVICE] = store->rules ? visibility_rules_ref(store->rules) : NULL;
    view.sources[VISIBILITY_WORKSPACE] = w->rules ? visibility_rules_ref(w->rules) : NULL;
    store_unlock(store);
    r = export_tree(store, t, w->tree_fd, 0, &view, &f);
    if (r == 0 && was_removed(w))
        r = failure_set(&f, -ESTALE, "the workspace was removed meanwhile");
    return r < 0 ? explain(ret, &f, r) : 0;
}

static int do_export(struct store *store, const struct transfer *t, const struct wire_message *m,
                     struct reply *ret)
{
    const struct wire_tree_export *q = &m->tree_export;
    if ((q->workspace.len == 0) == (q->snapshot.len == 0))
        return -EINVAL;
    int r = q->snapshot.len ? export_snapshot(store, t, q->snapshot, ret)
                            : export_workspace(store, t, q, ret);
    if (r == 0)
        ret->message = (struct wire_message){.type = WIRE_OK};
    return r;
}

/* --- snapshots ---------------------------------------------------------------------------- */

static int answer_snapshot(const struct snapshot *s, struct reply *ret)
{
    struct wire_snapshot m = snapshot_describe(s);
    size_t id_len = m.id.len, thread_len = m.thread_id.len, labels_len = m.labels.len;
    int r = buffer_append(&ret->storage, m.id.data, id_len);
    if (r == 0)
        r = buffer_append(&ret->storage, m.thread_id.data, thread_len);
    if (r == 0)
        r = buffer_append(&ret->storage, m.labels.data, labels_len);
    if (r < 0)
        return r;
    m.id = bytes_of(ret->storage.data, id_len);
    m.thread_id = bytes_of(ret->storage.data + id_len, thread_len);
    m.labels = bytes_of(ret->storage.data + id_len + thread_len, labels_len);
    ret->message = (struct wire_message){.type = WIRE_SNAPSHOT, .snapshot = m};
    return 0;
}

static int do_snapshot_create(struct store *store, const struct transfer *t,
                              const struct wire_message *m, struct reply *ret)
{
    const struct wire_snapshot_create *q = &m->snapshot_create;
    _cleanup_workspace_ struct workspace *w = NULL;
    _cleanup_snapshot_ struct snapshot s = {0};
    const struct tree_stop stop = stop_of(t);
    struct failure f = {0};
    if (q->flags & ~(uint32_t)WIRE_SNAPSHOT_LIVE)
        return -EINVAL;
    int r = store_workspace_find(store, q->workspace, q->workspace_flags, &w);
    if (r < 0)
        return r;
    r = snapshot_take(store, w, q, &stop, &s, &f);
    return r < 0 ? explain(ret, &f, r) : answer_snapshot(&s, ret);
}

static int do_snapshot_remove(struct store *store, const struct transfer *t,
                              const struct wire_message *m, struct reply *ret)
{
    _cleanup_snapshot_ struct snapshot s = {0};
    char id[WIRE_SNAPSHOT_ID_MAX + 1];
    struct bytes q = m->snapshot_remove.id;
    memcpy(id, q.data, q.len);
    id[q.len] = '\0';
    int r = memchr(id, '\0', q.len) ? -ENOENT : snapshot_read(store, id, &s);
    /* One that is damaged can go, but who may know of it is not known. */
    if (r == 0 ? !shows(t, bytes_of(s.meta.thread_id, s.meta.thread_id_len))
               : r == -EIO && t->shows)
        r = -ENOENT;
    if (r == 0 || r == -EIO)
        r = snapshot_remove(store, q);
    if (r == -EBUSY)
        (void)snprintf(ret->text, sizeof ret->text, "the snapshot is being read");
    else if (r == -ENOENT)
        return explain_snapshot(ret, r);
    if (r == 0)
        ret->message = (struct wire_message){.type = WIRE_OK};
    return r;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names in snapshots/ after `after`, sorted; pointers into *ret_text. */
static int read_names(struct store *store, struct bytes after, struct buffer *ret_text,
                      char ***ret_names, size_t *ret_count)
{
    _cleanup_dir_ DIR *stream = NULL;
    char last[WIRE_SNAPSHOT_ID_MAX + 1] = "";
    size_t count = 0;
    memcpy(last, after.data ? (const char *)after.data : "", after.len);
    const struct dirent *entry;
    int r = dir_open(store->snapshots_fd, ".", &stream);
    while (r >= 0 && (r = dir_next(stream, &entry)) == 1) {
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, last) <= 0)
            continue;
        r = buffer_append(ret_text, entry->d_name, strlen(entry->d_name) + 1);
        count++;
    }
    if (r < 0)
        return r;
    char **names = malloc((count + 1) * sizeof *names);
    if (!names)
        return -ENOMEM;
    char *at = (char *)ret_text->data;
    for (size_t i = 0; i < count; i++, at += strlen(at) + 1)
        names[i] = at;
    if (count > 0)
        qsort(names, count, sizeof *names, compare_names);
    *ret_names = names;
    *ret_count = count;
    return 0;
}

/* 1: it was appended; 0: it has no place; -ENOENT: it is not to be listed. */
static int list_one(struct store *store, const struct transfer *t, const char *id,
                    struct bytes thread_id, struct buffer *list)
{
    _cleanup_snapshot_ struct snapshot s = {0};
    _cleanup_buffer_ struct buffer encoded = {0};
    int r = snapshot_read(store, id, &s);
    if (r < 0)
        return r == -ENOMEM ? r : -ENOENT;
    struct bytes of = bytes_of(s.meta.thread_id, s.meta.thread_id_len);
    if (!shows(t, of) || (thread_id.len > 0 && !bytes_equal(of, thread_id)))
        return -ENOENT;
    const struct wire_message m = {.type = WIRE_SNAPSHOT, .snapshot = snapshot_describe(&s)};
    r = wire_encode(&encoded, &m);
    if (r < 0)
        return r;
    if (list->len + sizeof(uint32_t) + encoded.len > SNAPSHOT_PAGE_SIZE_MAX)
        return 0;
    r = wire_list_append(list, buffer_view(&encoded));
    return r < 0 ? r : 1;
}

static int do_snapshot_list(struct store *store, const struct transfer *t,
                            const struct wire_message *m, struct reply *ret)
{
    const struct wire_snapshot_list *q = &m->snapshot_list;
    _cleanup_buffer_ struct buffer text = {0};
    _cleanup_free_ char **names = NULL;
    size_t max = q->count && q->count < SNAPSHOT_PAGE_MAX ? q->count : SNAPSHOT_PAGE_MAX;
    size_t count = 0, i;
    uint32_t listed = 0;
    struct bytes of = q->workspace;
    _cleanup_workspace_ struct workspace *w = NULL;
    bool more = false;
    int r = 0;
    if (of.len > 0 && (q->workspace_flags & WIRE_WORKSPACE_BY_NAME)) {
        r = store_workspace_find(store, of, q->workspace_flags, &w);
        of = r == 0 ? workspace_thread_id(w) : of;
    }
    if (r == 0)
        r = read_names(store, q->after, &text, &names, &count);
    for (i = 0; r >= 0 && i < count && !more; i++) {
        r = list_one(store, t, names[i], of, &ret->storage);
        listed += r == 1;
        if (r == 0 || (listed == max && i + 1 < count))
            more = true;
        r = r == -ENOENT ? 0 : r;
    }
    if (r < 0)
        return r;
    ret->message = (struct wire_message){
        .type = WIRE_SNAPSHOTS,
        .snapshots = {.more = more, .items = wire_list_of(&ret->storage, listed)}};
    return 0;
}

/* --- restore ------------------------------------------------------------------------------ */

static int build_restore(struct store *store, const struct transfer *t, const struct workspace *w,
                         const char *temporary, const struct snapshot_use *use, struct failure *f)
{
    const struct workspace_source source = {
        .tree_fd = use->tree_fd, .file_fd = use->file_fd, .rules_fd = -1, .transfer = t};
    if (mkdirat(store->tmp_fd, temporary, 0700) < 0)
        return failure_set(f, -errno, "cannot make its directory: %s", strerror(errno));
    _cleanup_close_ int fd =
        openat(store->tmp_fd, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_close_ int workspace =
        openat(store->workspaces_fd, w->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || workspace < 0)
        return failure_set(f, -errno, "cannot open its directory: %s", strerror(errno));
    int r = file_copy_project(workspace, fd);
    if (r < 0)
        return failure_set(f, r, "cannot put it into the workspace's quota: %s", strerror(-r));
    return workspace_source_build(store, &source, fd, f);
}

static int restore(struct store *store, const struct transfer *t, struct workspace *w,
                   const struct snapshot_use *use, struct failure *f)
{
    char temporary[32];
    (void)snprintf(temporary, sizeof temporary, "restore-%u", w->slot);
    int r = build_restore(store, t, w, temporary, use, f);
    if (r < 0) {
        store_remove_built(store, temporary);
        return r;
    }
    r = restore_run(store, w, temporary);
    if (r < 0)
        (void)failure_set(f, r, "cannot put the snapshot's files in their place: %s", strerror(-r));
    if (r < 0 && r != -EIO)
        store_remove_built(store, temporary);
    /* Nobody is told file by file. */
    changes_note_all(store);
    grip_trim(store, 0);
    return r;
}

static int do_restore(struct store *store, const struct transfer *t, const struct wire_message *m,
                      struct reply *ret)
{
    const struct wire_workspace_restore *q = &m->workspace_restore;
    _cleanup_workspace_ struct workspace *w = NULL;
    _cleanup_snapshot_use_ struct snapshot_use *use = NULL;
    _cleanup_snapshot_ struct snapshot s = {0};
    struct failure f = {0};
    int r = store_workspace_find(store, q->workspace, q->workspace_flags, &w);
    if (r < 0)
        return r;
    r = find_snapshot(store, t, q->snapshot, &s, &use);
    if (r < 0)
        return explain_snapshot(ret, r);
    if (!workspace_claim(w)) {
        (void)failure_set(&f, -EBUSY, "the workspace is being restored, or removed");
        return explain(ret, &f, -EBUSY);
    }
    r = restore(store, t, w, use, &f);
    workspace_disclaim(w);
    return r < 0 ? explain(ret, &f, r) : workspace_answer(store, w, false, ret);
}

/* --- making workspaces --------------------------------------------------------------------- */

static int do_create(struct store *store, const struct transfer *t, const struct wire_message *m,
                     struct reply *ret)
{
    const struct wire_workspace_create *q = &m->workspace_create;
    _cleanup_snapshot_use_ struct snapshot_use *use = NULL;
    _cleanup_snapshot_ struct snapshot s = {0};
    _cleanup_workspace_ struct workspace *from = NULL;
    _cleanup_workspace_ struct workspace *w = NULL;
    _cleanup_close_ int rules_fd = -1;
    struct workspace_source source = {.tree_fd = -1, .file_fd = -1, .rules_fd = -1, .transfer = t};
    struct failure f = {0};
    int r = 0;
    if (q->flags & WIRE_WORKSPACE_FROM_SNAPSHOT) {
        r = find_snapshot(store, t, q->source, &s, &use);
        if (r < 0)
            return explain_snapshot(ret, r);
        source.tree_fd = use->tree_fd;
        source.file_fd = use->file_fd;
        source.rules_fd = use->fd;
    } else if (q->flags & WIRE_WORKSPACE_FROM_WORKSPACE) {
        r = q->source.len == 0 || !shows(t, q->source)
                ? -ENOENT
                : store_workspace_find(store, q->source, 0, &from);
        if (r == 0) {
            rules_fd = openat(store->workspaces_fd, from->name,
                              O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            r = rules_fd < 0 ? -errno : 0;
        }
        if (r < 0) {
            (void)failure_set(&f, r, "there is no workspace to start from");
            return explain(ret, &f, r);
        }
        source.tree_fd = from->tree_fd;
        source.rules_fd = rules_fd;
        source.workspace = from;
    }
    bool created;
    r = workspace_create(store, q, &source, &w, &created, &f);
    return r < 0 ? explain(ret, &f, r) : workspace_answer(store, w, created, ret);
}

/* --- all ------------------------------------------------------------------------------------ */

bool store_transfers(const struct wire_message *m)
{
    const uint32_t sources =
        WIRE_WORKSPACE_FROM_STREAM | WIRE_WORKSPACE_FROM_SNAPSHOT | WIRE_WORKSPACE_FROM_WORKSPACE;
    if (m->type == WIRE_WORKSPACE_CREATE)
        return m->workspace_create.flags & sources;
    return m->type == WIRE_TREE_EXPORT || m->type == WIRE_SNAPSHOT_CREATE ||
           m->type == WIRE_SNAPSHOT_LIST || m->type == WIRE_SNAPSHOT_REMOVE ||
           m->type == WIRE_WORKSPACE_RESTORE;
}

int store_transfer(struct store *store, const struct transfer *t, const struct wire_message *m,
                   struct reply *ret)
{
    static const struct {
        enum wire_type type;
        int (*run)(struct store *store, const struct transfer *t, const struct wire_message *m,
                   struct reply *ret);
    } operations[] = {
        {WIRE_WORKSPACE_CREATE, do_create},         {WIRE_TREE_EXPORT, do_export},
        {WIRE_SNAPSHOT_CREATE, do_snapshot_create}, {WIRE_SNAPSHOT_LIST, do_snapshot_list},
        {WIRE_SNAPSHOT_REMOVE, do_snapshot_remove}, {WIRE_WORKSPACE_RESTORE, do_restore},
    };
    ret->text[0] = '\0';
    ret->storage.len = 0;
    for (size_t i = 0; i < ARRAY_SIZE(operations); i++)
        if (operations[i].type == m->type)
            return operations[i].run(store, t, m, ret);
    return -EOPNOTSUPP;
}
