#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "gateway/file.h"

struct piece {
    struct upstream_call *call;
    uint64_t offset;
    uint32_t size;
};

struct file_reader {
    struct tree *tree;
    uint64_t handle;
    struct wire_attr attr;
    uint64_t next, end;                   /* to be asked for */
    struct piece pieces[FILE_READ_AHEAD]; /* asked for, a ring */
    size_t first, count;
    struct wire_frame *frame; /* what was given last */
};

void file_tag(const struct wire_attr *attr, char ret[FILE_TAG_SIZE])
{
    (void)snprintf(ret, FILE_TAG_SIZE, "\"%" PRIx64 "-%" PRIx64 "-%" PRIx64 "\"", attr->ino,
                   attr->generation, attr->version);
}

int file_open_reader(struct tree *t, const struct place *p, struct file_reader **ret,
                     struct failure *ret_failure)
{
    _cleanup_frame_ struct wire_frame *reply = NULL;
    if (p->node == 0)
        return failure_set(ret_failure, -ENOENT, "%s", strerror(ENOENT));
    if (S_ISDIR(p->attr.mode))
        return failure_set(ret_failure, -EISDIR, "this is a directory");
    if (!S_ISREG(p->attr.mode))
        return failure_set(ret_failure, -EINVAL, "this is no regular file");
    _cleanup_reader_ struct file_reader *r = calloc(1, sizeof *r);
    if (!r)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    r->tree = t;
    const struct wire_message m = {.type = WIRE_OPEN,
                                   .open = {.node = p->node, .flags = WIRE_OPEN_READ}};
    int e = tree_call(t, &m, &reply, ret_failure);
    if (e < 0)
        return e;
    r->handle = reply->message.opened.handle;
    r->attr = reply->message.opened.attr;
    *ret = take_ptr(r);
    return 0;
}

int file_walk_reader(struct tree *t, struct bytes path, struct place *ret_place,
                     struct file_reader **ret, struct failure *ret_failure)
{
    int r = -ESTALE;
    for (int i = 0; i < PATH_TRIES && r == -ESTALE; i++) {
        path_release(ret_place);
        *ret_place = (struct place){0};
        r = path_walk(t, path, PATH_FOLLOW, ret_place, ret_failure);
        if (r == 0)
            r = file_open_reader(t, ret_place, ret, ret_failure);
    }
    return r;
}

static void drop_pieces(struct file_reader *r)
{
    for (; r->count > 0; r->count--) {
        upstream_drop(r->pieces[r->first].call, 0);
        r->first = (r->first + 1) % FILE_READ_AHEAD;
    }
    wire_frame_free(take_ptr(r->frame));
}

void file_close_reader(struct file_reader *r)
{
    if (!r)
        return;
    drop_pieces(r);
    const struct wire_message m = {.type = WIRE_RELEASE, .release.handle = r->handle};
    if (r->handle)
        (void)upstream_notify(tree_upstream(r->tree), &m);
    free(r);
}

const struct wire_attr *file_attr(const struct file_reader *r)
{
    return &r->attr;
}

void file_seek(struct file_reader *r, uint64_t offset, uint64_t length)
{
    drop_pieces(r);
    r->next = offset;
    r->end = offset + length;
}

static int ask_ahead(struct file_reader *r)
{
    while (r->count < FILE_READ_AHEAD && r->next < r->end) {
        struct piece *p = &r->pieces[(r->first + r->count) % FILE_READ_AHEAD];
        uint64_t left = r->end - r->next;
        *p = (struct piece){.offset = r->next,
                            .size = left < FILE_READ_SIZE ? (uint32_t)left : FILE_READ_SIZE};
        const struct wire_message m = {
            .type = WIRE_READ, .read = {.handle = r->handle, .offset = p->offset, .size = p->size}};
        int e = upstream_start(tree_upstream(r->tree), &m, &p->call);
        if (e < 0)
            return e;
        r->next += p->size;
        r->count++;
    }
    return 0;
}

int file_next(struct file_reader *r, struct bytes *ret, struct failure *ret_failure)
{
    wire_frame_free(take_ptr(r->frame));
    int e = ask_ahead(r);
    if (e < 0)
        return failure_set(ret_failure, e, "%s", strerror(-e));
    if (r->count == 0)
        return 0;
    struct piece p = r->pieces[r->first];
    r->first = (r->first + 1) % FILE_READ_AHEAD;
    r->count--;
    e = upstream_finish(p.call, &r->frame, ret_failure);
    if (e < 0)
        return e;
    *ret = r->frame->message.data.data;
    /* Fewer only at the end of the file, which is not where it was. */
    if (ret->len < p.size)
        return failure_set(ret_failure, -ENODATA, "the file has become shorter");
    return 1;
}
