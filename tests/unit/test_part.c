/* Parts of listings: where they end, and entries without their nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "wire/part.h"

static void add_entry(struct buffer *list, uint64_t node, const char *name)
{
    struct wire_message m = {
        .type = WIRE_DIRENT,
        .dirent = {.cookie = 1, .node = node, .ino = 7, .name = bytes_of_string(name)}};
    _cleanup_buffer_ struct buffer element = {0};
    assert_int_equal(wire_encode(&element, &m), 0);
    assert_int_equal(wire_list_append(list, buffer_view(&element)), 0);
}

static void test_nodes(void **state)
{
    const struct {
        uint64_t nodes[6];
        size_t count, runs;
    } cases[] = {
        {{0}, 0, 0},          {{5}, 1, 1},          {{5, 6, 7}, 3, 1}, {{5, 7, 8}, 3, 2},
        {{0, 0, 1, 2}, 4, 2}, {{9, 8, 0, 7}, 4, 4}, {{5, 5}, 2, 2},    {{UINT64_MAX, 0, 1}, 3, 3},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        _cleanup_buffer_ struct buffer list = {0}, bare = {0}, nodes = {0}, expected = {0};
        uint32_t count;
        for (size_t n = 0; n < cases[i].count; n++) {
            add_entry(&list, cases[i].nodes[n], "name");
            add_entry(&expected, 0, "name");
        }
        assert_int_equal(part_take_nodes(buffer_view(&list), &bare, &nodes), 0);
        assert_true(bytes_equal(buffer_view(&bare), buffer_view(&expected)));
        assert_int_equal(nodes.len, cases[i].runs * 12);
        assert_int_equal(part_put_nodes(bare.data, bare.len, buffer_view(&nodes), &count), 0);
        assert_int_equal(count, cases[i].count);
        assert_true(bytes_equal(buffer_view(&bare), buffer_view(&list)));
    }
}

static void add_run(struct buffer *nodes, uint64_t first, uint32_t count)
{
    assert_int_equal(buffer_append_u64(nodes, first), 0);
    assert_int_equal(buffer_append_u32(nodes, count), 0);
}

static void test_what_does_not_fit(void **state)
{
    _cleanup_buffer_ struct buffer list = {0}, nodes = {0}, more = {0};
    uint32_t count;
    add_entry(&list, 0, "a");
    add_entry(&list, 0, "b");
    add_run(&nodes, 1, 1);
    assert_int_equal(part_put_nodes(list.data, list.len, buffer_view(&nodes), &count), -EBADMSG);
    add_run(&nodes, 2, 2);
    assert_int_equal(part_put_nodes(list.data, list.len, buffer_view(&nodes), &count), -EBADMSG);
    nodes.len = 0;
    add_run(&nodes, 1, 2);
    assert_int_equal(part_put_nodes(list.data, list.len, buffer_view(&nodes), &count), 0);
    assert_int_equal(part_put_nodes(list.data, list.len - 1, buffer_view(&nodes), &count),
                     -EBADMSG);
    assert_int_equal(
        part_put_nodes(list.data, list.len, bytes_of(nodes.data, nodes.len - 1), &count), -EBADMSG);
    nodes.len = 0;
    add_run(&nodes, 1, UINT32_MAX);
    assert_int_equal(part_put_nodes(list.data, list.len, buffer_view(&nodes), &count), -EBADMSG);
    /* Runs of nothing. */
    nodes.len = 0;
    add_run(&nodes, 1, 0);
    add_run(&nodes, 1, 2);
    assert_int_equal(part_put_nodes(list.data, list.len, buffer_view(&nodes), &count), 0);
    /* Elements that are no entries, and half ones; what was there before stays. */
    add_entry(&more, 3, "before");
    size_t before = more.len;
    const uint8_t element[] = {2, 0, 0, 0, 'x', 'y'};
    nodes.len = 0;
    assert_int_equal(part_take_nodes(bytes_of(element, sizeof element), &more, &nodes), -EBADMSG);
    assert_int_equal(part_take_nodes(bytes_of(list.data, list.len - 1), &more, &nodes), -EBADMSG);
    assert_int_equal(more.len, before);
    assert_int_equal(nodes.len, 0);
}

static void test_ends(void **state)
{
    size_t ends = 0;
    char name[32];
    for (int i = 0; i < 32000; i++) {
        (void)snprintf(name, sizeof name, "name-%d", i);
        struct bytes bytes = bytes_of_string(name);
        assert_false(part_ends(bytes, PART_SIZE_LEAST - 1));
        assert_true(part_ends(bytes, PART_SIZE_MOST));
        ends += part_ends(bytes, PART_SIZE_LEAST);
    }
    assert_in_range(ends, 800, 1200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_what_does_not_fit),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
