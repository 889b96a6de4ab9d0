#include "store/workspace_source.h"

#include "store/tree_copy.h"
#include "store/tree_file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define TREE_DIRECTORY "tree"
#define TREE_MODE 0755

struct filling {
    struct tree_writer *writer;
    struct failure *failure;
};

static int fill_part(void *context, const struct wire_list *items)
{
    const struct filling *x = context;
    return tree_writer_add_list(x->writer, items, x->failure);
}

/* What the caller sends, to the last of it. */
static int fill_from_items(const struct transfer *t, struct tree_writer *writer, struct failure *f)
{
    _cleanup_buffer_ struct buffer part = {0};
    for (;;) {
        uint32_t count;
        bool end;
        int r = t->receive(t->context, &part, &count, &end);
        if (r < 0)
            return failure_set(f, r, "%s", strerror(-r));
        const struct wire_list items = wire_list_of(&part, count);
        r = tree_writer_add_list(writer, &items, f);
        if (r < 0 || end)
            return r;
    }
}

static int fill(struct store *store, const struct workspace_source *source,
                struct tree_writer *writer, struct failure *f)
{
    const struct tree_reader_options reading = {.openat2_missing = store->openat2_missing};
    const struct tree_stop stop = {.cancelled = source->transfer->cancelled,
                                   .context = source->transfer->context};
    if (source->tree_fd >= 0) {
        int r = tree_copy(source->tree_fd, &reading, writer, &stop, f);
        store_lock(store);
        bool removed = source->workspace && source->workspace->removed;
        store_unlock(store);
        return r == 0 && removed ? failure_set(f, -ENOENT,
                                               "the workspace to start from was "
                                               "removed meanwhile")
                                 : r;
    }
    if (source->file_fd >= 0) {
        struct filling filling = {.writer = writer, .failure = f};
        const struct tree_sink sink = {.part = fill_part, .context = &filling};
        f->text[0] = '\0';
        int r = tree_file_read(source->file_fd, &sink, &stop);
        if (r < 0 && !f->text[0])
            (void)failure_set(f, r, "%s", r == -EIO ? "the snapshot is damaged" : strerror(-r));
        return r;
    }
    return fill_from_items(source->transfer, writer, f);
}

int workspace_source_build(struct store *store, const struct workspace_source *source,
                           int directory_fd, struct failure *ret_failure)
{
    bool own = source->tree_fd >= 0 || source->file_fd >= 0;
    const struct visibility_view reserved = {0}; /* which hides what is the service's own */
    const struct tree_writer_options writing = {
        .own = own, .openat2_missing = store->openat2_missing, .view = own ? NULL : &reserved};
    _cleanup_tree_writer_ struct tree_writer *writer = NULL;
    struct tree_counts counts;
    if (mkdirat(directory_fd, TREE_DIRECTORY, TREE_MODE) < 0)
        return failure_set(ret_failure, -errno, "cannot make its directory: %s", strerror(errno));
    _cleanup_close_ int root =
        openat(directory_fd, TREE_DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = root < 0 ? -errno : tree_writer_new(root, &writing, &writer);
    if (r < 0)
        return failure_set(ret_failure, r, "cannot make its directory: %s", strerror(-r));
    r = fill(store, source, writer, ret_failure);
    return r < 0 ? r : tree_writer_finish(writer, &counts, ret_failure);
}
