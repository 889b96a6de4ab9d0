/* Routes of files but for their content: /v1/workspaces/{id}/stat, list, directories, move, and
 * DELETE of files. */
#include "gateway/files.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base64.h"
#include "gateway/conditions.h"
#include "gateway/documents.h"
#include "gateway/file.h"
#include "gateway/routes.h"

/* Entries of one answer of a listing. Bounds its memory, about 400 bytes each. */
#define LIST_COUNT_DEFAULT 1000
#define LIST_COUNT_MAX 10000
#define LIST_DEPTH_MAX 64

#define BODY_MAX 65536

int files_open(struct exchange *x, struct tree **ret, struct failure *ret_failure)
{
    struct upstream *u;
    int r = exchange_upstream(x, &u, ret_failure);
    return r < 0 ? r : tree_open(u, exchange_param(x, 0), 0, ret, ret_failure);
}

int files_place(struct exchange *x, struct tree *t, unsigned flags, struct place *ret,
                struct failure *ret_failure)
{
    return path_walk(t, exchange_param(x, 1), flags, ret, ret_failure);
}

int files_query_flag(struct exchange *x, const char *name, bool *ret, struct failure *ret_failure)
{
    const char *value = exchange_query(x, name);
    *ret = value && (!*value || strcmp(value, "true") == 0 || strcmp(value, "1") == 0);
    if (value && !*ret && strcmp(value, "false") != 0 && strcmp(value, "0") != 0)
        return failure_set(ret_failure, -EINVAL, "%s is true or false", name);
    return 0;
}

static bool holds(void *context, const struct wire_attr *attr)
{
    const struct files_condition *c = context;
    char tag[FILE_TAG_SIZE] = "";
    if (attr)
        file_tag(attr, tag);
    if (c->match && !(attr && conditions_tag_listed(c->match, tag, true)))
        return false;
    return !(c->none && attr && conditions_tag_listed(c->none, tag, false));
}

int files_condition(struct exchange *x, struct files_condition *store,
                    const struct file_condition **ret, struct failure *f)
{
    *store = (struct files_condition){.condition = {.holds = holds, .context = store}};
    int r = exchange_tags(x, "if-match", &store->match, f);
    if (r == 0)
        r = exchange_tags(x, "if-none-match", &store->none, f);
    *ret = store->match || store->none ? &store->condition : NULL;
    return r;
}

/* --- entries --------------------------------------------------------------------------------- */

const char *files_type_name(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return "file";
    case S_IFDIR:
        return "directory";
    case S_IFLNK:
        return "symlink";
    case S_IFIFO:
        return "fifo";
    case S_IFSOCK:
        return "socket";
    case S_IFCHR:
        return "character device";
    case S_IFBLK:
        return "block device";
    }
    return "unknown";
}

int files_set_bytes(json_t *object, const char *name, struct bytes value)
{
    char key[64];
    _cleanup_buffer_ struct buffer text = {0};
    json_t *s = value.len ? json_stringn((const char *)value.data, value.len) : json_string("");
    if (s)
        return json_object_set_new(object, name, s) < 0 ? -ENOMEM : 0;
    if (base64_append(&text, BASE64, value) < 0)
        return -ENOMEM;
    (void)snprintf(key, sizeof key, "%s_base64", name);
    return json_object_set_new(object, name, json_null()) < 0 ||
                   json_object_set_new(object, key,
                                       json_stringn((const char *)text.data, text.len)) < 0
               ? -ENOMEM
               : 0;
}

json_t *files_time_json(const struct wire_time *t)
{
    char text[64];
    struct tm tm;
    time_t sec = (time_t)t->sec;
    if (!gmtime_r(&sec, &tm))
        return json_null();
    (void)snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%09uZ", tm.tm_year + 1900,
                   tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, t->nsec);
    return json_string(text);
}

json_t *files_entry_json(struct bytes name, struct bytes path, const struct wire_attr *attr,
                         const struct buffer *target)
{
    char mode[16], tag[FILE_TAG_SIZE];
    (void)snprintf(mode, sizeof mode, "%04o", attr->mode & 07777);
    file_tag(attr, tag);
    json_t *o = json_object();
    if (o && files_set_bytes(o, "name", name) == 0 && files_set_bytes(o, "path", path) == 0 &&
        json_object_set_new(o, "type", json_string(files_type_name(attr->mode))) == 0 &&
        json_object_set_new(o, "size", json_integer((json_int_t)attr->size)) == 0 &&
        json_object_set_new(o, "mode", json_string(mode)) == 0 &&
        json_object_set_new(o, "uid", json_integer(attr->uid)) == 0 &&
        json_object_set_new(o, "gid", json_integer(attr->gid)) == 0 &&
        json_object_set_new(o, "nlink", json_integer(attr->nlink)) == 0 &&
        json_object_set_new(o, "modified_at", files_time_json(&attr->mtime)) == 0 &&
        json_object_set_new(o, "etag", json_string(tag)) == 0 &&
        (target ? files_set_bytes(o, "target", buffer_view(target))
                : json_object_set_new(o, "target", json_null())) == 0)
        return o;
    json_decref(o);
    return NULL;
}

static json_t *place_json(const struct place *p, const struct buffer *target)
{
    return files_entry_json(bytes_of_string(p->name), buffer_view(&p->path), &p->attr, target);
}

int files_stat(struct exchange *x, struct failure *f)
{
    _cleanup_tree_ struct tree *t = NULL;
    _cleanup_place_ struct place p = {0};
    _cleanup_buffer_ struct buffer target = {0};
    bool follow = false;
    char tag[FILE_TAG_SIZE];
    int r = files_query_flag(x, "follow", &follow, f);
    if (r == 0)
        r = files_open(x, &t, f);
    if (r == 0)
        r = files_place(x, t, follow ? PATH_FOLLOW : 0, &p, f);
    if (r == 0 && S_ISLNK(p.attr.mode))
        r = file_link_text(t, p.node, &target, f);
    if (r < 0)
        return r;
    file_tag(&p.attr, tag);
    r = exchange_add_field(x, "ETag", "%s", tag);
    return r < 0
               ? failure_set(f, r, "%s", strerror(-r))
               : exchange_reply_json(x, 200, place_json(&p, S_ISLNK(p.attr.mode) ? &target : NULL));
}

/* --- listing --------------------------------------------------------------------------------- */

/* A directory that is to be listed, too. */
struct pending {
    uint64_t node;
    unsigned depth;
    size_t path, path_len; /* in lister.paths */
};

struct lister {
    struct tree *tree;
    json_t *entries;
    unsigned depth; /* that is asked for */
    uint64_t left;
    struct pending at;
    struct buffer pending; /* struct pending */
    struct buffer paths;
    bool cut;
};

static int on_entry(void *context, const char *name, uint32_t type, uint64_t node,
                    const struct wire_attr *attr)
{
    struct lister *l = context;
    _cleanup_buffer_ struct buffer path = {0}, target = {0};
    struct failure f;
    if (!attr)
        return 0;
    if (l->left == 0) {
        l->cut = true;
        return 0;
    }
    int r =
        buffer_printf(&path, "%.*s%s%s", (int)l->at.path_len,
                      (const char *)l->paths.data + l->at.path, l->at.path_len ? "/" : "", name);
    if (r < 0)
        return r;
    /* What has gone since has no target. */
    bool link = S_ISLNK(attr->mode) && file_link_text(l->tree, node, &target, &f) == 0;
    json_t *o =
        files_entry_json(bytes_of_string(name), buffer_view(&path), attr, link ? &target : NULL);
    if (json_array_append_new(l->entries, o) < 0)
        return -ENOMEM;
    l->left--;
    if (!S_ISDIR(attr->mode) || l->at.depth + 1 >= l->depth)
        return 0;
    const struct pending below = {
        .node = node, .depth = l->at.depth + 1, .path = l->paths.len, .path_len = path.len};
    r = buffer_append(&l->paths, path.data, path.len);
    if (r == 0)
        r = buffer_append(&l->pending, &below, sizeof below);
    return r < 0 ? r : 1;
}

/* Breadth first. */
static int list_below(struct lister *l, struct failure *f)
{
    int r = 0;
    size_t at = 0;
    for (; r == 0 && at < l->pending.len; at += sizeof l->at) {
        uint64_t cookie = 0;
        bool end;
        memcpy(&l->at, l->pending.data + at, sizeof l->at);
        r = file_list(l->tree, l->at.node, &cookie, SIZE_MAX, on_entry, l, &end, f);
        tree_forget(l->tree, l->at.node);
        if (r == -ESTALE || r == -ENOENT) /* it has gone */
            r = 0;
    }
    for (; at < l->pending.len; at += sizeof l->at) {
        memcpy(&l->at, l->pending.data + at, sizeof l->at);
        tree_forget(l->tree, l->at.node);
    }
    return r;
}

static int list(struct lister *l, const struct place *p, uint64_t *cookie, size_t limit, bool *end,
                struct failure *f)
{
    int r = buffer_append(&l->paths, p->path.data, p->path.len);
    if (r == 0)
        r = buffer_reserve(&l->paths, 1);
    if (r < 0)
        return failure_set(f, r, "out of memory");
    l->at.path_len = p->path.len;
    r = file_list(l->tree, p->node, cookie, limit, on_entry, l, end, f);
    return r < 0 ? r : list_below(l, f);
}

/* One page of a directory; with a depth the whole of it, or nothing when that is too much. */
int files_list(struct exchange *x, struct failure *f)
{
    _cleanup_tree_ struct tree *t = NULL;
    _cleanup_place_ struct place p = {0};
    uint64_t depth = 1, limit = 0, cookie = 0;
    bool end = false;
    int r = exchange_query_u64(x, "depth", 1, LIST_DEPTH_MAX, &depth, f);
    if (r == 0)
        r = exchange_query_u64(x, "limit", 1, LIST_COUNT_MAX, &limit, f);
    if (r == 0)
        r = exchange_query_u64(x, "after", 0, UINT64_MAX, &cookie, f);
    if (r == 0 && depth > 1 && cookie)
        r = failure_set(f, -EINVAL, "after goes with a depth of 1 alone");
    if (limit == 0)
        limit = depth > 1 ? LIST_COUNT_MAX : LIST_COUNT_DEFAULT;
    if (r == 0)
        r = files_open(x, &t, f);
    if (r == 0)
        r = files_place(x, t, PATH_FOLLOW, &p, f);
    if (r == 0 && !S_ISDIR(p.attr.mode))
        r = failure_set(f, -ENOTDIR, "this is no directory");
    if (r < 0)
        return r;
    struct lister l = {.tree = t, .entries = json_array(), .depth = (unsigned)depth, .left = limit};
    r = list(&l, &p, &cookie, depth > 1 ? SIZE_MAX : limit, &end, f);
    buffer_release(&l.pending);
    buffer_release(&l.paths);
    if (r == 0 && l.cut)
        r = failure_set(f, -EMSGSIZE, "there are more than %llu entries",
                        (unsigned long long)limit);
    if (r < 0) {
        json_decref(l.entries);
        return r;
    }
    char next[24];
    (void)snprintf(next, sizeof next, "%llu", (unsigned long long)cookie);
    return exchange_reply_json(x, 200,
                               json_pack("{s:o,s:o}", "entries", l.entries, "next",
                                         end ? json_null() : json_string(next)));
}

/* --- changes --------------------------------------------------------------------------------- */

int files_remove(struct exchange *x, struct failure *f)
{
    _cleanup_tree_ struct tree *t = NULL;
    _cleanup_place_ struct place p = {0};
    struct files_condition condition;
    const struct file_condition *asked = NULL;
    bool recursive;
    uint64_t removed = 0;
    int r = files_query_flag(x, "recursive", &recursive, f);
    if (r == 0)
        r = files_condition(x, &condition, &asked, f);
    if (r == 0)
        r = files_open(x, &t, f);
    if (r == 0)
        r = files_place(x, t, 0, &p, f);
    if (r < 0)
        return r;
    r = file_remove(t, &p, recursive, asked, &removed, f);
    if (removed > 0)
        exchange_set_effect(x, r < 0 ? EXCHANGE_EFFECT_UNKNOWN : EXCHANGE_EFFECT_DONE);
    if (r == 0)
        r = tree_settle(t, p.directory, f);
    return r < 0 ? r : exchange_reply_empty(x, 204);
}

int files_make_directory(struct exchange *x, struct failure *f)
{
    _cleanup_tree_ struct tree *t = NULL;
    _cleanup_place_ struct place p = {0};
    bool parents, made = false;
    int r = files_query_flag(x, "parents", &parents, f);
    if (r == 0)
        r = files_open(x, &t, f);
    if (r == 0)
        r = path_make_directory(t, exchange_param(x, 1), parents ? PATH_MAKE_PARENTS : 0, &p, &made,
                                f);
    if (t && tree_has_made(t))
        exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    if (r < 0)
        return r;
    exchange_set_effect(x, made ? EXCHANGE_EFFECT_DONE : EXCHANGE_EFFECT_NONE);
    r = made ? tree_settle(t, p.node, f) : 0;
    return r < 0 ? r : exchange_reply_json(x, made ? 201 : 200, place_json(&p, NULL));
}

/* {"from", "to", "replace", "parents"} */
static int move(struct exchange *x, const json_t *body, struct failure *f)
{
    _cleanup_tree_ struct tree *t = NULL;
    _cleanup_place_ struct place from = {0}, to = {0};
    const char *a = NULL, *b = NULL;
    int replace = 0, parents = 0;
    static const char *const names[] = {"from", "to", "replace", "parents", NULL};
    json_error_t error;
    int checked = document_check(body, names, f);
    if (checked < 0)
        return checked;
    /* Called so since its first argument is not changed by unpacking. */
    if (json_unpack_ex((json_t *)(uintptr_t)body, &error, JSON_STRICT, "{s:s,s:s,s?b,s?b}", "from",
                       &a, "to", &b, "replace", &replace, "parents", &parents) < 0)
        return failure_set(f, -EINVAL,
                           "\"from\" and \"to\" are strings, \"replace\" and \"parents\" true or "
                           "false");
    int r = files_open(x, &t, f);
    if (r == 0)
        r = path_walk(t, bytes_of_string(a), 0, &from, f);
    if (r == 0)
        r = path_walk(t, bytes_of_string(b), PATH_MAY_LACK | (parents ? PATH_MAKE_PARENTS : 0), &to,
                      f);
    if (t && tree_has_made(t))
        exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    if (r == 0)
        r = file_move(t, &from, &to, replace, f);
    if (r < 0)
        return r;
    exchange_set_effect(x, EXCHANGE_EFFECT_DONE);
    r = tree_settle(t, to.directory, f);
    return r < 0 ? r : exchange_reply_empty(x, 204);
}

int files_move(struct exchange *x, struct failure *f)
{
    json_t *body = NULL;
    int r = exchange_read_json(x, BODY_MAX, &body, f);
    if (r == 0)
        r = move(x, body, f);
    json_decref(body);
    return r;
}
