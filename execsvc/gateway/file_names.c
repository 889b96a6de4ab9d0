#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "gateway/file.h"

/* List bytes of one READDIR. */
#define PAGE_SIZE_BYTES 65536

/* How many requests to remove a name are under way. */
#define REMOVE_AHEAD 16

/* Directories of one directory that are looked at before it is read again. Bounds the memory that
 * one with a million of them takes. */
#define REMOVE_DIRECTORIES_MAX 1024

/* With so many noted, of each directory below only one more is, so that all that is noted stays
 * bounded but by the depth. */
#define REMOVE_LEVELS_MAX 16384

/* --- listing --------------------------------------------------------------------------------- */

static int open_directory(struct tree *t, uint64_t node, uint64_t *ret, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {
        .type = WIRE_OPEN, .open = {.node = node, .flags = WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY}};
    int r = tree_call(t, &m, &reply, f);
    if (r == 0)
        *ret = reply->message.opened.handle;
    return r;
}

static void release(struct tree *t, uint64_t handle)
{
    const struct wire_message m = {.type = WIRE_RELEASE, .release.handle = handle};
    (void)upstream_notify(tree_upstream(t), &m);
}

struct listing {
    struct tree *tree;
    uint64_t *cookie;
    size_t left;
    file_entry_fn *fn;
    void *context;
    bool end;
    bool plain; /* no attributes are wanted */
};

/* Every node of the page is given back, also of entries that nobody was told of. */
static int take_page(struct listing *l, const struct wire_dirents *page, struct failure *f)
{
    uint32_t offset = 0;
    struct bytes element;
    int r = 0;
    size_t told = 0;
    while (wire_list_next(&page->entries, &offset, &element)) {
        struct wire_message m;
        bool kept = false;
        char name[WIRE_NAME_MAX + 1];
        if (wire_decode(WIRE_DIRENT, element, &m) < 0)
            return failure_set(f, -EPROTO, "the service lists an entry that cannot be read");
        const struct wire_dirent *d = &m.dirent;
        if (r == 0 && l->left > 0) {
            (void)snprintf(name, sizeof name, "%.*s", (int)d->name.len, (const char *)d->name.data);
            r = l->fn(l->context, name, d->type, d->node, d->node ? &d->attr : NULL);
            *l->cookie = d->cookie;
            l->left--;
            told++;
            kept = r == 1;
            r = kept ? 0 : r;
        }
        if (!kept)
            tree_forget(l->tree, d->node);
    }
    if (r < 0 && f->error != r)
        (void)failure_set(f, r, "%s", strerror(-r));
    l->end = page->end && told == page->entries.count;
    return r;
}

static int read_pages(struct listing *l, uint64_t handle, struct failure *f)
{
    int r = 0;
    while (r == 0 && !l->end && l->left > 0) {
        _cleanup_frame_ struct wire_frame *reply = NULL;
        const struct wire_message m = {.type = WIRE_READDIR,
                                       .readdir = {.handle = handle,
                                                   .cookie = *l->cookie,
                                                   .size = PAGE_SIZE_BYTES,
                                                   .plus = !l->plain}};
        r = tree_call(l->tree, &m, &reply, f);
        if (r == 0)
            r = take_page(l, &reply->message.dirents, f);
    }
    return r;
}

int file_list(struct tree *t, uint64_t directory, uint64_t *cookie, size_t limit, file_entry_fn *fn,
              void *context, bool *ret_end, struct failure *ret_failure)
{
    struct listing l = {.tree = t, .cookie = cookie, .left = limit, .fn = fn, .context = context};
    uint64_t handle = 0;
    ret_failure->error = 0;
    int r = open_directory(t, directory, &handle, ret_failure);
    if (r < 0)
        return r;
    r = read_pages(&l, handle, ret_failure);
    release(t, handle);
    *ret_end = l.end;
    return r;
}

int file_link_text(struct tree *t, uint64_t node, struct buffer *ret, struct failure *ret_failure)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {.type = WIRE_READLINK, .readlink.node = node};
    int r = tree_call(t, &m, &reply, ret_failure);
    if (r < 0)
        return r;
    struct bytes text = reply->message.data.data;
    r = buffer_append(ret, text.data, text.len);
    return r < 0 ? failure_set(ret_failure, r, "out of memory") : 0;
}

/* --- removing -------------------------------------------------------------------------------- */

/* A directory that is to go. On a stack: below it is the one it is in, and others in that. */
struct level {
    uint64_t parent;
    uint64_t node; /* 0: not looked into yet */
    char name[WIRE_NAME_MAX + 1];
    bool again; /* there are more directories in it than were noted */
};

struct removal {
    struct tree *tree;
    struct failure *failure;
    struct buffer levels;
    struct buffer found; /* struct level: directories in the one at hand */
    size_t found_max;
    bool found_more;
    uint64_t node; /* the one at hand */
    uint64_t removed;
    struct upstream_call *calls[REMOVE_AHEAD];
    size_t first, count;
};

static int finish_oldest(struct removal *x)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    struct upstream_call *call = x->calls[x->first];
    x->first = (x->first + 1) % REMOVE_AHEAD;
    x->count--;
    int r = upstream_finish(call, &reply, x->failure);
    x->removed += r == 0;
    return r == -ENOENT ? 0 : r; /* somebody else has */
}

static int finish_all(struct removal *x)
{
    int r = 0;
    while (r == 0 && x->count > 0)
        r = finish_oldest(x);
    return r;
}

static int remove_name(struct removal *x, uint64_t parent, const char *name, bool directory)
{
    struct wire_message m = {.type = WIRE_UNLINK,
                             .unlink = {.parent = parent, .name = bytes_of_string(name)}};
    if (directory)
        m = (struct wire_message){.type = WIRE_RMDIR,
                                  .rmdir = {.parent = parent, .name = bytes_of_string(name)}};
    int r = x->count == REMOVE_AHEAD ? finish_oldest(x) : 0;
    if (r < 0)
        return r;
    r = upstream_start(tree_upstream(x->tree), &m, &x->calls[(x->first + x->count) % REMOVE_AHEAD]);
    if (r < 0)
        return failure_set(x->failure, r, "%s", strerror(-r));
    x->count++;
    return 0;
}

static struct level *top(const struct removal *x)
{
    return (struct level *)(void *)(x->levels.data + x->levels.len) - 1;
}

static int on_entry(void *context, const char *name, uint32_t type, uint64_t node,
                    const struct wire_attr *attr)
{
    struct removal *x = context;
    if (type != S_IFDIR)
        return remove_name(x, x->node, name, false);
    if (x->found.len >= x->found_max * sizeof(struct level)) {
        x->found_more = true;
        return 0;
    }
    struct level level = {.parent = x->node};
    (void)snprintf(level.name, sizeof level.name, "%s", name);
    return buffer_append(&x->found, &level, sizeof level);
}

/* Removes the files of the directory at hand and notes the directories in it. */
static int scan(struct removal *x)
{
    uint64_t handle = 0, cookie = 0;
    struct listing l = {.tree = x->tree,
                        .cookie = &cookie,
                        .left = SIZE_MAX,
                        .fn = on_entry,
                        .context = x,
                        .plain = true};
    x->found.len = 0;
    x->found_more = false;
    x->found_max =
        x->levels.len < REMOVE_LEVELS_MAX * sizeof(struct level) ? REMOVE_DIRECTORIES_MAX : 1;
    x->node = top(x)->node;
    int r = open_directory(x->tree, x->node, &handle, x->failure);
    if (r < 0)
        return r;
    r = read_pages(&l, handle, x->failure);
    release(x->tree, handle);
    return r < 0 ? r : finish_all(x);
}

static int enter(struct removal *x, struct level *level)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {
        .type = WIRE_LOOKUP,
        .lookup = {.parent = level->parent, .name = bytes_of_string(level->name)}};
    int r = tree_call(x->tree, &m, &reply, x->failure);
    if (r < 0)
        return r;
    level->node = reply->message.entry.node;
    return 0;
}

static void leave(struct removal *x)
{
    tree_forget(x->tree, top(x)->node);
    x->levels.len -= sizeof(struct level);
}

/* The topmost: empties it, or, when it is, removes it. */
static int remove_top(struct removal *x)
{
    bool fresh = top(x)->node == 0;
    int r = fresh ? enter(x, top(x)) : 0;
    if (r == -ENOENT) {
        leave(x);
        return 0;
    }
    if (r == 0 && (fresh || top(x)->again)) {
        r = scan(x);
        if (r < 0)
            return r;
        top(x)->again = x->found_more;
        if (x->found.len > 0)
            return buffer_append(&x->levels, x->found.data, x->found.len);
    }
    if (r == 0)
        r = remove_name(x, top(x)->parent, top(x)->name, true);
    if (r == 0)
        r = finish_all(x);
    if (r == 0)
        leave(x);
    return r;
}

static int remove_tree(struct removal *x, const struct place *p)
{
    struct level level = {.parent = p->directory};
    (void)snprintf(level.name, sizeof level.name, "%s", p->name);
    int r = buffer_append(&x->levels, &level, sizeof level);
    while (r == 0 && x->levels.len > 0)
        r = remove_top(x);
    while (x->levels.len > 0)
        leave(x);
    return r;
}

static int remove_if(struct tree *t, const struct place *p, const struct file_condition *condition,
                     struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {.type = WIRE_UNLINK,
                                   .unlink = {.parent = p->directory,
                                              .expected_ino = p->attr.ino,
                                              .expected_generation = p->attr.generation,
                                              .expected_version = p->attr.version,
                                              .name = bytes_of_string(p->name)}};
    if (S_ISDIR(p->attr.mode))
        return failure_set(f, -EINVAL, "a directory's removal can have no condition");
    int r = condition->holds(condition->context, &p->attr) ? 0 : -EREMCHG;
    if (r == 0)
        r = tree_call(t, &m, &reply, f);
    return r == -EREMCHG ? failure_set(f, r, "what is there is not what the condition says") : r;
}

int file_remove(struct tree *t, const struct place *p, bool recursive,
                const struct file_condition *condition, uint64_t *ret_removed,
                struct failure *ret_failure)
{
    struct removal x = {.tree = t, .failure = ret_failure};
    if (ret_removed)
        *ret_removed = 0;
    if (p->node == 0)
        return failure_set(ret_failure, -ENOENT, "%s", strerror(ENOENT));
    if (p->directory == 0)
        return failure_set(ret_failure, -EISDIR, "this is the workspace itself");
    if (condition) {
        int r = remove_if(t, p, condition, ret_failure);
        if (r == 0 && ret_removed)
            *ret_removed = 1;
        return r;
    }
    bool directory = S_ISDIR(p->attr.mode);
    int r = 0;
    if (directory && recursive)
        r = remove_tree(&x, p);
    else
        r = remove_name(&x, p->directory, p->name, directory);
    if (r == 0)
        r = finish_all(&x);
    for (; x.count > 0; x.count--) {
        upstream_drop(x.calls[x.first], 0);
        x.first = (x.first + 1) % REMOVE_AHEAD;
    }
    if (ret_removed)
        *ret_removed = x.removed;
    buffer_release(&x.levels);
    buffer_release(&x.found);
    return r;
}

int file_move(struct tree *t, const struct place *from, const struct place *to, bool replace,
              struct failure *ret_failure)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    if (from->node == 0)
        return failure_set(ret_failure, -ENOENT, "%s", strerror(ENOENT));
    if (from->directory == 0 || to->directory == 0)
        return failure_set(ret_failure, -EISDIR, "this is the workspace itself");
    if (to->node && !replace)
        return failure_set(ret_failure, -EEXIST, "there is something already");
    const struct wire_message m = {.type = WIRE_RENAME,
                                   .rename = {.parent = from->directory,
                                              .new_parent = to->directory,
                                              .flags = replace ? 0 : RENAME_NOREPLACE,
                                              .name = bytes_of_string(from->name),
                                              .new_name = bytes_of_string(to->name)}};
    return tree_call(t, &m, &reply, ret_failure);
}
