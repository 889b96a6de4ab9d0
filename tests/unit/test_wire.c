#include "unit.h"

#include "samples.h"

/* Encodes into a fresh heap block of exactly the payload's size, so that a sanitizer sees a
 * read past its end. */
static struct bytes encoded(const struct wire_message *m)
{
    struct buffer b = {0};
    assert_int_equal(wire_encode(&b, m), 0);
    uint8_t *exact = malloc(b.len);
    assert_non_null(exact);
    memcpy(exact, b.data, b.len);
    struct bytes view = bytes_of(exact, b.len);
    buffer_release(&b);
    return view;
}

static void free_bytes(struct bytes b)
{
    free((void *)(uintptr_t)b.data);
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static void table_is_sane(void **state)
{
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        assert_ptr_equal(wire_row(row->type), row);
        assert_true(row->min_payload >= 4 && row->min_payload <= row->max_payload);
        const struct wire_row *owner = wire_row(row->owner);
        switch (row->class) {
        case WIRE_CLASS_REQUEST:
            assert_int_equal(row->from, WIRE_FROM_CLIENT);
            assert_non_null(owner);
            assert_int_equal(owner->class, WIRE_CLASS_REPLY);
            assert_int_equal(owner->from, WIRE_FROM_SERVER);
            break;
        case WIRE_CLASS_ITEM:
            assert_non_null(owner);
            assert_int_equal(owner->class, WIRE_CLASS_REQUEST);
            break;
        case WIRE_CLASS_CONTROL:
            assert_true(!owner || owner->class == WIRE_CLASS_REQUEST);
            break;
        case WIRE_CLASS_REPLY:
        case WIRE_CLASS_NOTICE:
        case WIRE_CLASS_RECORD:
            assert_null(owner);
            break;
        }
    }
    assert_null(wire_row(0));
    assert_null(wire_row(0xffff));
    assert_null(wire_row(0x10001));
}

static void header_is_little_endian(void **state)
{
    static const uint8_t expected[WIRE_HEADER_SIZE] = {
        4, 3, 2, 1, 0x01, 0x02, 0x02, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
    const struct wire_header h = {.length = 0x01020304,
                                  .type = WIRE_LOOKUP,
                                  .flags = WIRE_FRAME_ZSTD,
                                  .tag = UINT64_C(0x1122334455667788)};
    uint8_t raw[WIRE_HEADER_SIZE];
    wire_header_encode(raw, &h);
    assert_memory_equal(raw, expected, sizeof raw);
    struct wire_header back;
    wire_header_decode(raw, &back);
    assert_int_equal(back.length, h.length);
    assert_int_equal(back.type, h.type);
    assert_int_equal(back.flags, h.flags);
    assert_true(back.tag == h.tag);
}

/* The bytes of one message, by hand: the format must not move. */
static void lookup_by_hand(void **state)
{
    static const uint8_t expected[] = {0x2a, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0, 'a', 0, 0xff};
    const struct wire_message m = {
        .type = WIRE_LOOKUP,
        .lookup = {.parent = UINT64_C(0x010000000000002a), .name = bytes_of("a\0\xff", 3)}};
    struct bytes raw = encoded(&m);
    assert_int_equal(raw.len, sizeof expected);
    assert_memory_equal(raw.data, expected, sizeof expected);
    struct wire_message back;
    assert_int_equal(wire_decode(WIRE_LOOKUP, raw, &back), 0);
    assert_true(back.lookup.parent == m.lookup.parent);
    assert_true(bytes_equal(back.lookup.name, m.lookup.name));
    free_bytes(raw);
}

static void attr_by_hand(void **state)
{
    struct wire_message m = {.type = WIRE_ATTRS};
    m.attrs.attr = (struct wire_attr){.ino = 1,
                                      .generation = 2,
                                      .version = 3,
                                      .size = 4,
                                      .blocks = 5,
                                      .mode = 6,
                                      .nlink = 7,
                                      .uid = 8,
                                      .gid = 9,
                                      .rdev = 10,
                                      .blksize = 11,
                                      .atime = {-1, 12},
                                      .mtime = {13, 14},
                                      .ctime = {15, 16}};
    uint8_t expected[WIRE_ATTR_SIZE] = {0};
    for (uint8_t i = 0; i < 5; i++)
        expected[8 * i] = i + 1;
    for (uint8_t i = 0; i < 6; i++)
        expected[40 + 4 * i] = i + 6;
    memset(expected + 64, 0xff, 8);
    expected[72] = 12;
    expected[76] = 13;
    expected[84] = 14;
    expected[88] = 15;
    expected[96] = 16;
    struct bytes raw = encoded(&m);
    assert_int_equal(raw.len, sizeof expected);
    assert_memory_equal(raw.data, expected, sizeof expected);
    struct wire_message back;
    assert_int_equal(wire_decode(WIRE_ATTRS, raw, &back), 0);
    assert_true(back.attrs.attr.atime.sec == -1 && back.attrs.attr.ctime.nsec == 16);
    free_bytes(raw);
}

/* Each message, with its fields at their bounds, comes back as it went; and no cut of it, nor
 * it with a byte more, decodes. */
static void every_message_round_trips(void **state)
{
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        for (int kind = 0; kind < SAMPLE_KINDS; kind++) {
            struct sample sample;
            sample_make(row, (enum sample_kind)kind, &sample);
            struct bytes raw = encoded(&sample.message);
            assert_in_range(raw.len, row->min_payload, row->max_payload);
            if (kind == SAMPLE_LEAST)
                assert_int_equal(raw.len, row->min_payload);
            struct wire_message back;
            assert_int_equal(wire_decode(row->type, raw, &back), 0);
            struct bytes again = encoded(&back);
            assert_true(bytes_equal(raw, again));
            free_bytes(again);
            for (size_t cut = 0; cut < raw.len; cut += 1 + cut / 64)
                assert_int_equal(wire_decode(row->type, bytes_of(raw.data, cut), &back), -EBADMSG);
            struct buffer longer = {0};
            assert_int_equal(buffer_append(&longer, raw.data, raw.len), 0);
            assert_int_equal(buffer_append_u8(&longer, 0), 0);
            assert_int_equal(wire_decode(row->type, buffer_view(&longer), &back), -EBADMSG);
            buffer_release(&longer);
            free_bytes(raw);
            sample_release(&sample);
        }
    }
}

/* The payload with the bytes of one field, `len` of them at place, become new_len. */
static void expect_resized_refused(enum wire_type type, struct bytes raw, size_t place, size_t len,
                                   size_t new_len)
{
    struct buffer b = {0};
    struct wire_message m;
    assert_int_equal(buffer_append(&b, raw.data, place), 0);
    assert_int_equal(buffer_append_u32(&b, (uint32_t)new_len), 0);
    for (size_t i = 0; i < new_len; i++)
        assert_int_equal(buffer_append_u8(&b, 'x'), 0);
    size_t rest = place + 4 + len;
    assert_int_equal(buffer_append(&b, raw.data + rest, raw.len - rest), 0);
    assert_int_equal(wire_decode(type, buffer_view(&b), &m), -EBADMSG);
    buffer_release(&b);
}

static void expect_encode_refused(const struct wire_message *m)
{
    struct buffer b = {0};
    assert_int_equal(buffer_append(&b, "kept", 4), 0);
    assert_int_equal(wire_encode(&b, m), -EINVAL);
    assert_int_equal(b.len, 4);
    assert_memory_equal(b.data, "kept", 4);
    buffer_release(&b);
}

/* One step outside the bounds of each field, to both sides of the codec. */
static void every_bound_holds(void **state)
{
    for (size_t i = 0; i < wire_row_count(); i++) {
        const struct wire_row *row = wire_row_at(i);
        for (size_t j = 0; j < row->field_count; j++) {
            const struct wire_field *field = &row->fields[j];
            struct sample sample;
            sample_make(row, SAMPLE_LEAST, &sample);
            struct bytes raw = encoded(&sample.message);
            struct wire_message back;
            void *value = (uint8_t *)&sample.message + field->offset;
            /* In the least message every field before this one has a fixed place. */
            size_t place = 0;
            for (size_t k = 0; k < j; k++) {
                static const size_t sizes[] = {4, 8, 12, WIRE_ATTR_SIZE, 4, 4};
                place += sizes[row->fields[k].type] + row->fields[k].min;
            }
            uint8_t *in_raw = (uint8_t *)(uintptr_t)raw.data + place;
            struct buffer big = {0};
            switch (field->type) {
            case WIRE_FIELD_U32:
            case WIRE_FIELD_U64:
                break;
            case WIRE_FIELD_TIME:
                ((struct wire_time *)value)->nsec = 1000000000;
                expect_encode_refused(&sample.message);
                put_u32(in_raw + 8, 1000000000);
                assert_int_equal(wire_decode(row->type, raw, &back), -EBADMSG);
                break;
            case WIRE_FIELD_ATTR:
                ((struct wire_attr *)value)->mtime.nsec = UINT32_MAX;
                expect_encode_refused(&sample.message);
                put_u32(in_raw + 84, 1000000000);
                assert_int_equal(wire_decode(row->type, raw, &back), -EBADMSG);
                break;
            case WIRE_FIELD_BYTES: {
                struct bytes *bytes = value;
                assert_int_equal(buffer_reserve(&big, field->max + 1), 0);
                memset(big.data, 'x', field->max + 1);
                *bytes = bytes_of(big.data, (size_t)field->max + 1);
                expect_encode_refused(&sample.message);
                if (field->min > 0) {
                    bytes->len = field->min - 1;
                    expect_encode_refused(&sample.message);
                    expect_resized_refused(row->type, raw, place, field->min, field->min - 1);
                }
                expect_resized_refused(row->type, raw, place, field->min, (size_t)field->max + 1);
                put_u32(in_raw, UINT32_MAX);
                assert_int_equal(wire_decode(row->type, raw, &back), -EBADMSG);
                break;
            }
            case WIRE_FIELD_LIST: {
                struct wire_list *list = value;
                for (uint32_t n = 0; n <= field->max_count; n++)
                    assert_int_equal(wire_list_append(&big, (struct bytes){0}), 0);
                *list = wire_list_of(&big, field->max_count + 1);
                expect_encode_refused(&sample.message); /* too many */
                list->len = 8;
                list->count = 1;
                expect_encode_refused(&sample.message); /* not as many as said */
                list->count = 3;
                expect_encode_refused(&sample.message);
                big.len = 0;
                assert_int_equal(buffer_append(&big, "\2\0\0\0x", 5), 0);
                *list = wire_list_of(&big, 1);
                expect_encode_refused(&sample.message); /* an element cut short */
                big.len = 0;
                assert_int_equal(buffer_append(&big, "\0\0\0\0\0\0", 6), 0);
                *list = wire_list_of(&big, 1);
                expect_encode_refused(&sample.message); /* bytes after the last element */
                put_u32(in_raw, field->max + 1);
                assert_int_equal(wire_decode(row->type, raw, &back), -EBADMSG);
                break;
            }
            }
            buffer_release(&big);
            free_bytes(raw);
            sample_release(&sample);
        }
    }
}

static void lists_from_the_wire_are_checked(void **state)
{
    /* WORKSPACES: more, then a list; sizes that do not add up. */
    static const struct {
        const char *raw;
        size_t len;
        int result;
    } cases[] = {
        {"\0\0\0\0"
         "\0\0\0\0",
         8, 0},
        {"\0\0\0\0"
         "\4\0\0\0"
         "\0\0\0\0",
         12, 0},
        {"\0\0\0\0"
         "\5\0\0\0"
         "\1\0\0\0x",
         13, 0},
        {"\0\0\0\0"
         "\3\0\0\0"
         "\0\0\0",
         11, -EBADMSG},
        {"\0\0\0\0"
         "\5\0\0\0"
         "\2\0\0\0x",
         13, -EBADMSG},
        {"\0\0\0\0"
         "\5\0\0\0"
         "\0\0\0\0x",
         13, -EBADMSG},
        {"\0\0\0\0"
         "\5\0\0\0"
         "\xff\xff\xff\xffx",
         13, -EBADMSG},
        {"\0\0\0\0"
         "\5\0\0\0"
         "\1\0\0\0x"
         "y",
         14, -EBADMSG},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct wire_message m;
        assert_int_equal(wire_decode(WIRE_WORKSPACES, bytes_of(cases[i].raw, cases[i].len), &m),
                         cases[i].result);
    }
}

static void list_elements_come_in_order(void **state)
{
    struct buffer b = {0};
    assert_int_equal(wire_list_append(&b, bytes_of_string("one")), 0);
    assert_int_equal(wire_list_append(&b, bytes_of_string("")), 0);
    assert_int_equal(wire_list_append(&b, bytes_of("\0x", 2)), 0);
    const struct wire_list list = wire_list_of(&b, 3);
    uint32_t offset = 0;
    struct bytes element;
    assert_true(wire_list_next(&list, &offset, &element));
    assert_true(bytes_equal(element, bytes_of_string("one")));
    assert_true(wire_list_next(&list, &offset, &element));
    assert_int_equal(element.len, 0);
    assert_true(wire_list_next(&list, &offset, &element));
    assert_true(bytes_equal(element, bytes_of("\0x", 2)));
    assert_false(wire_list_next(&list, &offset, &element));
    buffer_release(&b);
}

static void unknown_types_are_refused(void **state)
{
    struct wire_message m;
    assert_int_equal(wire_decode((enum wire_type)0x7777, bytes_of("1234", 4), &m), -EBADMSG);
    m = (struct wire_message){.type = WIRE_NONE};
    expect_encode_refused(&m);
}

static void numbers_have_names(void **state)
{
    assert_string_equal(wire_verdict_name(WIRE_VERDICT_NOT_STARTED), "not_started");
    assert_null(wire_verdict_name(0));
    assert_string_equal(wire_verdict_name(WIRE_VERDICT_RUNNING), "running");
    assert_null(wire_verdict_name(9));
    assert_string_equal(wire_means_name(WIRE_MEANS_TREE), "tree");
    assert_null(wire_means_name(4));
    assert_string_equal(wire_stage_name(WIRE_STAGE_EXECVE), "execve");
    assert_string_equal(wire_stage_name(WIRE_STAGE_ATTEST), "attest");
    assert_null(wire_stage_name(10));
}

static void bulk_is_what_carries_content(void **state)
{
    static const enum wire_type bulk[] = {WIRE_DATA,        WIRE_WRITE,      WIRE_FILES,
                                          WIRE_EXEC_OUTPUT, WIRE_EXEC_INPUT, WIRE_TREE_IN,
                                          WIRE_TREE_OUT};
    size_t found = 0;
    for (size_t i = 0; i < wire_row_count(); i++)
        found += wire_row_is_bulk(wire_row_at(i));
    assert_int_equal(found, sizeof bulk / sizeof *bulk);
    for (size_t i = 0; i < found; i++)
        assert_true(wire_row_is_bulk(wire_row(bulk[i])));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_sane),
        cmocka_unit_test(header_is_little_endian),
        cmocka_unit_test(lookup_by_hand),
        cmocka_unit_test(attr_by_hand),
        cmocka_unit_test(every_message_round_trips),
        cmocka_unit_test(every_bound_holds),
        cmocka_unit_test(lists_from_the_wire_are_checked),
        cmocka_unit_test(list_elements_come_in_order),
        cmocka_unit_test(unknown_types_are_refused),
        cmocka_unit_test(numbers_have_names),
        cmocka_unit_test(bulk_is_what_carries_content),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
