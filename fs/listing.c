#include "listing.h"

static void give_back_rest(struct inode_table *inodes, const struct wire_list *list,
                           uint32_t offset)
{
    struct bytes element;
    while (wire_list_next(list, &offset, &element)) {
        struct wire_message m;
        if (wire_decode(WIRE_DIRENT, element, &m) == 0 && m.dirent.node)
            inode_give_back(inodes, m.dirent.node, 1);
    }
}

static struct wire_list list_of(const struct listing *l)
{
    return (struct wire_list){
        .data = l->entries.data, .len = (uint32_t)l->entries.len, .count = l->count};
}

int listing_new(struct inode_table *inodes, const struct wire_dirents *page, uint64_t cookie,
                uint64_t stamp, struct listing **ret)
{
    struct listing *l = calloc(1, sizeof *l);
    if (!l || buffer_append(&l->entries, page->entries.data, page->entries.len) < 0) {
        give_back_rest(inodes, &page->entries, 0);
        free(l);
        return -ENOMEM;
    }
    l->count = page->entries.count;
    l->cookie = cookie;
    l->stamp = stamp;
    l->connection = inodes->connection;
    /* An empty page that is not the last would be asked for again, for ever. */
    l->end = page->end || page->entries.count == 0;
    *ret = l;
    return 0;
}

int listing_peek(const struct listing *l, struct wire_message *ret, uint32_t *ret_next)
{
    struct wire_list list = list_of(l);
    struct bytes element;
    uint32_t next = l->offset;
    if (!wire_list_next(&list, &next, &element))
        return 0;
    int r = wire_decode(WIRE_DIRENT, element, ret);
    if (r < 0)
        return r;
    *ret_next = next;
    return 1;
}

void listing_take(struct listing *l, const struct wire_message *entry, uint32_t next)
{
    l->offset = next;
    l->cookie = entry->dirent.cookie;
}

void listing_free(struct inode_table *inodes, struct listing *l)
{
    if (!l)
        return;
    if (l->connection == inodes->connection) {
        struct wire_list list = list_of(l);
        give_back_rest(inodes, &list, l->offset);
    }
    buffer_release(&l->entries);
    free(l);
}

int workspace_listing_append(struct workspace_listing *l, const struct wire_workspaces *page)
{
    uint32_t offset = 0;
    struct bytes element;
    while (wire_list_next(&page->items, &offset, &element)) {
        struct wire_message m;
        int r = wire_decode(WIRE_WORKSPACE, element, &m);
        if (r < 0)
            return r;
        struct bytes name = m.workspace.name;
        /* The next page is asked for after the last name: names must rise, or a listing
         * could go on for ever. */
        size_t count = workspace_listing_count(l);
        if (memchr(name.data, '/', name.len) || memchr(name.data, '\0', name.len))
            return -EBADMSG;
        if (count) {
            struct bytes last = bytes_of_string(workspace_listing_at(l, count - 1, NULL));
            size_t common = last.len < name.len ? last.len : name.len;
            int order = memcmp(last.data, name.data, common);
            if (order > 0 || (order == 0 && last.len >= name.len))
                return -EBADMSG;
        }
        r = buffer_reserve(&l->names, name.len + 1);
        if (r == 0)
            r = buffer_reserve(&l->index, 8);
        if (r < 0)
            return r;
        (void)buffer_append_u32(&l->index, (uint32_t)l->names.len);
        (void)buffer_append_u32(&l->index, m.workspace.slot);
        (void)buffer_append(&l->names, name.data, name.len);
        (void)buffer_append_u8(&l->names, 0);
    }
    l->complete = !page->more || page->items.count == 0;
    return 0;
}

size_t workspace_listing_count(const struct workspace_listing *l)
{
    return l->index.len / 8;
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

const char *workspace_listing_at(const struct workspace_listing *l, size_t i, uint32_t *ret_slot)
{
    const uint8_t *entry = l->index.data + i * 8;
    if (ret_slot)
        *ret_slot = u32_at(entry + 4);
    return (const char *)l->names.data + u32_at(entry);
}

int workspace_listing_copy(const struct workspace_listing *l, struct workspace_listing **ret)
{
    struct workspace_listing *copy = calloc(1, sizeof *copy);
    if (!copy || buffer_append(&copy->names, l->names.data, l->names.len) < 0 ||
        buffer_append(&copy->index, l->index.data, l->index.len) < 0) {
        workspace_listing_free(copy);
        return -ENOMEM;
    }
    copy->complete = l->complete;
    *ret = copy;
    return 0;
}

void workspace_listing_free(struct workspace_listing *l)
{
    if (!l)
        return;
    buffer_release(&l->names);
    buffer_release(&l->index);
    free(l);
}
