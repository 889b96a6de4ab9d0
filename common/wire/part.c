#include "wire/part.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/hash.h"

/* One name of so many ends a part. */
#define PART_NAMES 32

/* In a DIRENT. */
#define NODE_AT 8
#define NODE_SIZE 8

#define RUN_SIZE 12
#define RUN_COUNT_MAX 1024 /* stops a part from naming nodes without end */

bool part_ends(struct bytes name, size_t size)
{
    if (size < PART_SIZE_LEAST)
        return false;
    return size >= PART_SIZE_MOST ||
           hash_end(hash_bytes(HASH_START, name.data, name.len)) % PART_NAMES == 0;
}

static uint64_t load(const uint8_t *p, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

static void store(uint8_t *p, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

/* --- nodes ------------------------------------------------------------------------------- */

/* Lengthens the last run, from `start` on, or begins one. */
static int add_node(struct buffer *nodes, size_t start, uint64_t node)
{
    uint8_t *run = nodes->len > start ? nodes->data + nodes->len - RUN_SIZE : NULL;
    if (run) {
        uint64_t first = load(run, 8), count = load(run + 8, 4);
        if (first ? node && node == first + count : node == 0) {
            store(run + 8, count + 1, 4);
            return 0;
        }
    }
    int r = buffer_append_u64(nodes, node);
    return r < 0 ? r : buffer_append_u32(nodes, 1);
}

int part_take_nodes(struct bytes elements, struct buffer *ret_elements, struct buffer *ret_nodes)
{
    size_t before = ret_elements->len, start = ret_nodes->len;
    const struct wire_list list = {.data = elements.data, .len = (uint32_t)elements.len};
    uint32_t offset = 0;
    struct bytes element;
    int r = buffer_append(ret_elements, elements.data, elements.len);
    while (r == 0 && wire_list_next(&list, &offset, &element)) {
        if (element.len < NODE_AT + NODE_SIZE) {
            r = -EBADMSG;
            break;
        }
        r = add_node(ret_nodes, start, load(element.data + NODE_AT, NODE_SIZE));
        if (r == 0)
            memset(ret_elements->data + before + (offset - element.len) + NODE_AT, 0, NODE_SIZE);
    }
    if (r == 0 && offset != list.len)
        r = -EBADMSG;
    if (r < 0) {
        ret_elements->len = before;
        ret_nodes->len = start;
    }
    return r;
}

bool part_next_nodes(struct bytes nodes, size_t *at, uint64_t *ret_first, uint32_t *ret_count)
{
    if (nodes.len - *at < RUN_SIZE)
        return false;
    *ret_first = load(nodes.data + *at, 8);
    *ret_count = (uint32_t)load(nodes.data + *at + 8, 4);
    *at += RUN_SIZE;
    return *ret_count <= RUN_COUNT_MAX;
}

int part_put_nodes(uint8_t *elements, size_t len, struct bytes nodes, uint32_t *ret_count)
{
    const struct wire_list list = {.data = elements, .len = (uint32_t)len};
    uint32_t offset = 0, count = 0, all = 0;
    struct bytes element;
    uint64_t node = 0;
    size_t at = 0;
    while (wire_list_next(&list, &offset, &element)) {
        while (count == 0)
            if (!part_next_nodes(nodes, &at, &node, &count))
                return -EBADMSG;
        if (element.len < NODE_AT + NODE_SIZE)
            return -EBADMSG;
        store(elements + (offset - element.len) + NODE_AT, node, NODE_SIZE);
        node += node != 0;
        count--;
        all++;
    }
    if (offset != len || count || at != nodes.len)
        return -EBADMSG;
    *ret_count = all;
    return 0;
}

int part_digest(struct bytes elements, uint8_t ret[PART_DIGEST_SIZE])
{
    return EVP_Digest(elements.data, elements.len, ret, NULL, EVP_sha256(), NULL) == 1 ? 0 : -EIO;
}
