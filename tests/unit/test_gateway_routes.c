/* The gateway's tables: what a path and a method find, and what an errno becomes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>

#include "base/buffer.h"
#include "gateway/problem.h"
#include "gateway/routes.h"

/* A path that the pattern matches, each {…} being "x". */
static void sample(const char *pattern, char *ret)
{
    while (*pattern) {
        if (*pattern == '{') {
            *ret++ = 'x';
            pattern = strchr(pattern, '}');
        } else {
            *ret++ = *pattern;
        }
        pattern++;
    }
    *ret = '\0';
}

static void test_each_is_found(void **state)
{
    char path[256], allow[ROUTE_ALLOW_MAX];
    struct route_match match;
    assert_true(route_count() > 20);
    for (size_t i = 0; i < route_count(); i++) {
        const struct route *route = route_at(i);
        sample(route->pattern, path);
        assert_ptr_equal(route_find(route->method, path, &match, allow), route);
        for (size_t n = 0; n < match.param_count; n++)
            assert_true(bytes_equal(match.params[n], bytes_of_string("x")));
        if (strcmp(route->method, "GET") == 0)
            assert_ptr_equal(route_find("HEAD", path, &match, allow), route);
        assert_null(route_find("TRACE", path, &match, allow));
        assert_non_null(strstr(allow, route->method));
    }
}

static void test_what_is_not_found(void **state)
{
    static const char *const paths[] = {"",
                                        "/",
                                        "/v1",
                                        "/v1/",
                                        "/v1/workspaces/",
                                        "/v1/workspacesx",
                                        "/V1/workspaces",
                                        "/v1//workspaces",
                                        "/v1/workspaces/a/",
                                        "/v1/workspaces/a/nothing",
                                        "/healthz/",
                                        "/healthz/x"};
    char allow[ROUTE_ALLOW_MAX];
    struct route_match match;
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        assert_null(route_find("GET", paths[i], &match, allow));
        assert_string_equal(allow, "");
    }
    assert_null(route_find("PUT", "/v1/workspaces", &match, allow));
    assert_string_equal(allow, "GET, HEAD, POST");
}

static void test_parameters(void **state)
{
    char allow[ROUTE_ALLOW_MAX];
    struct route_match match;
    assert_non_null(route_find("GET", "/v1/workspaces/a%2Fb/files/c/d%20e/", &match, allow));
    assert_int_equal(match.param_count, 2);
    assert_true(bytes_equal(match.params[0], bytes_of_string("a%2Fb")));
    assert_true(bytes_equal(match.params[1], bytes_of_string("c/d%20e/")));
    /* The rest may be nothing. */
    assert_non_null(route_find("GET", "/v1/workspaces/a/list/", &match, allow));
    assert_true(bytes_equal(match.params[1], (struct bytes){0}));
}

static void test_problems(void **state)
{
    static const struct {
        int error, status;
        bool retry;
    } cases[] = {{-EINVAL, 400, false},   {-EACCES, 403, false},         {-ENOENT, 404, false},
                 {-EBUSY, 409, true},     {-EREMCHG, 412, false},        {-EMSGSIZE, 413, false},
                 {-ENOSPC, 507, true},    {-EOPNOTSUPP, 501, false},     {-ECONNRESET, 503, true},
                 {-ETIMEDOUT, 504, true}, {-ENOTRECOVERABLE, 500, false}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct problem_kind kind = problem_of(cases[i].error);
        assert_int_equal(kind.error, cases[i].error);
        assert_int_equal(kind.status, cases[i].status);
        assert_int_equal(kind.retry, cases[i].retry);
    }
    for (int error = 1; error < 134; error++) {
        struct problem_kind kind = problem_of(-error);
        assert_true(kind.status >= 400 && kind.status < 600);
        assert_string_not_equal(problem_title(kind.status), "Error");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_is_found),
        cmocka_unit_test(test_what_is_not_found),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_problems),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
