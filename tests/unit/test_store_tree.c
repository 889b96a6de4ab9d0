/* READTREE: what it brings, in which order, how much; and the references it counts. */
#include "store_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "store/ops.h"
#include "wire/part.h"

#define FULL 0x100000

/* What the next READTREE also says. */
static uint64_t cookie;
static struct buffer also;

static int read_tree(struct fixture *f, uint64_t node, uint32_t size, uint32_t flags)
{
    return run(f, &(struct wire_message){.type = WIRE_READTREE,
                                         .readtree = {.node = node,
                                                      .size = size,
                                                      .flags = flags,
                                                      .cookie = cookie,
                                                      .also = buffer_view(&also)}});
}

static void give_back(struct fixture *f, const uint64_t *nodes, size_t count)
{
    while (count > 0)
        t_forget(f, nodes[--count], 1);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The answer as text: for each directory its names, sorted, then ")" or, if it does not end, "…";
 * and gives all its references back, two by the same number at once. */
static const char *tree(struct fixture *f, uint64_t node, uint32_t size, uint32_t flags)
{
    static char text[8192];
    static uint64_t nodes[4096];
    size_t count = 0, len = 0;
    if (read_tree(f, node, size, flags) < 0)
        return "(refused)";
    struct wire_list directories = f->reply.message.tree.directories;
    assert_true(directories.len <= size);
    uint32_t offset = 0;
    struct bytes element;
    text[0] = '\0';
    while (wire_list_next(&directories, &offset, &element)) {
        struct wire_message m, e;
        assert_int_equal(wire_decode(WIRE_TREE_DIRECTORY, element, &m), 0);
        const struct wire_tree_directory *d = &m.tree_directory;
        assert_true(S_ISDIR(d->attr.mode));
        nodes[count++] = d->node;
        char names[64][WIRE_NAME_MAX + 1], *sorted[64];
        size_t n = 0;
        uint32_t at = 0;
        while (wire_list_next(&d->entries, &at, &element)) {
            assert_int_equal(wire_decode(WIRE_DIRENT, element, &e), 0);
            assert_true(count < ARRAY_SIZE(nodes) && n < ARRAY_SIZE(names));
            (void)snprintf(names[n], sizeof names[n], "%.*s", (int)e.dirent.name.len,
                           (const char *)e.dirent.name.data);
            sorted[n] = names[n];
            n++;
            if (e.dirent.node) {
                nodes[count++] = e.dirent.node;
                assert_int_equal(e.dirent.ino, e.dirent.attr.ino);
                assert_int_equal(e.dirent.type, e.dirent.attr.mode & S_IFMT);
            }
        }
        qsort(sorted, n, sizeof sorted[0], by_text);
        len += (size_t)snprintf(text + len, sizeof text - len, "(");
        for (size_t i = 0; i < n; i++)
            len += (size_t)snprintf(text + len, sizeof text - len, "%s ", sorted[i]);
        len += (size_t)snprintf(text + len, sizeof text - len, d->end ? ")" : "…");
        if (d->unlisted || d->hidden)
            len +=
                (size_t)snprintf(text + len, sizeof text - len, "[%u,%u]", d->unlisted, d->hidden);
    }
    give_back(f, nodes, count);
    return text;
}

static void make_directory(struct fixture *f, const char *path)
{
    char full[4096];
    assert_int_equal(mkdir(tree_path(f, path, full), 0755), 0);
}

static void make_tree(struct fixture *f)
{
    make_directory(f, "a");
    make_directory(f, "a/b");
    make_directory(f, "a/b/c");
    make_directory(f, "a/empty");
    make_file(f, "a/b/c/deep", "deep");
    make_file(f, "a/b/x", "x");
    make_file(f, "top", "top");
}

static void test_breadth_first(void **state)
{
    struct fixture *f = *state;
    assert_string_equal(tree(f, f->demo, FULL, 0), "()");
    make_tree(f);
    const char *all = tree(f, f->demo, FULL, 0);
    /* The order of two directories in one is the filesystem's. */
    assert_true(strcmp(all, "(a top )(b empty )(c x )()(deep )") == 0 ||
                strcmp(all, "(a top )(b empty )()(c x )(deep )") == 0);
    assert_string_equal(tree(f, f->demo, FULL, WIRE_TREE_ALONE), "(a top )");
    int64_t b = t_walk(f, "a/b");
    assert_string_equal(tree(f, (uint64_t)b, FULL, 0), "(c x )(deep )");
    /* Only the root, a and b are left, by those look-ups. */
    t_await_status(f, "nodes", 3);
}

static void test_what_it_tells(void **state)
{
    struct fixture *f = *state;
    make_file(f, "file", "seven__");
    char full[4096];
    assert_int_equal(symlink("target", tree_path(f, "link", full)), 0);
    assert_int_equal(mkfifo(tree_path(f, "fifo", full), 0640), 0);
    assert_int_equal(read_tree(f, f->demo, FULL, 0), 0);
    struct wire_list list = f->reply.message.tree.directories;
    uint32_t offset = 0, at = 0;
    struct bytes element;
    struct wire_message d, e;
    struct wire_attr root, attr;
    struct buffer copy = {0};
    assert_true(wire_list_next(&list, &offset, &element));
    assert_int_equal(buffer_append(&copy, element.data, element.len), 0);
    assert_int_equal(wire_decode(WIRE_TREE_DIRECTORY, buffer_view(&copy), &d), 0);
    assert_int_equal(d.tree_directory.node, f->demo);
    assert_int_equal(t_getattr(f, f->demo, 0, &root), 0);
    assert_same_attr(&d.tree_directory.attr, &root);
    int seen = 0;
    while (wire_list_next(&d.tree_directory.entries, &at, &element)) {
        assert_int_equal(wire_decode(WIRE_DIRENT, element, &e), 0);
        assert_int_equal(t_getattr(f, e.dirent.node, 0, &attr), 0);
        assert_same_attr(&e.dirent.attr, &attr);
        t_forget(f, e.dirent.node, 1);
        assert_int_equal(t_getattr(f, e.dirent.node, 0, &attr), -ESTALE); /* it was one */
        seen++;
    }
    assert_int_equal(seen, 3);
    buffer_release(&copy);
    /* One more on the directory itself. */
    t_forget(f, f->demo, 1);
    assert_int_equal(t_getattr(f, f->demo, 0, &attr), 0);
    t_forget(f, f->demo, 1);
    assert_int_equal(t_getattr(f, f->demo, 0, &attr), -ESTALE);
}

static void test_size(void **state)
{
    struct fixture *f = *state;
    make_directory(f, "large");
    make_directory(f, "small");
    make_file(f, "small/file", "");
    char path[64];
    for (int i = 0; i < 60; i++) {
        (void)snprintf(path, sizeof path, "large/entry%02d", i);
        make_file(f, path, "");
    }
    /* Whole or not at all; what comes later has its turn. */
    assert_string_equal(tree(f, f->demo, 4096, 0), "(large small )(file )");
    /* But of the first as much as there is room for, and at least one. */
    int64_t large = t_walk(f, "large");
    const char *part = tree(f, (uint64_t)large, 4096, 0);
    assert_non_null(strstr(part, "…"));
    assert_true(strlen(part) > 100);
    assert_non_null(strstr(tree(f, (uint64_t)large, 400, 0), "…"));
    assert_non_null(strstr(tree(f, (uint64_t)large, FULL, 0), ")"));
    assert_string_equal(tree(f, f->demo, 0, 0), "(refused)");
    assert_int_equal(read_tree(f, f->demo, 0, 0), -EINVAL);
    assert_int_equal(read_tree(f, f->demo, FULL, 4), -EINVAL);
    t_await_status(f, "nodes", 2);
}

static void test_rules(void **state)
{
    struct fixture *f = *state;
    make_tree(f);
    make_directory(f, "node_modules");
    make_directory(f, "node_modules/package");
    make_file(f, "node_modules/package/index.js", "");
    make_file(f, "secret", "");
    const struct wire_message rules = {
        .type = WIRE_VISIBILITY,
        .visibility.rules = bytes_of_string("unlisted:node_modules\nhidden:secret\nhidden:b/\n")};
    assert_int_equal(run(f, &rules), 0);
    assert_string_equal(tree(f, f->demo, FULL, 0), "(a top )[1,1](empty )[0,1]()");
    int64_t modules = t_walk(f, "node_modules");
    /* Listed when it is named, but what is in it is not entered. */
    assert_string_equal(tree(f, (uint64_t)modules, FULL, 0), "(package )");
}

static void test_errors(void **state)
{
    struct fixture *f = *state;
    make_file(f, "file", "");
    int64_t file = t_walk(f, "file");
    assert_int_equal(read_tree(f, (uint64_t)file, FULL, 0), -ENOTDIR);
    assert_int_equal(read_tree(f, 999999, FULL, 0), -ESTALE);
    make_directory(f, "gone");
    int64_t gone = t_walk(f, "gone");
    char full[4096];
    assert_int_equal(rmdir(tree_path(f, "gone", full)), 0);
    drop_descriptors(f);
    assert_int_equal(read_tree(f, (uint64_t)gone, FULL, 0), -ESTALE);
    if (getuid() != 0) {
        make_directory(f, "closed");
        make_directory(f, "open");
        int64_t closed = t_walk(f, "closed");
        assert_int_equal(chmod(tree_path(f, "closed", full), 0), 0);
        drop_descriptors(f);
        assert_int_equal(read_tree(f, (uint64_t)closed, FULL, 0), -EACCES);
        /* One that cannot be read does not stand in the way of the others. */
        assert_string_equal(tree(f, f->demo, FULL, 0), "(closed file open )()");
        assert_int_equal(chmod(tree_path(f, "closed", full), 0700), 0);
    }
}

static void test_node_limit(void **state)
{
    struct fixture *f = *state;
    struct store_limits limits = fixture_limits();
    limits.session_nodes = 3;
    make_tree(f);
    fixture_reopen(f, &limits);
    /* Names are told all the same; directories without a node are not entered. */
    const char *names = tree(f, f->demo, FULL, 0);
    assert_non_null(strstr(names, "(a top )(b empty )"));
    t_await_status(f, "nodes", 1);
}

static void test_many_directories(void **state)
{
    struct fixture *f = *state;
    char path[64];
    for (int i = 0; i < 5000; i++) {
        (void)snprintf(path, sizeof path, "d%d", i);
        make_directory(f, path);
    }
    assert_int_equal(read_tree(f, f->demo, FULL, 0), 0);
    struct wire_list directories = f->reply.message.tree.directories;
    assert_true(directories.count > 1000 && directories.count <= 4096);
    assert_true(directories.len <= FULL);
}

/* The last cookie of the first directory of the answer, how many entries it has, and whether they
 * are its last. */
static bool first_part(struct fixture *f, uint64_t node, uint32_t size, size_t *ret_count)
{
    assert_int_equal(read_tree(f, node, size, WIRE_TREE_ALONE), 0);
    struct wire_list list = f->reply.message.tree.directories;
    uint32_t offset = 0, at = 0;
    struct bytes element;
    struct wire_message d, e;
    assert_int_equal(list.count, 1);
    assert_true(wire_list_next(&list, &offset, &element));
    assert_int_equal(wire_decode(WIRE_TREE_DIRECTORY, element, &d), 0);
    *ret_count = 0;
    uint64_t nodes[128];
    while (wire_list_next(&d.tree_directory.entries, &at, &element)) {
        assert_int_equal(wire_decode(WIRE_DIRENT, element, &e), 0);
        assert_true(*ret_count < ARRAY_SIZE(nodes));
        nodes[(*ret_count)++] = e.dirent.node;
        cookie = e.dirent.cookie;
    }
    bool end = d.tree_directory.end;
    give_back(f, nodes, *ret_count);
    t_forget(f, node, 1);
    return end;
}

/* A directory in parts: each entry once. */
static void test_going_on(void **state)
{
    struct fixture *f = *state;
    char path[64];
    make_directory(f, "large");
    for (int i = 0; i < 100; i++) {
        (void)snprintf(path, sizeof path, "large/entry%02d", i);
        make_file(f, path, "");
    }
    int64_t large = t_walk(f, "large");
    size_t count, total = 0, parts = 0;
    bool end;
    do {
        end = first_part(f, (uint64_t)large, 4096, &count);
        total += count;
        parts++;
        assert_true(parts < 10);
    } while (!end);
    assert_int_equal(total, 100);
    assert_true(parts > 3);
    /* Behind the last there is nothing, and that is its end. */
    assert_true(first_part(f, (uint64_t)large, 4096, &count));
    assert_int_equal(count, 0);
    cookie = UINT64_MAX;
    assert_int_equal(read_tree(f, (uint64_t)large, FULL, 0), -EINVAL);
    cookie = 0;
}

/* --- digests ------------------------------------------------------------------------------ */

/* Of a directory's listing in parts: what is needed to ask for it, and to compare it. */
struct told {
    uint64_t nodes[4096]; /* all that the answer counts */
    size_t node_count;
    struct buffer digests;
    struct buffer ranges; /* of parts that came without their entries */
    size_t parts, whole, entries;
    bool end;
};

static void told_release(struct fixture *f, struct told *t)
{
    give_back(f, t->nodes, t->node_count);
    buffer_release(&t->digests);
    buffer_release(&t->ranges);
    *t = (struct told){0};
}

static void note_part(struct told *t, uint64_t directory, uint64_t from,
                      const struct wire_tree_part *p)
{
    size_t at = 0;
    uint64_t node;
    uint32_t count;
    while (part_next_nodes(p->nodes, &at, &node, &count))
        for (t->entries += count; node && count; count--)
            t->nodes[t->node_count++] = node++;
    assert_int_equal(buffer_append(&t->digests, p->digest.data, p->digest.len), 0);
    assert_true(p->size <= PART_SIZE_MAX);
    t->parts++;
    if (p->entries.count) {
        uint8_t digest[PART_DIGEST_SIZE];
        assert_int_equal(p->entries.len, p->size);
        assert_int_equal(part_digest(bytes_of(p->entries.data, p->entries.len), digest), 0);
        assert_memory_equal(digest, p->digest.data, sizeof digest);
        t->whole++;
        return;
    }
    assert_int_equal(buffer_append_u64(&t->ranges, directory), 0);
    assert_int_equal(buffer_append_u64(&t->ranges, from), 0);
    assert_int_equal(buffer_append_u32(&t->ranges, p->size), 0);
}

/* Asks for digests of one directory. */
static void ask_digests(struct fixture *f, uint64_t node, uint32_t age, struct told *ret)
{
    *ret = (struct told){0};
    const struct wire_message ask = {
        .type = WIRE_READTREE,
        .readtree = {
            .node = node, .size = FULL, .flags = WIRE_TREE_ALONE | WIRE_TREE_DIGESTS, .age = age}};
    assert_int_equal(run(f, &ask), 0);
    struct wire_list list = f->reply.message.tree.digests;
    uint32_t offset = 0, at = 0;
    struct bytes element;
    struct wire_message d, p;
    assert_int_equal(f->reply.message.tree.directories.count, 0);
    assert_int_equal(list.count, 1);
    assert_true(list.len <= FULL);
    assert_true(wire_list_next(&list, &offset, &element));
    assert_int_equal(wire_decode(WIRE_TREE_DIGEST, element, &d), 0);
    assert_true(S_ISDIR(d.tree_digest.attr.mode));
    ret->end = d.tree_digest.end;
    ret->nodes[ret->node_count++] = d.tree_digest.node;
    uint64_t from = 0;
    while (wire_list_next(&d.tree_digest.parts, &at, &element)) {
        assert_int_equal(wire_decode(WIRE_TREE_PART, element, &p), 0);
        note_part(ret, d.tree_digest.node, from, &p.tree_part);
        from = p.tree_part.cookie;
    }
}

/* How many parts of the first are also in the second. */
static size_t in_both(const struct told *a, const struct told *b)
{
    size_t n = 0;
    for (size_t i = 0; i < a->digests.len; i += PART_DIGEST_SIZE)
        for (size_t j = 0; j < b->digests.len; j += PART_DIGEST_SIZE)
            n += memcmp(a->digests.data + i, b->digests.data + j, PART_DIGEST_SIZE) == 0;
    return n;
}

static int ask_parts(struct fixture *f, struct bytes ranges)
{
    return run(f, &(struct wire_message){.type = WIRE_READPARTS, .readparts.parts = ranges});
}

/* The parts that READPARTS brings have the digests that were told, and name the same nodes. */
static void check_parts(struct fixture *f, const struct told *t)
{
    assert_int_equal(ask_parts(f, buffer_view(&t->ranges)), 0);
    struct wire_list list = f->reply.message.tree.directories;
    uint32_t offset = 0;
    struct bytes element;
    struct wire_message d;
    size_t n = 0;
    uint64_t nodes[4096];
    size_t count = 0;
    for (; wire_list_next(&list, &offset, &element); n++) {
        assert_int_equal(wire_decode(WIRE_TREE_DIRECTORY, element, &d), 0);
        struct bytes entries =
            bytes_of(d.tree_directory.entries.data, d.tree_directory.entries.len);
        struct buffer bare = {0}, runs = {0};
        uint8_t digest[PART_DIGEST_SIZE];
        assert_int_equal(part_take_nodes(entries, &bare, &runs), 0);
        assert_int_equal(part_digest(buffer_view(&bare), digest), 0);
        assert_memory_equal(digest, t->digests.data + n * sizeof digest, sizeof digest);
        size_t at = 0;
        uint64_t node;
        uint32_t run;
        nodes[count++] = d.tree_directory.node;
        while (part_next_nodes(buffer_view(&runs), &at, &node, &run))
            for (; run; run--)
                nodes[count++] = node++;
        buffer_release(&bare);
        buffer_release(&runs);
    }
    assert_int_equal(n, t->parts);
    /* Once for each part, and not once for all. */
    assert_int_equal(count, t->entries + n);
    assert_memory_equal(nodes + 1, t->nodes + 1, 10 * sizeof nodes[0]);
    give_back(f, nodes, count);
}

static void make_large(struct fixture *f, int count)
{
    char path[64];
    make_directory(f, "large");
    for (int i = 0; i < count; i++) {
        (void)snprintf(path, sizeof path, "large/entry%04d", i);
        make_file(f, path, "");
    }
}

static void test_digests(void **state)
{
    struct fixture *f = *state;
    static struct told first, again;
    char full[4096];
    make_large(f, 1000);
    uint64_t large = (uint64_t)t_walk(f, "large");
    sleep(2); /* else it is told whole below, as what changes then */
    ask_digests(f, large, 0, &first);
    assert_true(first.end && first.entries == 1000 && first.whole == 0);
    assert_true(first.parts > 10 && first.parts < 45);
    check_parts(f, &first);
    /* The same for a session that knows other files by other nodes. */
    told_release(f, &first);
    t_forget(f, large, 1);
    make_file(f, "another", "");
    (void)t_walk(f, "another");
    large = (uint64_t)t_walk(f, "large");
    ask_digests(f, large, 0, &first);
    /* One entry less, one more, one changed: so many parts are other ones. */
    assert_int_equal(unlink(tree_path(f, "large/entry0123", full)), 0);
    ask_digests(f, large, 0, &again);
    assert_int_equal(again.entries, 999);
    assert_true(in_both(&first, &again) >= first.parts - 2);
    assert_true(in_both(&first, &again) < first.parts);
    told_release(f, &again);
    time_t changed = time(NULL);
    make_file(f, "large/entry0123", "");
    assert_int_equal(chmod(tree_path(f, "large/entry0500", full), 0600), 0);
    ask_digests(f, large, 0, &again);
    assert_true(in_both(&first, &again) >= first.parts - 4);
    assert_int_equal(again.entries, 1000);
    told_release(f, &again);
    /* What has changed lately comes whole, if that was asked for. */
    ask_digests(f, large, (uint32_t)(time(NULL) - changed + 1) * 1000, &again);
    assert_true(again.whole >= 2 && again.whole <= 4);
    told_release(f, &again);
    /* But not without end. */
    ask_digests(f, large, UINT32_MAX, &again);
    assert_int_equal(again.whole, again.parts);
    told_release(f, &again);
    told_release(f, &first);
    t_forget(f, large, 1);
}

static void test_digests_of_the_empty(void **state)
{
    struct fixture *f = *state;
    static struct told told;
    make_directory(f, "empty");
    uint64_t empty = (uint64_t)t_walk(f, "empty");
    ask_digests(f, empty, 0, &told);
    assert_true(told.end && told.parts == 0);
    told_release(f, &told);
}

static void test_parts_that_are_not(void **state)
{
    struct fixture *f = *state;
    make_large(f, 100);
    uint64_t large = (uint64_t)t_walk(f, "large");
    struct buffer ranges = {0};
    const struct {
        uint64_t node, cookie;
        uint32_t size;
    } wrong[] = {{large, UINT64_MAX, 4096}, {large, 0, PART_SIZE_MAX + 1}};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        ranges.len = 0;
        assert_int_equal(buffer_append_u64(&ranges, wrong[i].node), 0);
        assert_int_equal(buffer_append_u64(&ranges, wrong[i].cookie), 0);
        assert_int_equal(buffer_append_u32(&ranges, wrong[i].size), 0);
        assert_int_equal(ask_parts(f, buffer_view(&ranges)), -EINVAL);
    }
    assert_int_equal(ask_parts(f, bytes_of("0123456789012345678901", 21)), -EINVAL);
    /* One that is no directory of the session's does not stand in the way of others. */
    ranges.len = 0;
    const uint64_t nodes[] = {999999, large};
    for (size_t i = 0; i < ARRAY_SIZE(nodes); i++) {
        assert_int_equal(buffer_append_u64(&ranges, nodes[i]), 0);
        assert_int_equal(buffer_append_u64(&ranges, 0), 0);
        assert_int_equal(buffer_append_u32(&ranges, 1024), 0);
    }
    assert_int_equal(ask_parts(f, buffer_view(&ranges)), 0);
    assert_int_equal(f->reply.message.tree.directories.count, 1);
    buffer_release(&ranges);
}

static void name_also(int64_t node)
{
    assert_int_equal(buffer_append_u64(&also, (uint64_t)node), 0);
}

/* Other directories in the same answer. */
static void test_others_beside_it(void **state)
{
    struct fixture *f = *state;
    make_tree(f);
    make_file(f, "a/empty/y", "");
    int64_t a = t_walk(f, "a"), b = t_walk(f, "a/b"), empty = t_walk(f, "a/empty"),
            top = t_walk(f, "top");
    name_also(b);
    name_also(top); /* not a directory */
    name_also(999999);
    name_also(empty);
    /* What they name comes first, and then what is below all of them. */
    assert_string_equal(tree(f, (uint64_t)b, FULL, WIRE_TREE_ALONE), "(c x )(c x )(y )");
    also.len = 0;
    name_also(empty);
    assert_string_equal(tree(f, (uint64_t)b, FULL, 0), "(c x )(y )(deep )");
    also.len = 7;
    assert_int_equal(read_tree(f, (uint64_t)a, FULL, 0), -EINVAL);
    buffer_release(&also);
}

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
        TEST(test_breadth_first),
        TEST(test_what_it_tells),
        TEST(test_size),
        TEST(test_rules),
        TEST(test_errors),
        TEST(test_node_limit),
        TEST(test_many_directories),
        TEST(test_going_on),
        TEST(test_others_beside_it),
        TEST(test_digests),
        TEST(test_digests_of_the_empty),
        TEST(test_parts_that_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
