/* filesystem.Filesystem: what a sandbox's files are, for E2B's clients. */
#include "gateway/e2b_request.h"
#include "gateway/routes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gateway/file.h"

/* Entries of one listing, at whatever depth: what an answer in one piece can have. Stops a tree of
 * millions from using up memory. */
#define ENTRIES_MAX 100000

/* Entries asked for at once. */
#define PAGE 512

struct request {
    json_t *body;
    struct tree *tree;
};

static void request_release(struct request *r)
{
    tree_close(r->tree);
    json_decref(r->body);
}
#define _cleanup_request_ _cleanup_(request_release)

static int begin(struct exchange *x, struct request *r, struct failure *f)
{
    int e = e2b_read(x, false, &r->body, f);
    return e < 0 ? e : e2b_open_tree(x, &r->tree, f);
}

/* A path of the request, from the workspace's root. */
static int path_of(const struct request *r, const char *name, bool writes, struct bytes *ret,
                   struct failure *f)
{
    const char *path;
    int e = e2b_text(r->body, name, &path, f);
    return e < 0 ? e : e2b_take_path(path, writes, ret, f);
}

static int reply_entry(struct exchange *x, struct tree *t, const struct place *p, struct failure *f)
{
    json_t *entry = e2b_entry_at(t, p, f);
    return entry ? exchange_reply_json(x, 200, json_pack("{s:o}", "entry", entry)) : f->error;
}

int e2b_filesystem_stat(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_request_ struct request r = {0};
    _cleanup_place_ struct place p = {0};
    struct bytes path;
    int e = begin(x, &r, ret_failure);
    if (e == 0)
        e = path_of(&r, "path", false, &path, ret_failure);
    if (e == 0)
        e = path_walk(r.tree, path, 0, &p, ret_failure);
    return e < 0 ? e : reply_entry(x, r.tree, &p, ret_failure);
}

int e2b_filesystem_make_dir(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_request_ struct request r = {0};
    _cleanup_place_ struct place p = {0};
    struct bytes path;
    bool made = false;
    int e = begin(x, &r, ret_failure);
    if (e == 0)
        e = path_of(&r, "path", true, &path, ret_failure);
    if (e < 0)
        return e;
    exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    e = path_make_directory(r.tree, path, PATH_MAKE_PARENTS, &p, &made, ret_failure);
    if (e == -EEXIST)
        return failure_set(ret_failure, -EINVAL, "there is something that is no directory");
    if (e == 0 && !made)
        return failure_set(ret_failure, -EEXIST, "the directory is there already");
    return e < 0 ? e : reply_entry(x, r.tree, &p, ret_failure);
}

int e2b_filesystem_move(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_request_ struct request r = {0};
    _cleanup_place_ struct place from = {0}, to = {0}, now = {0};
    struct bytes source, destination;
    int e = begin(x, &r, ret_failure);
    if (e == 0)
        e = path_of(&r, "source", false, &source, ret_failure);
    if (e == 0)
        e = path_of(&r, "destination", true, &destination, ret_failure);
    if (e == 0)
        e = path_walk(r.tree, source, 0, &from, ret_failure);
    if (e < 0)
        return e;
    exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
    e = path_walk(r.tree, destination, PATH_MAY_LACK | PATH_MAKE_PARENTS, &to, ret_failure);
    if (e == 0)
        e = file_move(r.tree, &from, &to, true, ret_failure);
    if (e == 0)
        e = path_walk(r.tree, destination, 0, &now, ret_failure);
    return e < 0 ? e : reply_entry(x, r.tree, &now, ret_failure);
}

int e2b_filesystem_remove(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_request_ struct request r = {0};
    _cleanup_place_ struct place p = {0};
    struct bytes path;
    int e = begin(x, &r, ret_failure);
    if (e == 0)
        e = path_of(&r, "path", true, &path, ret_failure);
    if (e == 0)
        e = path_walk(r.tree, path, PATH_MAY_LACK, &p, ret_failure);
    if (e == 0 && p.node != 0 && p.directory == 0)
        e = failure_set(ret_failure, -EINVAL, "the sandbox's home itself cannot be removed");
    if (e == 0 && p.node != 0) {
        exchange_set_effect(x, EXCHANGE_EFFECT_UNKNOWN);
        e = file_remove(r.tree, &p, true, NULL, NULL, ret_failure);
    }
    /* What is not there is gone. */
    return e < 0 && e != -ENOENT ? e : exchange_reply(x, 200, "application/json", "{}", 2);
}

/* --- ListDir ---------------------------------------------------------------------------------- */

struct listing {
    struct tree *tree;
    json_t *entries;
    struct failure *failure;
    struct buffer path; /* of the directory that is read, as the client asked for it */
    uint64_t depth;     /* below it */
};

static int list_directory(struct listing *l, uint64_t node);

static int list_one(void *context, const char *name, uint32_t type, uint64_t node,
                    const struct wire_attr *attr)
{
    struct listing *l = context;
    if (!attr)
        return 0;
    if (json_array_size(l->entries) >= ENTRIES_MAX)
        return failure_set(l->failure, -E2BIG, "more than %d entries: list a part of it",
                           ENTRIES_MAX);
    size_t before = l->path.len;
    if ((before > 0 && buffer_append(&l->path, "/", 1) < 0) ||
        buffer_append(&l->path, name, strlen(name)) < 0)
        return -ENOMEM;
    struct place p = {.node = node, .attr = *attr};
    int r = buffer_append(&p.path, l->path.data, l->path.len);
    json_t *entry = r == 0 ? e2b_entry_at(l->tree, &p, l->failure) : NULL;
    buffer_release(&p.path);
    r = entry ? json_array_append_new(l->entries, entry) : -ENOMEM;
    if (r == 0 && l->depth > 1 && S_ISDIR(attr->mode)) {
        l->depth--;
        r = list_directory(l, node);
        l->depth++;
    }
    l->path.len = before;
    return r;
}

static int list_directory(struct listing *l, uint64_t node)
{
    uint64_t cookie = 0;
    bool end = false;
    int r = 0;
    while (r == 0 && !end)
        r = file_list(l->tree, node, &cookie, PAGE, list_one, l, &end, l->failure);
    return r;
}

int e2b_filesystem_list_dir(struct exchange *x, struct failure *ret_failure)
{
    _cleanup_request_ struct request r = {0};
    _cleanup_place_ struct place p = {0};
    struct listing l = {.failure = ret_failure, .depth = 1};
    struct bytes path;
    int e = begin(x, &r, ret_failure);
    if (e == 0)
        e = path_of(&r, "path", false, &path, ret_failure);
    if (e == 0)
        e = e2b_number(r.body, "depth", 64, &l.depth, ret_failure);
    if (e == 0)
        e = path_walk(r.tree, path, PATH_FOLLOW, &p, ret_failure);
    if (e == 0 && !S_ISDIR(p.attr.mode))
        e = failure_set(ret_failure, -ENOTDIR, "the path is not a directory");
    if (e < 0)
        return e;
    l.depth = l.depth ? l.depth : 1;
    l.tree = r.tree;
    l.entries = json_array();
    e = buffer_append(&l.path, p.path.data, p.path.len);
    if (e == 0)
        e = list_directory(&l, p.node);
    buffer_release(&l.path);
    if (e < 0) {
        json_decref(l.entries);
        return e;
    }
    return exchange_reply_json(x, 200, json_pack("{s:o}", "entries", l.entries));
}
