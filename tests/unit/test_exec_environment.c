#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "exec/environment.h"

static const struct environment_base base = {
    .user = "agent",
    .home = "/home/agent",
    .thread_id = {.data = (const uint8_t *)"T/1", .len = 3},
    .workspace = "T%2F1",
};

static struct wire_list list_of(struct buffer *b, const char *const *items)
{
    uint32_t count = 0;
    for (; items[count]; count++)
        assert_int_equal(wire_list_append(b, bytes_of_string(items[count])), 0);
    return wire_list_of(b, count);
}

static void base_is_clean(void **state)
{
    _cleanup_strings_ struct strings e = {0};
    struct failure failure;
    const struct wire_list none = {0};
    assert_int_equal(setenv("BERTH_TEST_LEAK", "1", 1), 0);
    assert_int_equal(environment_build(&base, &none, &e, &failure), 0);
    assert_string_equal(environment_get(&e, "PATH"), ENVIRONMENT_DEFAULT_PATH);
    assert_string_equal(environment_get(&e, "HOME"), "/home/agent");
    assert_string_equal(environment_get(&e, "USER"), "agent");
    assert_string_equal(environment_get(&e, "LOGNAME"), "agent");
    assert_string_equal(environment_get(&e, "SHELL"), "/bin/sh");
    assert_string_equal(environment_get(&e, "LANG"), "C.UTF-8");
    assert_string_equal(environment_get(&e, "BERTH_THREAD_ID"), "T/1");
    assert_string_equal(environment_get(&e, "BERTH_WORKSPACE"), "T%2F1");
    assert_int_equal(e.count, 8);
    assert_null(e.items[8]);
}

static void terminal_and_odd_ids(void **state)
{
    _cleanup_strings_ struct strings e = {0};
    struct failure failure;
    const struct wire_list none = {0};
    struct environment_base odd = base;
    odd.terminal = true;
    odd.user = NULL;
    odd.thread_id = bytes_of("a\0b", 3);
    assert_int_equal(environment_build(&odd, &none, &e, &failure), 0);
    assert_non_null(environment_get(&e, "TERM"));
    assert_null(environment_get(&e, "USER"));
    assert_null(environment_get(&e, "BERTH_THREAD_ID"));
}

static void callers_last_value_counts(void **state)
{
    _cleanup_strings_ struct strings e = {0};
    _cleanup_buffer_ struct buffer b = {0};
    struct failure failure;
    const char *const given[] = {"A=1", "PATH=/mine", "A=2", "EMPTY=", "E=a=b", NULL};
    struct wire_list list = list_of(&b, given);
    assert_int_equal(environment_build(&base, &list, &e, &failure), 0);
    assert_string_equal(environment_get(&e, "A"), "2");
    assert_string_equal(environment_get(&e, "PATH"), "/mine");
    assert_string_equal(environment_get(&e, "EMPTY"), "");
    assert_string_equal(environment_get(&e, "E"), "a=b");
    assert_int_equal(e.count, 8 + 3);
}

static void bad_variables_are_refused(void **state)
{
    const struct {
        struct bytes variable;
        const char *says;
    } rows[] = {
        {bytes_of_string("NOEQUALS"), "no '='"},
        {bytes_of_string("=value"), "without a name"},
        {bytes_of_string("=C:=x"), "without a name"},
        {bytes_of("A=b\0c", 5), "NUL"},
        {bytes_of("A\0B=c", 5), "NUL"},
        {bytes_of_string("BERTH_THREAD_ID=forged"), "reserved"},
        {bytes_of_string("BERTH_="), "reserved"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        _cleanup_strings_ struct strings e = {0};
        _cleanup_buffer_ struct buffer b = {0};
        struct failure failure = {0};
        assert_int_equal(wire_list_append(&b, rows[i].variable), 0);
        struct wire_list list = wire_list_of(&b, 1);
        assert_int_equal(environment_build(&base, &list, &e, &failure), -EINVAL);
        assert_non_null(strstr(failure.text, rows[i].says));
        assert_null(strstr(failure.text, "forged"));
        assert_null(e.items);
    }
}

static void long_strings(void **state)
{
    _cleanup_free_ char *text = malloc(ENVIRONMENT_STRING_MAX + 1);
    assert_non_null(text);
    memset(text, 'x', ENVIRONMENT_STRING_MAX + 1);
    for (size_t over = 0; over <= 1; over++) {
        _cleanup_strings_ struct strings argv = {0};
        _cleanup_buffer_ struct buffer b = {0};
        struct failure failure = {0};
        assert_int_equal(wire_list_append(&b, bytes_of_string("echo")), 0);
        assert_int_equal(wire_list_append(&b, bytes_of(text, ENVIRONMENT_STRING_MAX + over)), 0);
        struct wire_list list = wire_list_of(&b, 2);
        int r = environment_arguments(&list, &argv, &failure);
        assert_int_equal(r, over ? -E2BIG : 0);
        assert_int_equal(argv.count, over ? 0 : 2);
        if (over)
            assert_string_equal(failure.text,
                                "argument 1: 131072 bytes, and the kernel takes at most 131071");
    }
}

static void bad_arguments_are_refused(void **state)
{
    _cleanup_strings_ struct strings argv = {0};
    _cleanup_buffer_ struct buffer b = {0};
    struct failure failure = {0};
    const struct wire_list none = {0};
    assert_int_equal(environment_arguments(&none, &argv, &failure), -EINVAL);
    assert_int_equal(wire_list_append(&b, bytes_of("a\0b", 3)), 0);
    struct wire_list list = wire_list_of(&b, 1);
    assert_int_equal(environment_arguments(&list, &argv, &failure), -EINVAL);
    assert_string_equal(failure.text, "argument 0: holds a NUL byte");
}

static void programs_follow_path(void **state)
{
    const struct {
        const char *program;
        const char *path;
        const char *const expected[5];
    } rows[] = {
        {"ls", "/bin:/usr/bin", {"/bin/ls", "/usr/bin/ls"}},
        {"ls", "", {"./ls"}},
        {"ls", ":/bin:", {"./ls", "/bin/ls", "./ls"}},
        {"ls", "rel:/b", {"rel/ls", "/b/ls"}},
        {"./ls", "/bin", {"./ls"}},
        {"a/b", "/bin", {"a/b"}},
        {"/x/y", "/bin", {"/x/y"}},
        {"", "/bin", {NULL}},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        _cleanup_strings_ struct strings programs = {0};
        assert_int_equal(environment_programs(rows[i].program, rows[i].path, &programs), 0);
        size_t count = 0;
        for (; rows[i].expected[count]; count++) {
            assert_true(count < programs.count);
            assert_string_equal(programs.items[count], rows[i].expected[count]);
        }
        assert_int_equal(programs.count, count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base_is_clean),
        cmocka_unit_test(terminal_and_odd_ids),
        cmocka_unit_test(callers_last_value_counts),
        cmocka_unit_test(bad_variables_are_refused),
        cmocka_unit_test(long_strings),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(programs_follow_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
