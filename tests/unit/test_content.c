/* Contents of files in the driver: what takes them away, what keeps them, how much there is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "handle.h"

struct world {
    struct inode_table t;
    struct handle_table handles;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    assert_int_equal(inode_table_init(&w->t, INODE_WORKSPACE), 0);
    w->t.connection = 1;
    w->handles.inodes = &w->t;
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    handle_table_release(&w->handles);
    content_forget(&w->t);
    assert_int_equal(w->t.content.count, 0);
    assert_int_equal(w->t.content.bytes, 0);
    assert_int_equal(w->t.content.pinned_bytes, 0);
    assert_null(w->t.content.newest);
    assert_null(w->t.content.oldest);
    inode_table_release(&w->t);
    free(w);
    return 0;
}

static struct inode *enter(struct world *w, uint64_t ino)
{
    const struct wire_attr a = {
        .ino = ino, .generation = 7, .mode = S_IFREG | 0644, .flags = WIRE_ATTR_COVERED};
    char name[2] = {(char)('a' + ino % 26), 0};
    struct inode *i;
    assert_int_equal(inode_enter(&w->t, ino, &a, 0, w->t.root, bytes_of_string(name), &i), 0);
    inode_looked_up(i);
    return i;
}

static struct content *ask(struct world *w, uint64_t ino)
{
    struct content *c;
    assert_null(content_get(&w->t, ino, 7));
    assert_int_equal(content_ask(&w->t, ino, 7, true, &c), 0);
    assert_ptr_equal(content_get(&w->t, ino, 7), c);
    return c;
}

static struct wire_file file_of(uint64_t ino, const char *data, size_t size)
{
    return (struct wire_file){
        .node = ino,
        .attr = {.ino = ino, .generation = 7, .size = size, .flags = WIRE_ATTR_COVERED},
        .data = bytes_of(data, size)};
}

static bool take(struct world *w, struct content *c, const char *data, bool keep)
{
    const struct wire_file file = file_of(c->ino, data, strlen(data));
    bool here = content_take(&w->t, c, &file, keep);
    content_unpin(&w->t, c);
    return here;
}

static struct content *have(struct world *w, uint64_t ino, const char *data)
{
    struct content *c = ask(w, ino);
    assert_true(take(w, c, data, true));
    return c;
}

static struct handle *open_by(struct world *w, struct inode *i, struct content *c)
{
    struct handle *h;
    assert_int_equal(handle_new(&w->handles, i, 0, 0, WIRE_OPEN_READ, &h), 0);
    content_use(&w->t, c);
    h->content = content_pin(&w->t, c);
    return h;
}

/* --- tests ------------------------------------------------------------------------------ */

static void test_it_is_found_while_it_is_right(void **state)
{
    struct world *w = *state;
    struct content *c = have(w, 5, "text");
    assert_ptr_equal(content_get(&w->t, 5, 7), c);
    assert_null(content_get(&w->t, 5, 8));
    assert_null(content_get(&w->t, 6, 7));
    assert_true(c->here);
    assert_int_equal(c->size, 4);
    assert_memory_equal(c->data, "text", 4);
    content_changed(&w->t, 6, 7);
    assert_ptr_equal(content_get(&w->t, 5, 7), c);
    content_changed(&w->t, 5, 7);
    assert_null(content_get(&w->t, 5, 7));
    assert_int_equal(w->t.content.count, 0);
    assert_int_equal(w->t.content.unused, 1);
}

static void test_what_changes_on_its_way_is_not_kept(void **state)
{
    struct world *w = *state;
    struct content *c = ask(w, 5);
    content_changed(&w->t, 5, 7);
    assert_null(content_get(&w->t, 5, 7));
    /* It is asked for once more before the first answer is here. */
    struct content *second = ask(w, 5);
    assert_false(take(w, c, "old", true));
    assert_ptr_equal(content_get(&w->t, 5, 7), second);
    assert_true(take(w, second, "new", true));
    assert_memory_equal(content_get(&w->t, 5, 7)->data, "new", 3);
    c = ask(w, 6);
    content_forget(&w->t);
    assert_false(take(w, c, "old", true));
    assert_null(content_get(&w->t, 6, 7));
    assert_int_equal(w->t.content.count, 0);
}

static void test_answers_that_are_not_kept(void **state)
{
    struct world *w = *state;
    assert_false(take(w, ask(w, 5), "text", false));
    assert_null(content_get(&w->t, 5, 7));
    struct wire_file bad[4];
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        bad[i] = file_of(5, "text", 4);
    bad[0].attr.flags = 0; /* changes would not be reported */
    bad[1].error = 13;
    bad[2].attr.ino = 6;  /* another file */
    bad[3].attr.size = 5; /* of another version */
    for (size_t i = 0; i <= ARRAY_SIZE(bad); i++) {
        struct content *c = ask(w, 5);
        assert_false(content_take(&w->t, c, i < ARRAY_SIZE(bad) ? &bad[i] : NULL, true));
        content_unpin(&w->t, c);
        assert_null(content_get(&w->t, 5, 7));
    }
}

/* What a read brings, as text: where it is in the data. "no": it is not here. */
static const char *part_of(const struct content *c, uint64_t offset, size_t size)
{
    static char text[64];
    struct bytes part = {0};
    if (!content_part(c, offset, size, &part))
        return "no";
    (void)snprintf(text, sizeof text, "%zu+%zu",
                   part.len ? (size_t)(part.data - c->data) : (size_t)0, part.len);
    return text;
}

static void test_parts(void **state)
{
    struct world *w = *state;
    const size_t both = WIRE_FILE_HEAD + WIRE_FILE_TAIL;
    const uint64_t large = (1ULL << 40) + 5, tail = large - WIRE_FILE_TAIL;
    char *data = calloc(1, both + 1);
    assert_non_null(data);
    struct wire_file file = file_of(1, data, both);
    enter(w, 1);
    file.flags = WIRE_FILE_ENDS;
    /* What is no such file, or of another length, is not kept. */
    const struct {
        uint64_t size;
        size_t len;
    } wrong[] = {
        {both, both}, {WIRE_FILE_MAX, both}, {large, both - 1}, {large, both + 1}, {large, 0}};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct content *c = ask(w, 1);
        file.attr.size = wrong[i].size;
        file.data = bytes_of(data, wrong[i].len);
        assert_false(content_take(&w->t, c, &file, true));
        content_unpin(&w->t, c);
    }
    struct content *c = ask(w, 1);
    file.attr.size = large;
    file.data = bytes_of(data, both);
    assert_true(content_take(&w->t, c, &file, true));
    assert_string_equal(part_of(c, 0, 10), "0+10");
    assert_string_equal(part_of(c, WIRE_FILE_HEAD - 10, 10), "131062+10");
    assert_string_equal(part_of(c, WIRE_FILE_HEAD - 10, 11), "no");
    assert_string_equal(part_of(c, WIRE_FILE_HEAD, 1), "no");
    assert_string_equal(part_of(c, 0, SIZE_MAX), "no");
    assert_string_equal(part_of(c, tail - 1, 10), "no");
    assert_string_equal(part_of(c, tail, 10), "131072+10");
    assert_string_equal(part_of(c, large - 10, 10), "393206+10");
    assert_string_equal(part_of(c, large - 10, 1000), "393206+10");
    assert_string_equal(part_of(c, large, 10), "0+0");
    assert_string_equal(part_of(c, UINT64_MAX, SIZE_MAX), "0+0");
    content_unpin(&w->t, c);
    free(data);
    /* And of a small file. */
    c = have(w, 2, "content");
    assert_string_equal(part_of(c, 0, 100), "0+7");
    assert_string_equal(part_of(c, 3, 2), "3+2");
    assert_string_equal(part_of(c, 7, 1), "0+0");
    assert_string_equal(part_of(c, UINT64_MAX, 1), "0+0");
}

static void test_that_there_is_no_hole(void **state)
{
    struct world *w = *state;
    const size_t size = 4 * 512 + 3;
    char data[WIRE_FILE_HEAD + WIRE_FILE_TAIL];
    memset(data, 'x', sizeof data);
    const struct {
        size_t from, to; /* zeros */
        bool dense;
    } cases[] = {{0, 0, true},       {0, 511, true},     {1, 512, true},    {100, 1500, false},
                 {256, 768, true},   {512, 1024, false}, {513, 1535, true}, {0, 512, false},
                 {2049, 2051, true}, {2048, 2051, false}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        memset(data, 'x', size);
        memset(data + cases[i].from, 0, cases[i].to - cases[i].from);
        struct wire_file file = file_of(i + 1, data, size);
        enter(w, i + 1);
        struct content *c = ask(w, i + 1);
        assert_true(content_take(&w->t, c, &file, true));
        assert_int_equal(content_is_dense(c), cases[i].dense);
        content_unpin(&w->t, c);
    }
    /* An empty file has none; of what is not all here it is not known. */
    enter(w, 20);
    assert_true(content_is_dense(have(w, 20, "")));
    memset(data, 'x', sizeof data);
    struct wire_file file = file_of(21, data, sizeof data);
    file.attr.size = 1 << 20;
    file.flags = WIRE_FILE_ENDS;
    enter(w, 21);
    struct content *c = ask(w, 21);
    assert_true(content_take(&w->t, c, &file, true));
    assert_false(content_is_dense(c));
    content_unpin(&w->t, c);
}

static void test_open_files_keep_it(void **state)
{
    struct world *w = *state;
    struct inode *i = enter(w, 5);
    struct handle *one = open_by(w, i, have(w, 5, "text")), *two;
    two = open_by(w, i, content_get(&w->t, 5, 7));
    assert_int_equal(w->t.content.used, 1);
    /* Of attributes alone: it can be read, and is not found. */
    inode_attr_changed(&w->t, i);
    assert_null(content_get(&w->t, 5, 7));
    assert_memory_equal(one->content->data, "text", 4);
    handle_release(&w->handles, one);
    assert_memory_equal(two->content->data, "text", 4);
    /* It is asked for once more, and then rewritten. */
    struct content *newer = have(w, 5, "same");
    one = open_by(w, i, newer);
    assert_false(one->doubtful);
    inode_changed(&w->t, i);
    assert_true(one->doubtful && two->doubtful);
    assert_memory_equal(two->content->data, "text", 4);
    content_let_go(&w->t, i);
    assert_null(one->content);
    assert_null(two->content);
    assert_int_equal(w->t.content.count, 0);
    handle_release(&w->handles, one);
    handle_release(&w->handles, two);
    inode_forget(&w->t, i, 1);
}

static void test_it_goes_with_the_last_reference(void **state)
{
    struct world *w = *state;
    struct inode *i = enter(w, 5);
    (void)have(w, 5, "text");
    content_unreferenced(&w->t, 5, 7);
    assert_non_null(content_get(&w->t, 5, 7));
    inode_forget(&w->t, i, 1);
    assert_null(content_get(&w->t, 5, 7));
}

static void test_memory_is_bounded(void **state)
{
    struct world *w = *state;
    static char large[WIRE_FILE_MAX];
    const size_t count = 2 * CONTENT_MEMORY_MAX / sizeof large;
    struct inode *i = enter(w, 1);
    struct content *used = NULL;
    struct handle *h = NULL;
    for (uint64_t ino = 1; ino <= count; ino++) {
        struct content *c = ask(w, ino);
        const struct wire_file file = file_of(ino, large, sizeof large);
        assert_true(content_take(&w->t, c, &file, true));
        content_unpin(&w->t, c);
        assert_true(w->t.content.bytes <= CONTENT_MEMORY_MAX);
        if (ino == 1)
            h = open_by(w, i, c); /* kept, however old */
        if (ino == 2)
            used = c;
        content_use(&w->t, used ? used : c);
    }
    assert_ptr_equal(content_get(&w->t, 2, 7), used);
    assert_non_null(content_get(&w->t, 1, 7));
    assert_null(content_get(&w->t, 3, 7));
    assert_non_null(content_get(&w->t, count, 7));
    /* What is kept has a bound of its own. */
    size_t pinned = 0;
    for (uint64_t ino = count; content_may_pin(&w->t, content_get(&w->t, ino, 7)); ino--, pinned++)
        (void)content_pin(&w->t, content_get(&w->t, ino, 7));
    assert_in_range(pinned, CONTENT_PINNED_MAX / sizeof large - 4,
                    CONTENT_PINNED_MAX / sizeof large);
    assert_true(w->t.content.pinned_bytes <= CONTENT_PINNED_MAX);
    assert_true(content_may_pin(&w->t, content_get(&w->t, 1, 7)));
    for (uint64_t ino = count; pinned--; ino--)
        content_unpin(&w->t, content_get(&w->t, ino, 7));
    handle_release(&w->handles, h);
    inode_forget(&w->t, i, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_it_is_found_while_it_is_right),
        TEST(test_what_changes_on_its_way_is_not_kept),
        TEST(test_answers_that_are_not_kept),
        TEST(test_open_files_keep_it),
        TEST(test_parts),
        TEST(test_that_there_is_no_hole),
        TEST(test_it_goes_with_the_last_reference),
        TEST(test_memory_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
