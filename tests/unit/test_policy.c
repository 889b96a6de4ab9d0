/* What a policy's document says, and which field of it an error is about. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "confine/policy.h"

static int parse(const char *text, struct policy *ret, struct failure *f)
{
    return policy_parse(bytes_of_string(text), NULL, ret, f);
}

static void assert_written(const struct policy *p, const char *expected)
{
    json_t *object = policy_to_json(p);
    _cleanup_free_ char *text = json_dumps(object, JSON_COMPACT);
    assert_string_equal(text, expected);
    json_decref(object);
}

static void nothing_said(void **state)
{
    struct failure f;
    _cleanup_policy_ struct policy p;
    assert_int_equal(parse("{}", &p, &f), 0);
    assert_written(&p, "{\"filesystem\":\"own\",\"network\":\"none\",\"limits\":{\"memory\":null,"
                       "\"pids\":null,\"cpu\":null,\"cpu_time\":null,\"disk\":null,\"files\":null,"
                       "\"file_size\":null,\"open_files\":null,"
                       "\"wall_time\":null},\"user\":\"service\",\"require\":[]}");
}

static void everything_said(void **state)
{
    struct failure f;
    static const char text[] =
        "{\"filesystem\":{\"read\":[\"/opt/a b\",\"/x\"]},\"network\":{\"allow\":[\"PyPI.org:443\","
        "\"*.example.com:*\",\"[2001:DB8::1]:80\",\"192.0.2.1:8080\"]},\"limits\":{\"memory\":"
        "\"2G\",\"pids\":100,\"cpu\":1.5,\"cpu_time\":60,\"disk\":1048576,\"files\":16,\"file_"
        "size\":4096,\"open_files\":64,"
        "\"wall_time\":0.5},"
        "\"user\":\"service\",\"require\":[\"full\",\"landlock\"]}";
    static const char written[] =
        "{\"filesystem\":{\"read\":[\"/opt/a b\",\"/x\"]},\"network\":{\"allow\":[\"pypi.org:443\","
        "\"*.example.com:*\",\"[2001:db8::1]:80\",\"192.0.2.1:8080\"]},\"limits\":{\"memory\":"
        "2147483648,\"pids\":100,\"cpu\":1.5,\"cpu_time\":60,\"disk\":1048576,\"files\":16,\"file_"
        "size\":4096,\"open_files\":64,"
        "\"wall_time\":"
        "0.5},\"user\":\"service\",\"require\":[\"full\",\"landlock\"]}";
    _cleanup_policy_ struct policy p, again;
    assert_int_equal(parse(text, &p, &f), 0);
    assert_int_equal(p.memory_bytes, UINT64_C(2) << 30);
    assert_int_equal(p.cpu_percent, 150);
    assert_int_equal(p.wall_time_ms, 500);
    assert_int_equal(allow_list_count(p.allow), 4);
    assert_written(&p, written);
    assert_int_equal(parse(written, &again, &f), 0);
    assert_written(&again, written);
}

/* What a document does not name is as in the base; what it names, whole. */
static void over_a_base(void **state)
{
    struct failure f;
    _cleanup_policy_ struct policy base, p, q;
    assert_int_equal(parse("{\"limits\":{\"pids\":9,\"memory\":\"1G\"},\"filesystem\":{\"read\":["
                           "\"/a\"]},\"network\":{\"allow\":[\"a:1\"]},\"require\":[\"full\"]}",
                           &base, &f),
                     0);
    assert_int_equal(policy_parse(bytes_of_string("{\"limits\":{\"memory\":null}}"), &base, &p, &f),
                     0);
    assert_int_equal(p.pids, 9);
    assert_int_equal(p.memory_bytes, 0);
    assert_int_equal(p.network, POLICY_NETWORK_ALLOW);
    assert_string_equal(p.read[0], "/a");
    assert_string_equal(p.require[0], "full");
    assert_int_equal(policy_parse(bytes_of_string("{\"network\":\"none\",\"filesystem\":\"host\","
                                                  "\"require\":[]}"),
                                  &base, &q, &f),
                     0);
    assert_int_equal(q.network, POLICY_NETWORK_NONE);
    assert_null(q.allow);
    assert_int_equal(q.read_count, 0);
    assert_int_equal(q.require_count, 0);
}

static void errors_name_the_field(void **state)
{
    static const struct {
        const char *text;
        const char *field;
    } cases[] = {
        {"", "line 1, column 0: not valid JSON"},
        {"[]", "a policy is one JSON object"},
        {"{\"a\":1,\"a\":2}", "line 1, "},
        {"{\"netwrok\":\"none\"}", "netwrok: there is no such field"},
        {"{\"\":1}", ": there is no such field"},
        {"{\"net\":1}", "net: there is no such field"},
        {"{\"filesystem\":1}", "filesystem: "},
        {"{\"filesystem\":\"all\"}", "filesystem: "},
        {"{\"filesystem\":{\"write\":[]}}", "filesystem.write: there is no such field"},
        {"{\"filesystem\":{\"read\":\"/a\"}}", "filesystem.read: "},
        {"{\"filesystem\":{\"read\":[\"a\"]}}", "filesystem.read: entry 1, a must be"},
        {"{\"filesystem\":{\"read\":[\"/a\",\"/a/../b\"]}}", "filesystem.read: entry 2, "},
        {"{\"filesystem\":{\"read\":[\"/a\\u0000b\"]}}",
         "filesystem.read: entry 1 must be an absolute path"},
        {"{\"network\":{\"allow\":[\"a\\u0000:1\"]}}", "network.allow: entry 1: \"a\\x00:1\": at"},
        {"{\"network\":\"none\\u0000\"}", "network: "},
        {"{\"network\":\"some\"}", "network: "},
        {"{\"network\":{}}", "network: "},
        {"{\"network\":{\"allow\":[],\"deny\":[]}}", "network.deny: there is no such field"},
        {"{\"network\":{\"allow\":\"a:1\"}}", "network.allow: must be a list"},
        {"{\"network\":{\"allow\":[1]}}", "network.allow: entry 1 must be a string"},
        {"{\"network\":{\"allow\":[\"a:1\",\"a\"]}}", "network.allow: entry 2: "},
        {"{\"network\":{\"allow\":[\"a:65536\"]}}", "network.allow: entry 1: "},
        {"{\"limits\":[]}", "limits: "},
        {"{\"limits\":{\"ram\":1}}", "limits.ram: there is no such field"},
        {"{\"limits\":{\"memory\":\"1X\"}}", "limits.memory: "},
        {"{\"limits\":{\"memory\":\"1GX\"}}",
         "limits.memory: must be a number of bytes, at least 1048576, or one with K, M, G or T, "},
        {"{\"limits\":{\"memory\":\"-1\"}}", "limits.memory: "},
        {"{\"limits\":{\"memory\":1}}", "limits.memory: "},
        {"{\"limits\":{\"memory\":\"9000000T\"}}", "limits.memory: "},
        {"{\"limits\":{\"memory\":\"99999999999999999999\"}}", "limits.memory: "},
        {"{\"limits\":{\"memory\":true}}", "limits.memory: "},
        {"{\"limits\":{\"pids\":1}}", "limits.pids: "},
        {"{\"limits\":{\"pids\":2.5}}", "limits.pids: "},
        {"{\"limits\":{\"pids\":\"9\"}}", "limits.pids: "},
        {"{\"limits\":{\"cpu\":0}}", "limits.cpu: "},
        {"{\"limits\":{\"cpu\":1e9}}", "limits.cpu: "},
        {"{\"limits\":{\"cpu_time\":0}}", "limits.cpu_time: "},
        {"{\"limits\":{\"disk\":4096}}", "limits.disk: "},
        {"{\"limits\":{\"files\":1}}", "limits.files: "},
        {"{\"limits\":{\"cpu_time\":1.5}}", "limits.cpu_time: "},
        {"{\"limits\":{\"file_size\":-1}}", "limits.file_size: "},
        {"{\"limits\":{\"file_size\":0}}",
         "limits.file_size: must be a number of bytes, at least 1,"},
        {"{\"limits\":{\"file_size\":\"0K\"}}", "limits.file_size: "},
        {"{\"limits\":{\"memory\":0}}", "limits.memory: "},
        {"{\"limits\":{\"pids\":0}}", "limits.pids: "},
        {"{\"limits\":{\"open_files\":0}}", "limits.open_files: "},
        {"{\"limits\":{\"open_files\":3}}", "limits.open_files: "},
        {"{\"limits\":{\"wall_time\":0}}",
         "limits.wall_time: must be a number of seconds, from 0.001"},
        {"{\"limits\":{\"wall_time\":\"0s\"}}", "limits.wall_time: "},
        {"{\"limits\":{\"wall_time\":\"1y\"}}", "limits.wall_time: "},
        {"{\"limits\":{\"wall_time\":true}}", "limits.wall_time: "},
        {"{\"user\":\"root\"}", "user: "},
        {"{\"user\":0}", "user: "},
        {"{\"require\":\"full\"}", "require: "},
        {"{\"require\":[\"\"]}", "require: entry 1 must be"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct failure f = {0};
        struct policy p;
        int r = parse(cases[i].text, &p, &f);
        for (const char *at = f.text; *at; at++)
            assert_in_range(*at, 0x20, 0x7e);
        if (r != -EINVAL || strncmp(f.text, cases[i].field, strlen(cases[i].field)) != 0)
            fail_msg("%s: %d, \"%s\" instead of \"%s…\"", cases[i].text, r, f.text, cases[i].field);
    }
}

/* As people write them; the same as for the options of `berth exec`. */
static void units_of_sizes_and_times(void **state)
{
    static const struct {
        const char *size, *time;
        uint64_t bytes, ms;
    } cases[] = {
        {"\"512M\"", "1", UINT64_C(512) << 20, 1000},
        {"\"512m\"", "0.001", UINT64_C(512) << 20, 1},
        {"\"512MB\"", "\"1h\"", UINT64_C(512) << 20, 3600000},
        {"\"512MiB\"", "\"1.5m\"", UINT64_C(512) << 20, 90000},
        {"\"2t\"", "\"20ms\"", UINT64_C(2) << 40, 20},
        {"2097152", "\"365d\"", UINT64_C(2) << 20, UINT64_C(31536000000)},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct failure f;
        _cleanup_policy_ struct policy p;
        char text[128];
        (void)snprintf(text, sizeof text, "{\"limits\":{\"memory\":%s,\"wall_time\":%s}}",
                       cases[i].size, cases[i].time);
        assert_int_equal(parse(text, &p, &f), 0);
        assert_int_equal(p.memory_bytes, cases[i].bytes);
        assert_int_equal(p.wall_time_ms, cases[i].ms);
    }
}

static void sizes_are_bounded(void **state)
{
    struct failure f;
    struct policy p;
    static char text[POLICY_TEXT_MAX + 2];
    memset(text, ' ', sizeof text - 1);
    memcpy(text, "{}", 2);
    assert_int_equal(parse(text, &p, &f), -EINVAL);
    text[POLICY_TEXT_MAX] = 0;
    assert_int_equal(parse(text, &p, &f), 0);
    policy_release(&p);
    size_t at = (size_t)snprintf(text, sizeof text, "{\"require\":[\"a\"");
    for (int i = 0; i < POLICY_LIST_MAX; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, ",\"a\"");
    (void)snprintf(text + at, sizeof text - at, "]}");
    assert_int_equal(parse(text, &p, &f), -EINVAL);
    assert_non_null(strstr(f.text, "require: must be a list of at most 128"));
}

static void path_of_the_field_in_a_larger_document(void **state)
{
    struct failure f;
    struct policy p;
    json_t *object = json_pack("{s:{s:s}}", "limits", "memory", "x");
    assert_int_equal(policy_from_json(object, "service.policy", NULL, &p, &f), -EINVAL);
    json_decref(object);
    assert_non_null(strstr(f.text, "service.policy.limits.memory: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_said),
        cmocka_unit_test(everything_said),
        cmocka_unit_test(over_a_base),
        cmocka_unit_test(errors_name_the_field),
        cmocka_unit_test(units_of_sizes_and_times),
        cmocka_unit_test(sizes_are_bounded),
        cmocka_unit_test(path_of_the_field_in_a_larger_document),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
