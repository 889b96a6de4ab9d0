#include "gateway/observer.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/table.h"
#include "gateway/file.h"

/* So long, and so many reports, what has gone is not told yet, since it may have got another name.
 */
#define PAIR_MS 20
#define PAIR_REPORTS 4

/* A name that the watch knows. */
struct entry {
    struct entry *parent;      /* NULL: the directory where the watch begins */
    struct entry *same;        /* with the same key in by_identity, */
    struct entry *named;       /* and in by_name */
    LIST_ENTRY(entry) sibling; /* in the parent's children */
    LIST_HEAD(, entry) children;
    uint64_t node;
    uint64_t ino;
    uint64_t generation;
    uint32_t type;
    uint32_t mode, uid, gid;
    struct wire_time mtime;
    bool written; /* since that was its time */
    char name[];
};

/* What is to be told. Paths are in one buffer, as offsets, since that moves. */
struct told {
    enum observer_kind kind;
    uint32_t type;
    size_t path, path_len;
    size_t from, from_len;
    uint64_t ino, generation;
};

struct observer {
    struct tree *tree;
    struct upstream_call *call;
    char *base; /* path of the root's */
    char *only; /* NULL, or the one name that is watched */
    bool recursive;
    bool complete;
    bool gone;
    struct entry *root;
    struct wire_attr above; /* of the directory the root is in; ino 0: it has none, */
    uint64_t above_node;
    char name[WIRE_NAME_MAX + 1]; /* and its name there */
    struct table by_identity;     /* of table_hash_pair(ino, generation) */
    struct table by_name;         /* of the parent and the name's hash */
    size_t count;
    struct buffer queue; /* struct told */
    size_t queue_at;
    struct buffer paths;
};

const char *observer_kind_name(enum observer_kind kind)
{
    switch (kind) {
    case OBSERVER_CREATED:
        return "created";
    case OBSERVER_REMOVED:
        return "removed";
    case OBSERVER_MODIFIED:
        return "modified";
    case OBSERVER_ATTRIBUTES:
        return "attributes";
    case OBSERVER_RENAMED:
        return "renamed";
    case OBSERVER_RESYNC:
        return "resync";
    }
    return "unknown";
}

/* --- what is known --------------------------------------------------------------------------- */

static uint64_t name_key(const struct entry *parent, const char *name)
{
    uint64_t hash = hash_end(hash_bytes(HASH_START, name, strlen(name)));
    return table_hash_pair((uint64_t)(uintptr_t)parent, hash);
}

static uint64_t identity_key(uint64_t ino, uint64_t generation)
{
    return table_hash_pair(ino, generation);
}

static struct entry *find_name(const struct observer *w, const struct entry *parent,
                               const char *name)
{
    struct entry *e = table_get(&w->by_name, name_key(parent, name));
    while (e && (e->parent != parent || strcmp(e->name, name) != 0))
        e = e->named;
    return e;
}

/* The first, or (after) the next, with this identity. */
static struct entry *find_identity(const struct observer *w, const struct entry *after,
                                   uint64_t ino, uint64_t generation)
{
    struct entry *e =
        after ? after->same : table_get(&w->by_identity, identity_key(ino, generation));
    while (e && (e->ino != ino || e->generation != generation))
        e = e->same;
    return e;
}

static void note_attr(struct entry *e, const struct wire_attr *attr)
{
    e->mode = attr->mode;
    e->uid = attr->uid;
    e->gid = attr->gid;
    e->mtime = attr->mtime;
    e->written = false;
}

static int add(struct observer *w, struct entry *parent, const char *name, uint64_t node,
               const struct wire_attr *attr, struct entry **ret)
{
    size_t len = strlen(name);
    if (w->count >= OBSERVER_ENTRIES_MAX)
        return -EMSGSIZE;
    struct entry *e = calloc(1, sizeof *e + len + 1);
    void *old = NULL;
    if (!e)
        return -ENOMEM;
    *e = (struct entry){.parent = parent,
                        .node = node,
                        .ino = attr->ino,
                        .generation = attr->generation,
                        .type = attr->mode & S_IFMT};
    memcpy(e->name, name, len + 1);
    note_attr(e, attr);
    LIST_INIT(&e->children);
    uint64_t by_name = name_key(parent, name);
    int r = table_put(&w->by_name, by_name, e, &old);
    if (r < 0) {
        free(e);
        return r;
    }
    e->named = old;
    r = table_put(&w->by_identity, identity_key(e->ino, e->generation), e, &old);
    if (r < 0) {
        if (e->named)
            (void)table_put(&w->by_name, by_name, e->named, NULL);
        else
            (void)table_take(&w->by_name, by_name);
        free(e);
        return r;
    }
    e->same = old;
    if (parent)
        LIST_INSERT_HEAD(&parent->children, e, sibling);
    /* So the service says: a regular file that somebody may have open for writing is none. */
    if (S_ISDIR(attr->mode) && !(attr->flags & WIRE_ATTR_COVERED))
        w->complete = false;
    w->count++;
    *ret = e;
    return 0;
}

static void unlink_named(struct observer *w, struct entry *e)
{
    uint64_t key = name_key(e->parent, e->name);
    struct entry *first = table_get(&w->by_name, key);
    if (first == e && e->named)
        (void)table_put(&w->by_name, key, e->named, NULL); /* in place of what is there */
    else if (first == e)
        (void)table_take(&w->by_name, key);
    else
        for (struct entry *p = first; p; p = p->named)
            if (p->named == e)
                p->named = e->named;
}

static void unlink_same(struct observer *w, struct entry *e)
{
    uint64_t key = identity_key(e->ino, e->generation);
    struct entry *first = table_get(&w->by_identity, key);
    if (first == e && e->same)
        (void)table_put(&w->by_identity, key, e->same, NULL);
    else if (first == e)
        (void)table_take(&w->by_identity, key);
    else
        for (struct entry *p = first; p; p = p->same)
            if (p->same == e)
                p->same = e->same;
}

/* With all that is below it; without recursion, since trees may be deep. */
static void drop(struct observer *w, struct entry *top)
{
    struct entry *e = top;
    for (;;) {
        struct entry *child = LIST_FIRST(&e->children);
        if (child) {
            e = child;
            continue;
        }
        struct entry *parent = e->parent;
        bool last = e == top;
        if (parent)
            LIST_REMOVE(e, sibling);
        unlink_named(w, e);
        unlink_same(w, e);
        tree_forget(w->tree, e->node);
        free(e);
        w->count--;
        if (last)
            return;
        e = parent;
    }
}

/* --- what is told ---------------------------------------------------------------------------- */

/* Appends the entry's path, of which *ret and *ret_len tell where it is. */
static int put_path(struct observer *w, const struct entry *e, size_t *ret, size_t *ret_len)
{
    size_t base = strlen(w->base), len = base;
    for (const struct entry *p = e; p->parent; p = p->parent)
        len += strlen(p->name) + 1;
    if (base == 0 && len > 0)
        len--; /* no slash before the first */
    int r = buffer_reserve(&w->paths, len);
    if (r < 0)
        return r;
    if (len == 0) { /* the workspace itself */
        *ret = *ret_len = 0;
        return 0;
    }
    uint8_t *from = w->paths.data + w->paths.len;
    size_t at = len;
    for (const struct entry *p = e; p->parent; p = p->parent) {
        size_t n = strlen(p->name);
        at -= n;
        memcpy(from + at, p->name, n);
        if (at > 0)
            from[--at] = '/';
    }
    if (base > 0)
        memcpy(from, w->base, base);
    *ret = w->paths.len;
    *ret_len = len;
    w->paths.len += len;
    return 0;
}

static struct told *find_told(const struct observer *w, enum observer_kind kind,
                              const struct entry *e)
{
    struct told *queue = (void *)w->queue.data;
    for (size_t i = w->queue_at; i < w->queue.len / sizeof *queue; i++)
        if (queue[i].kind == kind && queue[i].ino == e->ino && queue[i].generation == e->generation)
            return &queue[i];
    return NULL;
}

static int tell(struct observer *w, enum observer_kind kind, const struct entry *e)
{
    struct told t = {.kind = kind, .type = e->type, .ino = e->ino, .generation = e->generation};
    int r = put_path(w, e, &t.path, &t.path_len);
    return r < 0 ? r : buffer_append(&w->queue, &t, sizeof t);
}

/* What goes here and comes there in one report was renamed: 1. */
static int tell_moved(struct observer *w, enum observer_kind kind, const struct entry *e)
{
    bool came = kind == OBSERVER_CREATED;
    struct told *other = find_told(w, came ? OBSERVER_REMOVED : OBSERVER_CREATED, e);
    size_t path, len;
    if (!other || w->only)
        return tell(w, kind, e);
    int r = put_path(w, e, &path, &len);
    if (r < 0)
        return r;
    other->kind = OBSERVER_RENAMED;
    other->from = came ? other->path : path;
    other->from_len = came ? other->path_len : len;
    other->path = came ? path : other->path;
    other->path_len = came ? len : other->path_len;
    return 1;
}

/* --- looking --------------------------------------------------------------------------------- */

struct scan {
    struct observer *watch;
    struct entry *directory;
    struct buffer directories; /* struct entry *: to be looked into */
    bool quiet;
};

/* 1: the entry is new, and has the reference. */
static int on_entry(void *context, const char *name, uint32_t type, uint64_t node,
                    const struct wire_attr *attr)
{
    struct scan *s = context;
    struct observer *w = s->watch;
    struct entry *e;
    if (!attr || find_name(w, s->directory, name))
        return 0;
    int r = add(w, s->directory, name, node, attr, &e);
    if (r == 0 && !s->quiet && tell(w, OBSERVER_CREATED, e) < 0)
        return -ENOMEM;
    if (r == 0 && w->recursive && e->type == S_IFDIR)
        r = buffer_append(&s->directories, &e, sizeof e);
    return r < 0 ? r : 1;
}

/* What is in a directory, and below it, becomes known. One that has gone meanwhile is empty: that
 * it has gone is reported. */
static int scan_below(struct observer *w, struct entry *directory, bool quiet, struct failure *f)
{
    struct scan s = {.watch = w, .quiet = quiet};
    int r = buffer_append(&s.directories, &directory, sizeof directory);
    while (r == 0 && s.directories.len > 0) {
        uint64_t cookie = 0;
        bool end;
        s.directories.len -= sizeof s.directory;
        memcpy(&s.directory, s.directories.data + s.directories.len, sizeof s.directory);
        r = file_list(w->tree, s.directory->node, &cookie, SIZE_MAX, on_entry, &s, &end, f);
        if (r == -ESTALE || r == -ENOENT)
            r = 0;
    }
    buffer_release(&s.directories);
    return r;
}

/* What a name leads to; node 0: nothing. The reference is the caller's. */
static int look_up(struct observer *w, uint64_t directory, const char *name, uint64_t *ret_node,
                   struct wire_attr *ret, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {.type = WIRE_LOOKUP,
                                   .lookup = {.parent = directory, .name = bytes_of_string(name)}};
    int r = tree_call(w->tree, &m, &reply, f);
    *ret_node = 0;
    if (r == -ENOENT || r == -ESTALE)
        return 0;
    if (r < 0)
        return r;
    *ret_node = reply->message.entry.node;
    *ret = reply->message.entry.attr;
    return 0;
}

/* --- changes --------------------------------------------------------------------------------- */

static int name_changed(struct observer *w, struct entry *directory, const char *name,
                        struct failure *f)
{
    uint64_t node;
    struct wire_attr attr;
    if ((directory != w->root && !w->recursive) || (w->only && strcmp(name, w->only) != 0))
        return 0;
    int r = look_up(w, directory->node, name, &node, &attr, f);
    if (r < 0)
        return r;
    struct entry *e = find_name(w, directory, name);
    if (e && node && e->ino == attr.ino && e->generation == attr.generation) {
        tree_forget(w->tree, node);
        return 0;
    }
    if (e) {
        /* In whose place something else is: that is told. */
        r = node ? 0 : tell_moved(w, OBSERVER_REMOVED, e);
        drop(w, e);
    }
    if (r < 0 || node == 0)
        return r < 0 ? r : 0;
    r = add(w, directory, name, node, &attr, &e);
    if (r < 0) {
        tree_forget(w->tree, node);
        return r;
    }
    int moved = tell_moved(w, OBSERVER_CREATED, e);
    if (moved < 0)
        return moved;
    return e->type == S_IFDIR && w->recursive ? scan_below(w, e, moved, f) : 0;
}

/* The place leads elsewhere, or nowhere. */
static int place_changed(struct observer *w, struct failure *f)
{
    uint64_t node;
    struct wire_attr attr;
    int r = look_up(w, w->above_node, w->name, &node, &attr, f);
    if (r < 0)
        return r;
    tree_forget(w->tree, node);
    if (node && attr.ino == w->root->ino && attr.generation == w->root->generation)
        return 0;
    w->gone = true;
    return tell(w, OBSERVER_REMOVED, w->root);
}

static int attributes_changed(struct observer *w, struct entry *e, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {.type = WIRE_GETATTR, .getattr.node = e->node};
    int r = tree_call(w->tree, &m, &reply, f);
    if (r == -ESTALE || r == -ENOENT || (r == 0 && reply->message.attrs.attr.nlink == 0))
        return 0; /* its name tells */
    if (r < 0)
        return r;
    const struct wire_attr *a = &reply->message.attrs.attr;
    bool time = !e->written && (a->mtime.sec != e->mtime.sec || a->mtime.nsec != e->mtime.nsec) &&
                e->type != S_IFDIR;
    bool told = a->mode != e->mode || a->uid != e->uid || a->gid != e->gid || time;
    note_attr(e, a);
    return told ? tell(w, OBSERVER_ATTRIBUTES, e) : 0;
}

static int resync(struct observer *w, struct failure *f)
{
    struct entry *e;
    const struct told t = {.kind = OBSERVER_RESYNC, .type = S_IFDIR};
    while ((e = LIST_FIRST(&w->root->children)))
        drop(w, e);
    w->queue.len = w->queue_at * sizeof t;
    int r = buffer_append(&w->queue, &t, sizeof t);
    if (r == 0)
        r = w->only ? name_changed(w, w->root, w->only, f) : scan_below(w, w->root, true, f);
    if (w->only)
        w->queue.len = (w->queue_at + 1) * sizeof t;
    return r;
}

static int take_change(struct observer *w, const struct wire_change *c, struct failure *f)
{
    char name[WIRE_NAME_MAX + 1];
    int r = 0;
    if (c->kinds & WIRE_CHANGE_ALL)
        return resync(w, f);
    (void)snprintf(name, sizeof name, "%.*s", (int)c->name.len, (const char *)c->name.data);
    if ((c->kinds & WIRE_CHANGE_NAME) && w->above.ino && c->ino == w->above.ino &&
        c->generation == w->above.generation && strcmp(name, w->name) == 0)
        return place_changed(w, f);
    struct entry *e = find_identity(w, NULL, c->ino, c->generation);
    /* A directory has one name; and what its change drops may be others of this chain. */
    if (e && e->type == S_IFDIR) {
        if (c->kinds & WIRE_CHANGE_NAME)
            r = name_changed(w, e, name, f);
        if (r == 0 && (c->kinds & WIRE_CHANGE_ATTR))
            r = attributes_changed(w, e, f);
        return r;
    }
    for (; r == 0 && e; e = find_identity(w, e, c->ino, c->generation)) {
        if (c->kinds & WIRE_CHANGE_CONTENT) {
            e->written = true;
            r = tell(w, OBSERVER_MODIFIED, e);
        } else if (c->kinds & WIRE_CHANGE_ATTR) {
            r = attributes_changed(w, e, f);
        }
    }
    return r;
}

static int take_changes(struct observer *w, const struct wire_changes *changes, struct failure *f)
{
    uint32_t offset = 0;
    struct bytes element;
    int r = 0;
    f->error = 0;
    while (r == 0 && !w->gone && wire_list_next(&changes->items, &offset, &element)) {
        struct wire_message m;
        if (wire_decode(WIRE_CHANGE, element, &m) < 0)
            return failure_set(f, -EPROTO, "the service reports a change that cannot be read");
        r = take_change(w, &m.change, f);
    }
    if (r == -EMSGSIZE)
        return failure_set(f, r, "there are more than %d files to watch", OBSERVER_ENTRIES_MAX);
    return r < 0 && f->error != r ? failure_set(f, r, "%s", strerror(-r)) : r;
}

static bool take_told(struct observer *w, struct observer_event *ret)
{
    const struct told *queue = (const void *)w->queue.data;
    if (w->queue_at >= w->queue.len / sizeof *queue)
        return false;
    const struct told *t = &queue[w->queue_at++];
    *ret = (struct observer_event){.kind = t->kind, .type = t->type};
    if (t->path_len > 0)
        ret->path = bytes_of(w->paths.data + t->path, t->path_len);
    if (t->from_len > 0)
        ret->from = bytes_of(w->paths.data + t->from, t->from_len);
    return true;
}

static bool has_told(const struct observer *w, enum observer_kind kind)
{
    const struct told *queue = (const void *)w->queue.data;
    for (size_t i = w->queue_at; i < w->queue.len / sizeof *queue; i++)
        if (queue[i].kind == kind)
            return true;
    return false;
}

/* Waits for one report. 0, -EAGAIN. */
static int take_report(struct observer *w, int timeout_ms, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *item = NULL;
    int r = upstream_next(w->call, timeout_ms, &item);
    if (r == -EAGAIN)
        return r;
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    if (r == 0) {
        r = upstream_finish(take_ptr(w->call), &item, f);
        w->gone = true;
        return r < 0 ? r : failure_set(f, -ESHUTDOWN, "the service ends the report");
    }
    return item->message.type == WIRE_CHANGES ? take_changes(w, &item->message.changes, f) : 0;
}

int observer_next(struct observer *w, int timeout_ms, struct observer_event *ret,
                  struct failure *ret_failure)
{
    uint64_t deadline =
        timeout_ms < 0 ? UINT64_MAX : clock_monotonic_ns() + (uint64_t)timeout_ms * NSEC_PER_MSEC;
    while (!take_told(w, ret)) {
        uint64_t now = clock_monotonic_ns();
        if (w->gone)
            return failure_set(ret_failure, -ENOENT, "what was watched is gone");
        w->queue.len = w->queue_at = w->paths.len = 0;
        int left = timeout_ms < 0   ? -1
                   : now < deadline ? (int)((deadline - now) / NSEC_PER_MSEC)
                                    : 0;
        int r = take_report(w, left, ret_failure);
        /* The halves of a renaming may be in two reports. */
        for (int i = 0; r == 0 && !w->gone && has_told(w, OBSERVER_REMOVED) && i < PAIR_REPORTS;
             i++)
            r = take_report(w, PAIR_MS, ret_failure);
        if (r < 0 && (r != -EAGAIN || w->queue.len == 0))
            return r;
    }
    return 0;
}

/* --- life ------------------------------------------------------------------------------------ */

bool observer_is_complete(const struct observer *w)
{
    return w->complete;
}

static int subscribe(struct observer *w, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *first = NULL;
    struct upstream *u = tree_upstream(w->tree);
    const struct wire_message m = {.type = WIRE_SUBSCRIBE,
                                   .subscribe.flags = WIRE_SUBSCRIBE_OBSERVES};
    if (!(upstream_peer(u)->features & WIRE_FEATURE_CHANGES))
        return failure_set(f, -EOPNOTSUPP, "this service does not notice changes");
    int r = upstream_start(u, &m, &w->call);
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    /* What changes after the first report, which is empty, is in the next. */
    r = upstream_next(w->call, -1, &first);
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    if (r == 0) {
        r = upstream_finish(take_ptr(w->call), &first, f);
        return r < 0 ? r : failure_set(f, -EPROTO, "the service reports no changes");
    }
    return 0;
}

static int note_above(struct observer *w, const struct place *p, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {.type = WIRE_GETATTR, .getattr.node = p->directory};
    int r = tree_call(w->tree, &m, &reply, f);
    if (r < 0)
        return r;
    w->above = reply->message.attrs.attr;
    w->above_node = p->directory;
    (void)snprintf(w->name, sizeof w->name, "%s", p->name);
    return 0;
}

/* The root: the place, or (a file) the directory it is in. */
static int begin(struct observer *w, const struct place *p, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    bool file = !S_ISDIR(p->attr.mode);
    const struct wire_message m = {.type = WIRE_GETATTR,
                                   .getattr.node = file ? p->directory : p->node};
    size_t len = p->path.len;
    if (file)
        len = len > strlen(p->name) ? len - strlen(p->name) - 1 : 0;
    w->base = strndup(p->path.data ? (const char *)p->path.data : "", len);
    w->only = file ? strdup(p->name) : NULL;
    if (!w->base || (file && !w->only))
        return failure_set(f, -ENOMEM, "out of memory");
    int r = tree_call(w->tree, &m, &reply, f);
    if (r < 0)
        return r;
    r = add(w, NULL, "", 0, &reply->message.attrs.attr, &w->root);
    if (r < 0)
        return failure_set(f, r, "out of memory");
    w->root->node = m.getattr.node; /* the tree holds it */
    if (!file && p->directory)
        r = note_above(w, p, f);
    if (r < 0)
        return r;
    r = file ? name_changed(w, w->root, w->only, f) : scan_below(w, w->root, true, f);
    w->queue.len = 0;
    if (r == -EMSGSIZE)
        return failure_set(f, r, "there are more than %d files to watch", OBSERVER_ENTRIES_MAX);
    return r < 0 ? failure_set(f, r, "%s", strerror(-r)) : 0;
}

int observer_open(struct tree *t, const struct place *p, bool recursive, struct observer **ret,
                  struct failure *ret_failure)
{
    _cleanup_observer_ struct observer *w = calloc(1, sizeof *w);
    if (!w)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    w->tree = t;
    w->recursive = recursive && S_ISDIR(p->attr.mode);
    w->complete = true;
    if (p->node == 0)
        return failure_set(ret_failure, -ENOENT, "%s", strerror(ENOENT));
    int r = subscribe(w, ret_failure);
    if (r == 0)
        r = begin(w, p, ret_failure);
    if (r < 0)
        return r;
    *ret = take_ptr(w);
    return 0;
}

void observer_close(struct observer *w)
{
    if (!w)
        return;
    upstream_drop(w->call, 0);
    if (w->root) {
        w->root->node = 0;
        drop(w, w->root);
    }
    table_release(&w->by_identity);
    table_release(&w->by_name);
    buffer_release(&w->queue);
    buffer_release(&w->paths);
    free(w->base);
    free(w->only);
    free(w);
}
