/* Any bytes as a part of a listing from the disk, and as the nodes that a service says are its. The
 * first two bytes say how many of the others are nodes. What can be put together can be taken apart
 * again, and is what it was. */
#include <stdlib.h>

#include "wire/part.h"

static void check(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len < 2)
        return 0;
    size_t nodes_len = (size_t)(data[0] | data[1] << 8) % (len - 1);
    struct bytes nodes = bytes_of(data + 2, nodes_len);
    struct bytes elements = bytes_of(data + 2 + nodes_len, len - 2 - nodes_len);
    _cleanup_buffer_ struct buffer whole = {0}, bare = {0}, again = {0}, runs = {0}, other = {0};
    uint32_t count, count_again;
    check(buffer_append(&whole, elements.data, elements.len) == 0);
    int taken = part_take_nodes(elements, &again, &other);
    if (part_put_nodes(whole.data, whole.len, nodes, &count) < 0)
        return 0;
    check(taken == 0);
    check(part_take_nodes(buffer_view(&whole), &bare, &runs) == 0);
    check(bytes_equal(buffer_view(&bare), buffer_view(&again)));
    check(part_put_nodes(bare.data, bare.len, buffer_view(&runs), &count_again) == 0);
    check(bytes_equal(buffer_view(&bare), buffer_view(&whole)) && count == count_again);
    const struct wire_list list = {.data = whole.data, .len = (uint32_t)whole.len, .count = count};
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message m;
    while (wire_list_next(&list, &offset, &element))
        (void)wire_decode(WIRE_DIRENT, element, &m);
    return 0;
}
