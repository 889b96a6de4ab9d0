#include "store/tree_copy.h"

struct copying {
    struct tree_writer *writer;
    struct failure *failure;
};

static int copy_each(void *context, const struct wire_tree_item *item)
{
    const struct copying *x = context;
    return tree_writer_add(x->writer, item, x->failure);
}

int tree_copy(int root_fd, const struct tree_reader_options *options, struct tree_writer *w,
              const struct tree_stop *stop, struct failure *ret_failure)
{
    _cleanup_tree_reader_ struct tree_reader *reader = NULL;
    struct copying each = {.writer = w, .failure = ret_failure};
    struct wire_tree_item item;
    int fd;
    int r = tree_reader_new(root_fd, options, &reader);
    if (r < 0)
        return failure_set(ret_failure, r, "out of memory");
    while ((r = tree_reader_next(reader, &item, &fd, ret_failure)) == 1) {
        if (tree_stopped(stop))
            return failure_set(ret_failure, -ECANCELED, "it is not wanted any more");
        if (item.kind == WIRE_ITEM_FILE)
            r = tree_writer_add_copy(w, &item, fd, stop ? stop->cancelled : NULL,
                                     stop ? stop->context : NULL, ret_failure);
        else
            r = tree_writer_add(w, &item, ret_failure);
        if (r == 0 && fd >= 0)
            r = tree_xattrs(fd, true, copy_each, &each);
        if (r < 0)
            return r;
    }
    return r;
}
