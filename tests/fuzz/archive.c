/* Any bytes, but the first, as an archive: refused, or items that are within the bounds of the
 * table, whose paths lead nowhere but down, whose data is within their sizes, and which can be
 * packed and unpacked again. */
#include <assert.h>
#include <string.h>

#include "archive/pack.h"
#include "archive/unpack.h"
#include "base/cleanup.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Compressed input may unpack to more than there is time for. */
#define SIZE_MAX_HERE ((uint64_t)1 << 20)

struct input {
    const uint8_t *data;
    size_t len, at;
};

struct check {
    struct pack *pack;
    uint64_t size; /* of the entry before */
    bool entry, file;
};

static ssize_t read_some(void *context, const void **ret)
{
    struct input *in = context;
    size_t n = in->len - in->at < 1000 ? in->len - in->at : 1000;
    *ret = in->data + in->at;
    in->at += n;
    return (ssize_t)n;
}

static void check_path(struct bytes path)
{
    char text[WIRE_TREE_PATH_MAX + 3];
    assert(path.len <= WIRE_TREE_PATH_MAX && !(path.len && memchr(path.data, '\0', path.len)));
    text[0] = '/';
    if (path.len)
        memcpy(text + 1, path.data, path.len);
    text[path.len + 1] = '/';
    text[path.len + 2] = '\0';
    assert(path.len == 0 || (!strstr(text, "//") && !strstr(text, "/./") && !strstr(text, "/../")));
}

static void check_item(struct check *c, const struct wire_tree_item *item)
{
    if (item->kind == WIRE_ITEM_DATA) {
        assert(c->file && item->offset <= c->size && item->value.len <= c->size - item->offset);
    } else if (item->kind == WIRE_ITEM_XATTR) {
        assert(c->entry && item->path.len > 5 && memcmp(item->path.data, "user.", 5) == 0);
    } else {
        assert(item->kind >= WIRE_ITEM_DIRECTORY && item->kind <= WIRE_ITEM_FIFO);
        check_path(item->path);
        if (item->kind == WIRE_ITEM_HARD_LINK)
            check_path(item->value);
        c->entry = true;
        c->file = item->kind == WIRE_ITEM_FILE;
        c->size = item->size;
    }
}

static int take_part(void *context, const struct wire_list *items)
{
    struct check *c = context;
    struct bytes element;
    struct failure f;
    uint32_t offset = 0, count = 0;
    assert(items->len <= WIRE_TREE_PART_MAX && items->count <= WIRE_TREE_ITEMS_MAX);
    while (wire_list_next(items, &offset, &element)) {
        struct wire_message m;
        int r = wire_decode(WIRE_TREE_ITEM, element, &m);
        assert(r == 0);
        check_item(c, &m.tree_item);
        count++;
    }
    assert(offset == items->len && count == items->count);
    /* What goes backwards in a file is for a disk, and for no archive. */
    if (c->pack && pack_list(c->pack, items, &f) < 0) {
        pack_free(c->pack);
        c->pack = NULL;
    }
    return 0;
}

static int keep(void *context, const void *data, size_t len)
{
    return buffer_append(context, data, len);
}

static int unpack(const uint8_t *data, size_t len, struct check *c, struct unpack_counts *ret)
{
    struct input in = {.data = data, .len = len};
    const struct unpack_source source = {
        .read = read_some, .context = &in, .max_size = SIZE_MAX_HERE};
    const struct tree_sink sink = {.part = take_part, .context = c};
    struct failure f = {0};
    int r = unpack_run(&source, &sink, ret, &f);
    assert(r == 0 || (r < 0 && f.error == r && f.text[0]));
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_buffer_ struct buffer packed = {0};
    const struct pack_sink sink = {.write = keep, .context = &packed};
    struct check first = {0}, second = {0};
    struct unpack_counts counts, again;
    struct pack_counts written;
    struct failure f;
    if (size == 0 || pack_new(PACK_PLAIN, &sink, &first.pack) < 0)
        return 0;
    int r = unpack(data + 1, size - 1, &first, &counts);
    if (r == 0 && first.pack && pack_finish(first.pack, &written, &f) == 0) {
        assert(written.entries == counts.entries && written.size == counts.size);
        r = unpack(packed.data, packed.len, &second, &again);
        assert(r == 0 && again.entries == counts.entries && again.size == counts.size);
    }
    if (first.pack)
        pack_free(first.pack);
    return 0;
}
