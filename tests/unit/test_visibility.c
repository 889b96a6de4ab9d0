/* Visibility rules: the text, the words, sources, profiles, limits, memory. That patterns mean
 * what git means by them is test_visibility_properties.py's to show. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "failing_malloc.h"
#include "visibility/visibility.h"

static struct visibility_rules *parse(const char *text)
{
    struct visibility_rules *rules;
    struct failure failure;
    if (visibility_rules_parse(bytes_of_string(text), &rules, &failure) < 0)
        fail_msg("%s", failure.text);
    return rules;
}

/* The visibility of a path ("a/b", a directory with '/' at the end), and whether it is listed. */
static enum visibility see(const struct visibility_view *view, const char *path, bool *ret_listed)
{
    struct visibility_state dir;
    assert_int_equal(visibility_state_root(view, &dir), 0);
    for (;;) {
        const char *slash = strchr(path, '/');
        struct bytes name = bytes_of(path, slash ? (size_t)(slash - path) : strlen(path));
        if (!slash || !slash[1]) {
            enum visibility v = visibility_of(view, &dir, name, slash);
            *ret_listed = visibility_listed(&dir, v);
            visibility_state_release(&dir);
            return v;
        }
        struct visibility_state next, copy;
        assert_int_equal(visibility_state_enter(view, &dir, name, &next), 0);
        visibility_state_release(&dir);
        assert_int_equal(visibility_state_copy(&next, &copy), 0);
        visibility_state_release(&next);
        dir = copy;
        path = slash + 1;
    }
}

struct expectation {
    const char *path;
    enum visibility visibility;
    bool listed;
};

#define SHOW VISIBILITY_SHOW, true
#define UNLISTED VISIBILITY_UNLISTED, false
#define INSIDE VISIBILITY_UNLISTED, true /* of an unlisted directory */
#define HIDDEN VISIBILITY_HIDDEN, false

static void expect(const struct visibility_view *view, const struct expectation *e, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool listed;
        enum visibility v = see(view, e[i].path, &listed);
        if (v != e[i].visibility || listed != e[i].listed)
            fail_msg("%s is %s%s", e[i].path, visibility_name(v), listed ? " and listed" : "");
    }
}

#define EXPECT(view, ...)                               \
    do {                                                \
        const struct expectation all[] = {__VA_ARGS__}; \
        expect(view, all, sizeof all / sizeof all[0]);  \
    } while (0)

static void expect_text(const char *text, const struct expectation *e, size_t count)
{
    struct visibility_view view = {.sources = {[VISIBILITY_WORKSPACE] = parse(text)}};
    expect(&view, e, count);
    visibility_rules_unref(view.sources[VISIBILITY_WORKSPACE]);
}

#define EXPECT_TEXT(text, ...)                              \
    do {                                                    \
        const struct expectation all[] = {__VA_ARGS__};     \
        expect_text(text, all, sizeof all / sizeof all[0]); \
    } while (0)

static void words_and_order(void **state)
{
    EXPECT_TEXT("", {"a", SHOW}, {".git/", SHOW}, {"a/b", SHOW});
    EXPECT_TEXT("a", {"a", UNLISTED}, {"a/", UNLISTED}, {"x/a", UNLISTED}, {"b", SHOW});
    EXPECT_TEXT("unlisted: a\nhidden:\tb\nshow:c\n", {"a", UNLISTED}, {"b", HIDDEN}, {"c", SHOW});
    /* The last one decides. */
    EXPECT_TEXT("hidden:*\nshow:a\nunlisted:b\n", {"a", SHOW}, {"b", UNLISTED}, {"c", HIDDEN});
    EXPECT_TEXT("show:a\nhidden:*\n", {"a", HIDDEN});
    EXPECT_TEXT("hidden:*.key\n!test.key\n", {"a.key", HIDDEN}, {"test.key", SHOW},
                {"d/test.key", SHOW});
    EXPECT_TEXT("hidden:x/\n", {"x", SHOW}, {"x/", HIDDEN}, {"x/y", HIDDEN});
    /* Words that are names, comments, carriage returns, a mark of UTF-8. */
    EXPECT_TEXT("\xef\xbb\xbf\\hidden:a\r\n# b\n\r\n\\#c\n\\!d\n\nshow\n", {"hidden:a", UNLISTED},
                {"b", SHOW}, {"# b", SHOW}, {"#c", UNLISTED}, {"!d", UNLISTED}, {"show", UNLISTED});
    EXPECT_TEXT("hidden:\\ a\n b\nc\\ \nd   \n", {" a", HIDDEN}, {" b", UNLISTED}, {"b", SHOW},
                {"c ", UNLISTED}, {"d", UNLISTED}, {"d ", SHOW});
}

static void below_what_is_restricted(void **state)
{
    /* Nothing below is given back, but who lists the unlisted directory sees what is in it. */
    EXPECT_TEXT("node_modules/\n!node_modules/keep\n", {"node_modules/", UNLISTED},
                {"node_modules/keep", INSIDE}, {"node_modules/a/", INSIDE},
                {"node_modules/a/node_modules/", INSIDE}, {"node_modules/a/b", INSIDE},
                {"src/node_modules/", UNLISTED}, {"src/node_modules/x", INSIDE});
    EXPECT_TEXT("hidden:h/\n!h/keep\n", {"h/", HIDDEN}, {"h/keep", HIDDEN}, {"h/a/b", HIDDEN});
    /* Hidden in an unlisted one. */
    EXPECT_TEXT("u/\nhidden:secret\nhidden:u/*/deep\n", {"u/", UNLISTED}, {"u/secret", HIDDEN},
                {"u/a/", INSIDE}, {"u/a/deep", HIDDEN}, {"u/deep", INSIDE});
}

static void reserved_name(void **state)
{
    EXPECT_TEXT("", {".berth", HIDDEN}, {".berth/", HIDDEN}, {".berth/x", HIDDEN},
                {"a/.berth/", SHOW}, {".berth2", SHOW});
    EXPECT_TEXT("!.berth\n!/.berth/\nshow:*\nshow:**\nshow:.berth/**\n", {".berth/", HIDDEN},
                {".berth/x", HIDDEN});
}

static void sources_in_order(void **state)
{
    struct visibility_view view = {
        .sources = {[VISIBILITY_SERVICE] = parse("hidden:*.log\nunlisted:a\n/x/y/z\n"),
                    [VISIBILITY_WORKSPACE] = parse("!keep.log\nhidden:b\n!/x/y/z\nu/"),
                    [VISIBILITY_MOUNT] = parse("show:b\nunlisted:keep.log\nhidden:x/*/w\n")}};
    EXPECT(&view, {"1.log", HIDDEN}, {"keep.log", UNLISTED}, {"a", UNLISTED}, {"b", SHOW},
           {"x/y/z", SHOW}, {"x/y/w", HIDDEN}, {"x/w", SHOW}, {"u/a", INSIDE}, {"u/1.log", HIDDEN});
    for (unsigned s = 0; s < VISIBILITY_SOURCES; s++)
        visibility_rules_unref(view.sources[s]);
}

static void profile_ide(void **state)
{
    static const char *const unlisted[] = {
        "node_modules/", "web/node_modules/", ".venv/",       "venv/",     "target/",
        "a/b/target/",   "__pycache__/",      ".mypy_cache/", ".tox/",     ".pytest_cache/",
        ".gradle/",      ".cache/",           ".next/",       "p/.cache/", "p/.yarn/cache/",
    };
    static const char *const shown[] = {
        ".git/",   ".git/config", ".github/",        ".vscode/",   ".idea/",
        "src/",    "build/",      "dist/",           "out/",       "bin/",
        "lib/",    "vendor/",     "coverage/",       "env/",       ".env",
        ".cargo/", "target",      "node_modules",    "Target/",    "targets/",
        "docs/",   ".yarn/",      ".yarn/releases/", ".gitignore", "package-lock.json",
    };
    struct visibility_view view = {.sources = {[VISIBILITY_MOUNT] = parse("profile:ide\n")}};
    for (size_t i = 0; i < ARRAY_SIZE(unlisted); i++)
        EXPECT(&view, {unlisted[i], UNLISTED});
    for (size_t i = 0; i < ARRAY_SIZE(shown); i++)
        EXPECT(&view, {shown[i], SHOW});
    assert_true(visibility_rules_count(view.sources[VISIBILITY_MOUNT]) > 30);
    assert_false(visibility_rules_hide(view.sources[VISIBILITY_MOUNT]));
    visibility_rules_unref(view.sources[VISIBILITY_MOUNT]);
    /* At its place in the order. */
    EXPECT_TEXT("!target/\nprofile:ide\n!/src/target/\n", {"target/", UNLISTED},
                {"src/target/", SHOW}, {"a/target/", UNLISTED});
    char *text;
    struct failure failure;
    assert_int_equal(visibility_profile_text("ide", &text, &failure), 0);
    assert_string_equal(text, "profile:ide\n");
    free(text);
    assert_int_equal(visibility_profile_text("ied", &text, &failure), -EINVAL);
    assert_non_null(strstr(failure.text, "\"ied\""));
    assert_null(visibility_profile(bytes_of_string("")));
    assert_string_equal(visibility_profile(bytes_of_string("none")), "");
}

static void refuse(struct bytes text, const char *reason)
{
    struct visibility_rules *rules;
    struct failure failure = {0};
    assert_int_equal(visibility_rules_parse(text, &rules, &failure), -EINVAL);
    if (!strstr(failure.text, reason))
        fail_msg("\"%s\" does not say \"%s\"", failure.text, reason);
}

static void what_is_refused(void **state)
{
    refuse(bytes_of_string("a\n\nprofile:nope\n"), "line 3: there is no profile \"nope\"");
    refuse(bytes_of_string("hidden:!a"), "line 1: '!'");
    refuse(bytes_of_string("profile:ide\nshow:"), "line 2: \"show:\" needs a pattern");
    refuse(bytes_of("a\0b", 3), "NUL");
    _cleanup_buffer_ struct buffer text = {0};
    for (size_t i = 0; i <= VISIBILITY_PATTERN_MAX; i++)
        assert_int_equal(buffer_append_u8(&text, 'a'), 0);
    refuse(buffer_view(&text), "longer than 1024 bytes");
    text.len--;
    struct visibility_rules *rules;
    struct failure failure;
    assert_int_equal(visibility_rules_parse(buffer_view(&text), &rules, &failure), 0);
    visibility_rules_unref(rules);
    text.len = 0;
    for (size_t i = 0; i < VISIBILITY_RULES_MAX; i++)
        assert_int_equal(buffer_printf(&text, "a\n"), 0);
    assert_int_equal(visibility_rules_parse(buffer_view(&text), &rules, &failure), 0);
    assert_int_equal(visibility_rules_count(rules), VISIBILITY_RULES_MAX);
    visibility_rules_unref(rules);
    assert_int_equal(buffer_printf(&text, "a\n"), 0);
    refuse(buffer_view(&text), "line 1025: more than 1024 rules");
    text.len = 0;
    for (size_t i = 0; i < VISIBILITY_SEGMENTS_MAX / 8; i++)
        assert_int_equal(buffer_printf(&text, "a/b/c/d/e/f/g/h\n"), 0);
    assert_int_equal(visibility_rules_parse(buffer_view(&text), &rules, &failure), 0);
    visibility_rules_unref(rules);
    assert_int_equal(buffer_printf(&text, "a/b\n"), 0);
    refuse(buffer_view(&text), "components");
    text.len = 0;
    while (text.len <= VISIBILITY_TEXT_MAX)
        assert_int_equal(buffer_printf(&text, "# remarks\n"), 0);
    refuse(buffer_view(&text), "longer than 32768 bytes");
}

static void counts_and_text(void **state)
{
    struct visibility_rules *rules = parse("# c\na\n[\n!b\nb\\\n\nhidden:/x/y\n");
    assert_int_equal(visibility_rules_count(rules), 3); /* two never match */
    assert_true(visibility_rules_hide(rules));
    assert_true(bytes_equal(visibility_rules_text(rules),
                            bytes_of_string("# c\na\n[\n!b\nb\\\n\nhidden:/x/y\n")));
    assert_ptr_equal(visibility_rules_ref(rules), rules);
    visibility_rules_unref(rules);
    visibility_rules_unref(rules);
    visibility_rules_unref(NULL);
}

struct doubts {
    size_t count;
    size_t lines[8];
    char last[256];
};

static void note_doubt(void *context, size_t line, const char *sentence)
{
    struct doubts *d = context;
    assert_true(d->count < ARRAY_SIZE(d->lines));
    d->lines[d->count++] = line;
    (void)snprintf(d->last, sizeof d->last, "%s", sentence);
}

static void what_is_hardly_meant(void **state)
{
    struct doubts d = {0};
    const char *meant =
        "# hiden:x\n\n   \nhidden:.env\nshow: a:b\n\\hiden:.env\nx.y:z\n4:z\n!a\nprofile:ide\n"
        "[[:digit:]]\n*:x\n/a:b\n";
    assert_int_equal(visibility_rules_doubts(bytes_of_string(meant), note_doubt, &d), 0);
    assert_int_equal(d.count, 0);
    const char *slips = "a\nhiden:.env\nHidden : x\n[abc\nhidden:x/[\nprofiles:ide\n/\nb\\\n";
    const size_t lines[] = {2, 3, 4, 5, 6, 7, 8};
    assert_int_equal(visibility_rules_doubts(bytes_of_string(slips), note_doubt, &d), 0);
    assert_int_equal(d.count, ARRAY_SIZE(lines));
    assert_memory_equal(d.lines, lines, sizeof lines);
    d.count = 0;
    assert_int_equal(visibility_rules_doubts(bytes_of_string("hiden:x"), note_doubt, &d), 0);
    assert_non_null(strstr(d.last, "\"hiden:\" is none of show:, unlisted:, hidden: and profile:"));
    assert_int_equal(visibility_rules_doubts(bytes_of_string("[x"), note_doubt, &d), 0);
    assert_non_null(strstr(d.last, "']'"));
}

/* Seconds that `names` names of 255 bytes cost with these rules. */
static double cost(const struct buffer *text, const char *name, size_t names)
{
    struct visibility_view view = {0};
    struct failure failure;
    if (visibility_rules_parse(buffer_view(text), &view.sources[VISIBILITY_MOUNT], &failure) < 0)
        fail_msg("%s", failure.text);
    struct visibility_state root, dir;
    assert_int_equal(visibility_state_root(&view, &root), 0);
    uint64_t start = clock_monotonic_ns();
    for (size_t i = 0; i < names; i++) {
        assert_int_equal(visibility_of(&view, &root, bytes_of_string(name), true), VISIBILITY_SHOW);
        assert_int_equal(visibility_state_enter(&view, &root, bytes_of_string(name), &dir), 0);
        visibility_state_release(&root);
        root = dir;
    }
    uint64_t end = clock_monotonic_ns();
    visibility_state_release(&root);
    visibility_rules_unref(view.sources[VISIBILITY_MOUNT]);
    return (double)(end - start) / NSEC_PER_SEC;
}

/* Patterns on which matchers that try every way take longer than anybody waits. */
static void hostile_patterns_cost_little(void **state)
{
    char name[256];
    memset(name, 'a', 255);
    name[255] = '\0';
    static const char *const pieces[] = {"*a", "**/", "*[a]", "*?", "a*", "**/*a*a*a*b/"};
    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        _cleanup_buffer_ struct buffer text = {0};
        size_t segments = 0;
        while (text.len + VISIBILITY_PATTERN_MAX < VISIBILITY_TEXT_MAX) {
            size_t start = text.len;
            while (text.len - start + 16 < VISIBILITY_PATTERN_MAX &&
                   segments + 4 < VISIBILITY_SEGMENTS_MAX) {
                assert_int_equal(buffer_append(&text, pieces[i], strlen(pieces[i])), 0);
                segments += strchr(pieces[i], '/') ? 3 : 0;
            }
            if (text.len == start)
                break;
            assert_int_equal(buffer_append(&text, "b\n", 2), 0);
        }
        double seconds = cost(&text, name, 40);
        print_message("%s… %.1f ms a name\n", pieces[i], seconds * 1000 / 80);
        /* A matcher that goes back to every star would not end; a sanitizer's is slow. */
        assert_true(seconds < 20);
    }
    /* The costliest: long pieces that all but fit, at every place. */
    _cleanup_buffer_ struct buffer text = {0};
    while (text.len + 132 < VISIBILITY_TEXT_MAX) {
        assert_int_equal(buffer_append(&text, "*", 1), 0);
        assert_int_equal(buffer_append(&text, name, 127), 0);
        assert_int_equal(buffer_append(&text, "b*\n", 3), 0);
    }
    double seconds = cost(&text, name, 40);
    print_message("near misses %.1f ms a name\n", seconds * 1000 / 80);
    assert_true(seconds < 20);
}

static void every_allocation_may_fail(void **state)
{
    size_t before = malloc_blocks();
    for (size_t n = 1;; n++) {
        struct visibility_view view = {0};
        struct visibility_state root = {0}, dir = {0}, copy = {0};
        struct failure failure;
        malloc_fail_at(n, false);
        int r =
            visibility_rules_parse(bytes_of_string("profile:ide\nhidden:/a/*/[x]\n**/b/c\n!d\n"),
                                   &view.sources[VISIBILITY_SERVICE], &failure);
        if (r == 0)
            r = visibility_state_root(&view, &root);
        if (r == 0)
            r = visibility_state_enter(&view, &root, bytes_of_string("a"), &dir);
        if (r == 0)
            r = visibility_state_copy(&dir, &copy);
        bool failed = malloc_has_failed();
        malloc_fail_at(0, false);
        if (r == 0)
            assert_true(copy.count >= 2);
        else
            assert_int_equal(r, -ENOMEM);
        visibility_state_release(&copy);
        visibility_state_release(&dir);
        visibility_state_release(&root);
        visibility_rules_unref(view.sources[VISIBILITY_SERVICE]);
        assert_int_equal(malloc_blocks(), before);
        if (!failed) {
            assert_int_equal(r, 0);
            assert_true(n > 8);
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_and_order),
        cmocka_unit_test(below_what_is_restricted),
        cmocka_unit_test(reserved_name),
        cmocka_unit_test(sources_in_order),
        cmocka_unit_test(profile_ide),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(counts_and_text),
        cmocka_unit_test(what_is_hardly_meant),
        cmocka_unit_test(hostile_patterns_cost_little),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
