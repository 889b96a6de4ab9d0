#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "gateway/file.h"

/* Bytes of one WRITE, and how many WRITEs are under way: what one writer holds at most. */
#define WRITE_SIZE (256 << 10)
#define WRITE_AHEAD 4

/* Times that the condition is looked at anew because the file was replaced meanwhile. Stops
 * somebody who does that in a loop from holding the request. */
#define CONDITION_TRIES 16

struct file_writer {
    struct tree *tree;
    const struct place *place;
    struct file_write_options options;
    uint64_t node;
    uint64_t handle;
    struct buffer pending;
    uint64_t offset; /* of what is pending */
    struct upstream_call *calls[WRITE_AHEAD];
    uint32_t sizes[WRITE_AHEAD];
    size_t first, count;
};

/* --- beginning ------------------------------------------------------------------------------- */

static bool condition_holds(const struct file_writer *w, const struct wire_attr *attr)
{
    const struct file_condition *c = w->options.condition;
    return !c || c->holds(c->context, attr);
}

static int unmet(struct failure *f)
{
    return failure_set(f, -EREMCHG, "what is there is not what the condition says");
}

static int check_place(const struct file_writer *w, struct failure *f)
{
    const struct place *p = w->place;
    if (p->directory == 0)
        return failure_set(f, -EISDIR, "this is the workspace itself");
    if (p->node && S_ISDIR(p->attr.mode))
        return failure_set(f, -EISDIR, "there is a directory");
    if (p->node && !S_ISREG(p->attr.mode))
        return failure_set(f, -EEXIST, "what is there is no regular file");
    return condition_holds(w, p->node ? &p->attr : NULL) ? 0 : unmet(f);
}

static int create(struct file_writer *w, const char *name, uint32_t flags, uint32_t mode,
                  struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {.type = WIRE_CREATE,
                                   .create = {.parent = w->place->directory,
                                              .flags = flags | WIRE_OPEN_WRITE,
                                              .mode = mode,
                                              .name = bytes_of_string(name)}};
    int r = tree_call(w->tree, &m, &reply, f);
    if (r < 0)
        return r;
    w->node = reply->message.created.node;
    w->handle = reply->message.created.handle;
    r = tree_hold(w->tree, w->node);
    return r < 0 ? failure_set(f, r, "out of memory") : 0;
}

static int create_unnamed(struct file_writer *w, struct failure *f)
{
    uint32_t mode = w->place->node ? w->place->attr.mode & 0777 : w->options.mode;
    return create(w, w->place->name, WIRE_OPEN_UNNAMED, mode, f);
}

static int open_to_append(struct file_writer *w, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    if (!w->place->node)
        return create(w, w->place->name, WIRE_OPEN_APPEND, w->options.mode, f);
    const struct wire_message m = {
        .type = WIRE_OPEN,
        .open = {.node = w->place->node, .flags = WIRE_OPEN_WRITE | WIRE_OPEN_APPEND}};
    int r = tree_call(w->tree, &m, &reply, f);
    if (r < 0)
        return r;
    w->node = w->place->node;
    w->handle = reply->message.opened.handle;
    return 0;
}

int file_create(struct tree *t, const struct place *p, const struct file_write_options *options,
                struct file_writer **ret, struct failure *ret_failure)
{
    _cleanup_writer_ struct file_writer *w = calloc(1, sizeof *w);
    if (!w)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    w->tree = t;
    w->place = p;
    w->options = *options;
    int r = check_place(w, ret_failure);
    if (r == 0)
        r = options->append ? open_to_append(w, ret_failure) : create_unnamed(w, ret_failure);
    if (r < 0)
        return r;
    *ret = take_ptr(w);
    return 0;
}

/* --- content --------------------------------------------------------------------------------- */

static int finish_oldest(struct file_writer *w, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    struct upstream_call *call = w->calls[w->first];
    uint32_t size = w->sizes[w->first];
    w->first = (w->first + 1) % WRITE_AHEAD;
    w->count--;
    int r = upstream_finish(call, &reply, f);
    if (r < 0 || reply->message.written.size == size)
        return r;
    int error = reply->message.written.error ? -(int)reply->message.written.error : -EIO;
    return failure_set(f, error, "not all could be written: %s", strerror(-error));
}

static int finish_all(struct file_writer *w, struct failure *f)
{
    int r = 0;
    while (r == 0 && w->count > 0)
        r = finish_oldest(w, f);
    return r;
}

/* The service writes what goes to one handle in the order in which it was sent; with APPEND each
 * piece to where the end is then. BEHIND: not, when the one before it was not written whole. */
static int send_pending(struct file_writer *w, struct failure *f)
{
    if (w->pending.len == 0)
        return 0;
    int r = w->count == WRITE_AHEAD ? finish_oldest(w, f) : 0;
    if (r < 0)
        return r;
    const struct wire_message m = {
        .type = WIRE_WRITE,
        .write = {.handle = w->handle,
                  .offset = w->offset,
                  .flags = WIRE_WRITE_BEHIND | (w->options.append ? WIRE_WRITE_APPEND : 0),
                  .data = buffer_view(&w->pending)}};
    size_t at = (w->first + w->count) % WRITE_AHEAD;
    r = upstream_start(tree_upstream(w->tree), &m, &w->calls[at]);
    if (r < 0)
        return failure_set(f, r, "%s", strerror(-r));
    w->sizes[at] = (uint32_t)w->pending.len;
    w->count++;
    w->offset += w->pending.len;
    w->pending.len = 0;
    upstream_flush(tree_upstream(w->tree));
    return 0;
}

int file_write(struct file_writer *w, struct bytes data, struct failure *ret_failure)
{
    int r = 0;
    while (r == 0 && data.len > 0) {
        size_t room = WRITE_SIZE - w->pending.len;
        size_t n = data.len < room ? data.len : room;
        r = buffer_append(&w->pending, data.data, n);
        if (r < 0)
            return failure_set(ret_failure, r, "out of memory");
        data = bytes_of(data.data + n, data.len - n);
        if (w->pending.len == WRITE_SIZE)
            r = send_pending(w, ret_failure);
    }
    return r;
}

/* --- the end --------------------------------------------------------------------------------- */

static void release(struct file_writer *w)
{
    const struct wire_message m = {.type = WIRE_RELEASE, .release.handle = w->handle};
    if (!w->handle)
        return;
    (void)upstream_notify(tree_upstream(w->tree), &m);
    upstream_flush(tree_upstream(w->tree));
}

static int simple_call(struct file_writer *w, const struct wire_message *m, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    return tree_call(w->tree, m, &reply, f);
}

/* What is at the place now; node 0: nothing. */
static int look_again(struct file_writer *w, uint64_t *ret_node, struct wire_attr *ret,
                      struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {
        .type = WIRE_LOOKUP,
        .lookup = {.parent = w->place->directory, .name = bytes_of_string(w->place->name)}};
    *ret_node = 0;
    int r = tree_call(w->tree, &m, &reply, f);
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return r;
    *ret_node = reply->message.entry.node;
    *ret = reply->message.entry.attr;
    r = tree_hold(w->tree, *ret_node);
    return r < 0 ? failure_set(f, r, "out of memory") : 0;
}

/* expected: what is replaced; NULL: whatever is there. */
static int put_in_place(struct file_writer *w, const struct wire_attr *expected, uint32_t flags,
                        struct wire_attr *ret, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {
        .type = WIRE_PLACE,
        .place = {.handle = w->handle,
                  .parent = w->place->directory,
                  .flags = flags,
                  .expected_ino = expected ? expected->ino : 0,
                  .expected_generation = expected ? expected->generation : 0,
                  .expected_version = expected ? expected->version : 0,
                  .name = bytes_of_string(w->place->name)}};
    int r = tree_call(w->tree, &m, &reply, f);
    if (r == 0)
        *ret = reply->message.placed.attr;
    return r;
}

/* In place of what the condition is found to hold of, or nothing is done. */
static int put_if_met(struct file_writer *w, struct wire_attr *ret, bool *ret_made,
                      struct failure *f)
{
    for (int i = 0; i < CONDITION_TRIES; i++) {
        uint64_t node;
        struct wire_attr attr;
        int r = look_again(w, &node, &attr, f);
        if (r < 0)
            return r;
        if (!condition_holds(w, node ? &attr : NULL))
            return unmet(f);
        r = put_in_place(w, node ? &attr : NULL, node ? 0 : RENAME_NOREPLACE, ret, f);
        *ret_made = node == 0;
        if (r != -EREMCHG && !(r == -EEXIST && node == 0))
            return r;
    }
    return failure_set(f, -EBUSY, "the file is replaced again and again");
}

static int take_attr(struct file_writer *w, struct wire_attr *ret, struct failure *f)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    const struct wire_message m = {.type = WIRE_GETATTR,
                                   .getattr = {.node = w->node, .handle = w->handle}};
    int r = tree_call(w->tree, &m, &reply, f);
    if (r == 0)
        *ret = reply->message.attrs.attr;
    return r;
}

int file_commit(struct file_writer *w, struct wire_attr *ret, bool *ret_made, bool *ret_placed,
                struct failure *ret_failure)
{
    const struct wire_message fsync = {.type = WIRE_FSYNC, .fsync.handle = w->handle};
    const struct wire_message flush = {.type = WIRE_FLUSH, .flush.handle = w->handle};
    *ret_placed = w->options.append;
    *ret_made = w->place->node == 0;
    int r = send_pending(w, ret_failure);
    if (r == 0)
        r = finish_all(w, ret_failure);
    if (r == 0 && !w->options.lazy)
        r = simple_call(w, &fsync, ret_failure);
    if (r == 0 && !w->options.append) {
        r = w->options.condition ? put_if_met(w, ret, ret_made, ret_failure)
                                 : put_in_place(w, NULL, 0, ret, ret_failure);
        *ret_placed = r == 0 || upstream_is_lost(tree_upstream(w->tree));
    }
    if (r == 0)
        r = simple_call(w, &flush, ret_failure);
    if (r == 0 && w->options.append)
        r = take_attr(w, ret, ret_failure);
    return r;
}

void file_writer_free(struct file_writer *w)
{
    if (!w)
        return;
    for (; w->count > 0; w->count--) {
        upstream_drop(w->calls[w->first], 0);
        w->first = (w->first + 1) % WRITE_AHEAD;
    }
    release(w); /* what has no name yet is gone with it */
    buffer_release(&w->pending);
    free(w);
}
