#include "wire/tree_batch.h"

int tree_batch_flush(struct tree_batch *b)
{
    if (b->count == 0)
        return 0;
    const struct wire_list items = wire_list_of(&b->list, b->count);
    int r = b->sink.part(b->sink.context, &items);
    b->list.len = 0;
    b->count = 0;
    return r;
}

int tree_batch_add(struct tree_batch *b, const struct wire_tree_item *item)
{
    const struct wire_message m = {.type = WIRE_TREE_ITEM, .tree_item = *item};
    b->element.len = 0;
    int r = wire_encode(&b->element, &m);
    if (r < 0)
        return r;
    if (b->list.len + sizeof(uint32_t) + b->element.len > WIRE_TREE_PART_MAX ||
        b->count == WIRE_TREE_ITEMS_MAX) {
        r = tree_batch_flush(b);
        if (r < 0)
            return r;
    }
    r = wire_list_append(&b->list, buffer_view(&b->element));
    b->count += r == 0;
    return r;
}

void tree_batch_release(struct tree_batch *b)
{
    buffer_release(&b->list);
    buffer_release(&b->element);
}
