#include "gateway/path.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"

/* References given back in one message. */
#define FORGET_BYTES_MAX 65536
#define FORGET_PAIR 16

#define DIRECTORY_MODE 0755

struct tree {
    struct upstream *upstream;
    uint64_t root;
    struct wire_attr root_attr;
    bool made;               /* a directory, by PATH_MAKE_PARENTS */
    struct buffer held;      /* pairs, as FORGET has them */
    struct buffer forgotten; /* to be sent */
};

/* --- references ------------------------------------------------------------------------------ */

static void send_forgotten(struct tree *t)
{
    for (size_t at = 0; at < t->forgotten.len; at += FORGET_BYTES_MAX) {
        size_t left = t->forgotten.len - at;
        const struct wire_message m = {
            .type = WIRE_FORGET,
            .forget.pairs = bytes_of(t->forgotten.data + at,
                                     left < FORGET_BYTES_MAX ? left : FORGET_BYTES_MAX)};
        (void)upstream_notify(t->upstream, &m);
    }
    t->forgotten.len = 0;
}

static int append_pair(struct buffer *b, uint64_t node)
{
    int r = buffer_reserve(b, FORGET_PAIR);
    if (r == 0)
        r = buffer_append_u64(b, node);
    return r < 0 ? r : buffer_append_u64(b, 1);
}

void tree_forget(struct tree *t, uint64_t node)
{
    if (node == 0)
        return;
    /* Without memory the reference stays until the connection ends. */
    if (append_pair(&t->forgotten, node) == 0 && t->forgotten.len >= FORGET_BYTES_MAX)
        send_forgotten(t);
}

int tree_hold(struct tree *t, uint64_t node)
{
    int r = node ? append_pair(&t->held, node) : 0;
    if (r < 0)
        tree_forget(t, node);
    return r;
}

void tree_close(struct tree *t)
{
    if (!t)
        return;
    send_forgotten(t);
    buffer_release(&t->forgotten);
    t->forgotten = t->held;
    send_forgotten(t);
    buffer_release(&t->forgotten);
    upstream_flush(t->upstream);
    free(t);
}

struct upstream *tree_upstream(const struct tree *t)
{
    return t->upstream;
}

int tree_call(struct tree *t, const struct wire_message *request, struct wire_frame **ret,
              struct failure *ret_failure)
{
    return upstream_call(t->upstream, request, ret, ret_failure);
}

int tree_open(struct upstream *u, struct bytes workspace, uint32_t flags, struct tree **ret,
              struct failure *ret_failure)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    _cleanup_tree_ struct tree *t = calloc(1, sizeof *t);
    if (!t)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    t->upstream = u;
    const struct wire_message m = {.type = WIRE_WORKSPACE_OPEN,
                                   .workspace_open = {.flags = flags, .key = workspace}};
    int r = upstream_call(u, &m, &reply, ret_failure);
    if (r == -ENOENT)
        return failure_set(ret_failure, r, "there is no such workspace");
    if (r < 0)
        return r;
    t->root = reply->message.workspace_root.node;
    t->root_attr = reply->message.workspace_root.attr;
    r = tree_hold(t, t->root);
    if (r < 0)
        return failure_set(ret_failure, r, "out of memory");
    *ret = take_ptr(t);
    return 0;
}

int tree_settle(struct tree *t, uint64_t directory, struct failure *ret_failure)
{
    struct wire_frame *reply = NULL;
    struct wire_message m = {
        .type = WIRE_OPEN,
        .open = {.node = directory, .flags = WIRE_OPEN_READ | WIRE_OPEN_DIRECTORY}};
    int r = tree_call(t, &m, &reply, ret_failure);
    if (r < 0)
        return r;
    uint64_t handle = reply->message.opened.handle;
    wire_frame_free(take_ptr(reply));
    m = (struct wire_message){.type = WIRE_FLUSH, .flush.handle = handle};
    r = tree_call(t, &m, &reply, ret_failure);
    wire_frame_free(reply);
    m = (struct wire_message){.type = WIRE_RELEASE, .release.handle = handle};
    (void)upstream_notify(t->upstream, &m);
    return r;
}

/* --- walking --------------------------------------------------------------------------------- */

/* A name on the way: those from the root to where the walk is are on a stack. */
struct step {
    uint64_t node; /* 0: nothing is there */
    struct wire_attr attr;
    char name[WIRE_NAME_MAX + 1];
};

struct walk {
    struct tree *tree;
    struct failure *failure;
    unsigned flags;
    struct buffer stack; /* struct step */
    struct buffer rest;  /* of the path */
    size_t at;           /* in rest */
    unsigned links;
    bool made;
};

static void walk_release(struct walk *w)
{
    buffer_release(&w->stack);
    buffer_release(&w->rest);
}
#define _cleanup_walk_ _cleanup_(walk_release)

static struct step *top(const struct walk *w)
{
    return (struct step *)(void *)(w->stack.data + w->stack.len) - 1;
}

static size_t depth(const struct walk *w)
{
    return w->stack.len / sizeof(struct step);
}

static int push(struct walk *w, uint64_t node, const struct wire_attr *attr, struct bytes name)
{
    struct step step = {.node = node, .attr = *attr};
    if (name.len > 0)
        memcpy(step.name, name.data, name.len);
    return buffer_append(&w->stack, &step, sizeof step);
}

static int join_path(const struct walk *w, struct buffer *ret)
{
    const struct step *steps = (const void *)w->stack.data;
    int r = 0;
    for (size_t i = 1; r == 0 && i < depth(w); i++)
        r = buffer_printf(ret, "%s%s", i > 1 ? "/" : "", steps[i].name);
    if (r == 0)
        r = buffer_reserve(ret, 1);
    if (r == 0)
        ret->data[ret->len] = '\0';
    return r;
}

/* Names the place that the walk has come to, and below it what lacks or is wrong. */
static int fail(const struct walk *w, int error, struct bytes name, const char *why)
{
    _cleanup_buffer_ struct buffer path = {0};
    char text[512] = "";
    if (join_path(w, &path) == 0 && (path.len == 0 || buffer_append(&path, "/", 1) == 0) &&
        buffer_append(&path, name.data, name.len) == 0)
        (void)log_escape(path.data, path.len, text, sizeof text);
    return failure_set(w->failure, error, "%s: %s", text, why ? why : strerror(-error));
}

static bool is_last(const struct walk *w)
{
    for (size_t i = w->at; i < w->rest.len; i++)
        if (w->rest.data[i] != '/')
            return false;
    return true;
}

/* The next name; false at the end. *ret_slash: something, if only a slash, follows it. */
static bool next_name(struct walk *w, struct bytes *ret, bool *ret_slash)
{
    while (w->at < w->rest.len && w->rest.data[w->at] == '/')
        w->at++;
    size_t from = w->at;
    while (w->at < w->rest.len && w->rest.data[w->at] != '/')
        w->at++;
    *ret = w->at > from ? bytes_of(w->rest.data + from, w->at - from) : (struct bytes){0};
    *ret_slash = w->at < w->rest.len;
    return ret->len > 0;
}

/* The directory's length, if text is that or something in it; else 0. */
static size_t below(struct bytes text, const char *directory)
{
    size_t len = strlen(directory);
    return text.len >= len && memcmp(text.data, directory, len) == 0 &&
                   (text.len == len || text.data[len] == '/')
               ? len
               : 0;
}

/* The link's text, and behind it what is left of the path, is walked instead. */
static int follow(struct walk *w, uint64_t node, struct bytes name)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    _cleanup_buffer_ struct buffer rest = {0};
    const struct wire_message m = {.type = WIRE_READLINK, .readlink.node = node};
    if (++w->links > PATH_LINKS_MAX)
        return fail(w, -ELOOP, name, NULL);
    int r = tree_call(w->tree, &m, &reply, w->failure);
    if (r < 0)
        return r;
    struct bytes text = reply->message.data.data;
    if (text.len > 0 && text.data[0] == '/') {
        size_t prefix = below(text, PATH_WORKSPACE);
        if (prefix == 0)
            prefix = below(text, PATH_E2B_HOME);
        if (prefix == 0)
            return fail(w, -EACCES, name, "the link leads out of the workspace");
        text = bytes_of(text.data + prefix, text.len - prefix);
        w->stack.len = sizeof(struct step);
    }
    size_t left = w->rest.len - w->at;
    if (text.len + left > PATH_BYTES_MAX)
        return fail(w, -ENAMETOOLONG, name, NULL);
    r = buffer_reserve(&rest, text.len + left + 1);
    if (r == 0)
        r = buffer_append(&rest, text.data, text.len);
    if (r == 0)
        r = buffer_append(&rest, w->rest.data + w->at, left);
    if (r < 0)
        return fail(w, r, name, NULL);
    buffer_release(&w->rest);
    w->rest = rest;
    rest = (struct buffer){0};
    w->at = 0;
    return 0;
}

static int look_up(struct walk *w, struct bytes name, uint64_t *ret_node, struct wire_attr *ret)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {.type = WIRE_LOOKUP,
                                   .lookup = {.parent = top(w)->node, .name = name}};
    int r = tree_call(w->tree, &m, &reply, w->failure);
    if (r < 0)
        return r;
    *ret_node = reply->message.entry.node;
    *ret = reply->message.entry.attr;
    return tree_hold(w->tree, *ret_node);
}

static int make(struct walk *w, struct bytes name, uint64_t *ret_node, struct wire_attr *ret)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {
        .type = WIRE_MKDIR,
        .mkdir = {.parent = top(w)->node, .mode = DIRECTORY_MODE, .name = name}};
    int r = tree_call(w->tree, &m, &reply, w->failure);
    if (r == -EEXIST) /* somebody else was faster */
        return look_up(w, name, ret_node, ret);
    if (r < 0)
        return r;
    w->made = w->tree->made = true;
    *ret_node = reply->message.made.node;
    *ret = reply->message.made.attr;
    return tree_hold(w->tree, *ret_node);
}

/* To who would make something in it. */
static const char *missing_directory(const struct walk *w)
{
    return (w->flags & PATH_MAY_LACK) ? "No such file or directory; with parents it is made" : NULL;
}

/* 0, or 1: the walk has ended at this name. */
static int step(struct walk *w, struct bytes name, bool slash)
{
    bool last = is_last(w);
    uint64_t node = 0;
    struct wire_attr attr = {0};
    int r;
    if (name.len > WIRE_NAME_MAX)
        return fail(w, -ENAMETOOLONG, bytes_of(name.data, 32), NULL);
    r = look_up(w, name, &node, &attr);
    if (r == -ENOENT && !last && (w->flags & PATH_MAKE_PARENTS))
        r = make(w, name, &node, &attr);
    if (r == -ENOENT && last && (w->flags & PATH_MAY_LACK))
        r = 0;
    else if (r < 0 && (upstream_is_lost(w->tree->upstream) || r == -ECONNABORTED))
        return r;
    else if (r < 0)
        return fail(w, r, name, r == -ENOENT && !last ? missing_directory(w) : NULL);
    if (S_ISLNK(attr.mode) && (!last || slash || (w->flags & PATH_FOLLOW)))
        return follow(w, node, name);
    if (node && slash && !S_ISDIR(attr.mode))
        return fail(w, -ENOTDIR, name, NULL);
    r = push(w, node, &attr, name);
    return r < 0 ? fail(w, r, name, NULL) : 0;
}

static int dot_dot(struct walk *w)
{
    if (depth(w) == 1)
        return fail(w, -EACCES, bytes_of_string(".."), "this leads out of the workspace");
    w->stack.len -= sizeof(struct step);
    return 0;
}

static int walk_all(struct walk *w)
{
    struct bytes name;
    bool slash;
    int r = 0;
    while (r == 0 && next_name(w, &name, &slash)) {
        if (name.len == 1 && name.data[0] == '.')
            continue;
        if (name.len == 2 && memcmp(name.data, "..", 2) == 0)
            r = dot_dot(w);
        else
            r = step(w, name, slash);
    }
    return r;
}

static int arrive(const struct walk *w, struct place *ret)
{
    struct place p = {.made = w->made};
    const struct step *s = top(w);
    if (depth(w) > 1) {
        p.directory = s[-1].node;
        (void)snprintf(p.name, sizeof p.name, "%s", s->name);
    }
    p.node = s->node;
    p.attr = s->attr;
    int r = join_path(w, &p.path);
    if (r < 0) {
        buffer_release(&p.path);
        return failure_set(w->failure, r, "out of memory");
    }
    *ret = p;
    return 0;
}

static int walk(struct tree *t, struct bytes path, unsigned flags, struct place *ret,
                struct failure *ret_failure)
{
    _cleanup_walk_ struct walk w = {.tree = t, .failure = ret_failure, .flags = flags};
    if (path.len > PATH_BYTES_MAX)
        return failure_set(ret_failure, -ENAMETOOLONG, "the path is longer than %d bytes",
                           PATH_BYTES_MAX);
    if (path.len > 0 && memchr(path.data, 0, path.len))
        return failure_set(ret_failure, -EINVAL, "the path has a NUL in it");
    int r = push(&w, t->root, &t->root_attr, (struct bytes){0});
    if (r == 0)
        r = buffer_reserve(&w.rest, path.len + 1); /* an empty one has an address, too */
    if (r == 0)
        r = buffer_append(&w.rest, path.data, path.len);
    if (r < 0)
        return failure_set(ret_failure, r, "out of memory");
    r = walk_all(&w);
    return r < 0 ? r : arrive(&w, ret);
}

bool tree_has_made(const struct tree *t)
{
    return t->made;
}

int path_walk(struct tree *t, struct bytes path, unsigned flags, struct place *ret,
              struct failure *ret_failure)
{
    int r = -ESTALE;
    for (int i = 0; i < PATH_TRIES && r == -ESTALE; i++)
        r = walk(t, path, flags, ret, ret_failure);
    return r;
}

void path_release(struct place *p)
{
    buffer_release(&p->path);
}

int path_make_directory(struct tree *t, struct bytes path, unsigned flags, struct place *ret,
                        bool *ret_made, struct failure *ret_failure)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    _cleanup_place_ struct place p = {0};
    int r = path_walk(t, path, flags | PATH_FOLLOW | PATH_MAY_LACK, &p, ret_failure);
    if (r < 0)
        return r;
    bool makes = p.node == 0;
    if (!makes && (!(flags & PATH_MAKE_PARENTS) || !S_ISDIR(p.attr.mode)))
        return failure_set(ret_failure, -EEXIST, "%s", strerror(EEXIST));
    if (makes) {
        const struct wire_message m = {.type = WIRE_MKDIR,
                                       .mkdir = {.parent = p.directory,
                                                 .mode = DIRECTORY_MODE,
                                                 .name = bytes_of_string(p.name)}};
        r = tree_call(t, &m, &reply, ret_failure);
        if (r < 0)
            return r;
        p.node = reply->message.made.node;
        p.attr = reply->message.made.attr;
        r = tree_hold(t, p.node);
        if (r < 0)
            return failure_set(ret_failure, r, "out of memory");
    }
    if (ret_made)
        *ret_made = makes;
    *ret = p;
    p = (struct place){0};
    return 0;
}
