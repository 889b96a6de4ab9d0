/* What a mount shows of a symbolic link's text: each rule, with the text that would be let through
 * without it. Texts at random: test_link_text_properties.py. */
#include "unit.h"

#include <errno.h>

#include "base/cleanup.h"
#include "names/link_text.h"

#define MOUNTPOINT "/home/ada/agents"

static const char *shown(enum link_mode mode, int depth, const char *workspace, const char *text)
{
    static char target[PATH_MAX];
    const struct link_rules rules = {
        .mode = mode, .prefixes = LINK_PREFIXES_DEFAULT, .mountpoint = MOUNTPOINT};
    const struct link_place place = {.depth = depth, .workspace = bytes_of_string(workspace)};
    switch (link_text_judge(&rules, &place, bytes_of_string(text), target)) {
    case LINK_EXACT:
        return text;
    case LINK_TRANSLATED:
        return target;
    case LINK_REFUSED:
        break;
    }
    return NULL;
}

static void test_relative(void **state)
{
    static const struct {
        const char *text;
        int depth; /* the least at which it is shown; -1: at none */
    } cases[] = {
        {"a", 0},
        {"a/b/c/", 0},
        {".", 0},
        {"./a//./b", 0},
        {"...", 0},
        {"..a/.b", 0},
        {"..", 1},
        {"../", 1},
        {"../a", 1},
        {"./../a", 1},
        {".././/..//a", 2},
        {"../../../a/b", 3},
        {"a/..", -1},
        {"a/../b", -1},
        {"a/../../../../etc/shadow", -1},
        {"../a/..", -1},
        {"..//a/./../..", -1},
        {"", -1},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        for (int depth = -1; depth < 6; depth++)
            for (enum link_mode mode = 0; mode < LINK_MODE_COUNT; mode++) {
                bool expected = mode == LINK_VERBATIM ||
                                (depth >= 0 && cases[i].depth >= 0 && depth >= cases[i].depth);
                const char *text = shown(mode, depth, "demo", cases[i].text);
                if ((text == cases[i].text) != expected)
                    fail_msg("\"%s\" at depth %d, %s", cases[i].text, depth, link_mode_name(mode));
            }
}

static void test_absolute(void **state)
{
    static const char *const system[] = {
        "/usr",
        "/usr/",
        "/usr/bin/python3",
        "//usr//bin",
        "/./usr/./bin",
        "/bin/sh",
        "/lib",
        "/lib64/ld-linux.so",
        "/opt/x/y",
        "/nix/store/x",
        "/etc/alternatives/vi",
        "/etc/./alternatives",
        "/usr/..a",
    };
    static const char *const out[] = {
        "/",
        "//",
        "/.",
        "/..",
        "/usrx",
        "/us",
        "/home",
        "/home/ada/.ssh/id_ed25519",
        "/etc",
        "/etc/shadow",
        "/etc/alternativesx",
        "/proc/self/root/etc",
        "/dev/fd/3",
        "/usr/..",
        "/usr/../etc/shadow",
        "/usr/lib/../../etc",
        "/bin/..",
        "/li",
        "/workspaces/x",
        "/tmp/x",
        "/home/ada/agents/other/x",
        MOUNTPOINT,
        "/sbin/init",
    };
    for (size_t i = 0; i < ARRAY_SIZE(system); i++) {
        assert_ptr_equal(shown(LINK_CONTAIN, 0, "demo", system[i]), system[i]);
        assert_ptr_equal(shown(LINK_TRANSLATE, 0, "demo", system[i]), system[i]);
        assert_ptr_equal(shown(LINK_VERBATIM, 0, "demo", system[i]), system[i]);
        assert_null(shown(LINK_REFUSE, 9, "demo", system[i]));
        assert_null(shown(LINK_CONTAIN, -1, "demo", system[i]));
    }
    for (size_t i = 0; i < ARRAY_SIZE(out); i++) {
        if (shown(LINK_CONTAIN, 9, "demo", out[i]) || shown(LINK_TRANSLATE, 9, "demo", out[i]) ||
            shown(LINK_REFUSE, 9, "demo", out[i]))
            fail_msg("%s is shown", out[i]);
        assert_ptr_equal(shown(LINK_VERBATIM, -1, "demo", out[i]), out[i]);
    }
}

static void test_translated(void **state)
{
    static const struct {
        const char *text, *all, *one; /* with workspaces as directories; with one as the mount */
    } cases[] = {
        {"/workspace", MOUNTPOINT "/demo", MOUNTPOINT},
        {"/workspace/", MOUNTPOINT "/demo/", MOUNTPOINT "/"},
        {"//./workspace/a//b", MOUNTPOINT "/demo/a//b", MOUNTPOINT "/a//b"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        assert_string_equal(shown(LINK_TRANSLATE, 0, "demo", cases[i].text), cases[i].all);
        assert_string_equal(shown(LINK_TRANSLATE, 0, "", cases[i].text), cases[i].one);
        assert_null(shown(LINK_CONTAIN, 0, "demo", cases[i].text));
        assert_null(shown(LINK_REFUSE, 0, "demo", cases[i].text));
    }
    assert_null(shown(LINK_TRANSLATE, 3, "demo", "/workspace/a/../../x"));
    assert_null(shown(LINK_TRANSLATE, 3, "demo", "/workspace/.."));
    assert_null(shown(LINK_TRANSLATE, 3, "demo", "/workspacex/a"));
    assert_null(shown(LINK_TRANSLATE, -1, "demo", "/workspace/a"));

    /* What has become too long for the kernel is not cut. */
    char text[PATH_MAX] = "/workspace/";
    size_t room = PATH_MAX - 1 - strlen(MOUNTPOINT "/demo");
    memset(text + strlen(text), 'x', room + strlen("/workspace") - strlen(text));
    assert_int_equal(strlen(shown(LINK_TRANSLATE, 0, "demo", text)), PATH_MAX - 1);
    (void)strcat(text, "x");
    assert_null(shown(LINK_TRANSLATE, 0, "demo", text));
}

static void test_long(void **state)
{
    char text[PATH_MAX];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_ptr_equal(shown(LINK_CONTAIN, 0, "demo", text), text);
    for (size_t i = 0; i + 3 < sizeof text; i += 3)
        memcpy(text + i, "../", 3);
    assert_ptr_equal(shown(LINK_CONTAIN, 1365, "demo", text), text);
    assert_null(shown(LINK_CONTAIN, 1364, "demo", text));
}

/* A mountpoint under a prefix must not make all workspaces reachable from one. */
static void test_mount_below_prefix(void **state)
{
    char target[PATH_MAX];
    const struct link_rules rules = {
        .mode = LINK_CONTAIN, .prefixes = "/opt:/srv/to*", .mountpoint = "/opt/agents"};
    const struct link_place place = {.workspace = bytes_of_string("demo")};
    static const struct {
        const char *text;
        enum link_verdict verdict;
    } cases[] = {
        {"/opt/agents", LINK_REFUSED}, {"/opt/./agents/other/f", LINK_REFUSED},
        {"/opt/agentsx", LINK_EXACT},  {"/opt/tool", LINK_EXACT},
        {"/srv/tools/x", LINK_EXACT},  {"/srv/to", LINK_EXACT},
        {"/srv/t", LINK_REFUSED},      {"/usr/bin", LINK_REFUSED},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(link_text_judge(&rules, &place, bytes_of_string(cases[i].text), target),
                         cases[i].verdict);
}

static void test_settings(void **state)
{
    struct failure f;
    enum link_mode mode;
    for (enum link_mode i = 0; i < LINK_MODE_COUNT; i++) {
        assert_int_equal(link_mode_parse(link_mode_name(i), &mode, &f), 0);
        assert_int_equal(mode, i);
    }
    static const char *const modes[] = {"", "Contain", "contain,", "translate"};
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
        assert_int_equal(link_mode_parse(modes[i], &mode, &f), -EINVAL);

    static const char *const good[] = {LINK_PREFIXES_DEFAULT, "/a", "/a/b*", "/a:/..b/c"};
    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        assert_int_equal(link_prefixes_check(good[i], &f), 0);
    static const char *const bad[] = {
        "",   ":",    "/",   "/a:",   ":/a",  "/a::/b", "a",     "/a/",   "//a",
        "/*", "/a/*", "/*a", "/a*/b", "/a**", "/.",     "/a/..", "/../a", "/a/./b",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        if (link_prefixes_check(bad[i], &f) != -EINVAL)
            fail_msg("\"%s\" is taken", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relative),           cmocka_unit_test(test_absolute),
        cmocka_unit_test(test_translated),         cmocka_unit_test(test_long),
        cmocka_unit_test(test_mount_below_prefix), cmocka_unit_test(test_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
