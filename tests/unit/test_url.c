/* URLs of services and of listeners. */
#include "unit.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "config/config.h"
#include "stream/url.h"

static void test_urls(void **state)
{
    static const struct {
        const char *url;
        enum stream_kind kind;
        const char *host;
        unsigned port;
        const char *rest;
    } good[] = {
        {"unix:/run/berth.sock", STREAM_UNIX, "", 0, "/run/berth.sock"},
        {"UNIX:/x", STREAM_UNIX, "", 0, "/x"},
        {"https://host", STREAM_HTTPS, "host", 443, NULL},
        {"https://host:8443/", STREAM_HTTPS, "host", 8443, NULL},
        {"HTTPS://a.example:1", STREAM_HTTPS, "a.example", 1, NULL},
        {"https://[2001:db8::1]:99", STREAM_HTTPS, "[2001:db8::1]", 99, NULL},
        {"http://localhost:1", STREAM_HTTP, "localhost", 1, NULL},
        {"http://127.0.0.1:65535", STREAM_HTTP, "127.0.0.1", 65535, NULL},
        {"http://127.9.9.9:2", STREAM_HTTP, "127.9.9.9", 2, NULL},
        {"http://[::1]:3", STREAM_HTTP, "[::1]", 3, NULL},
        {"exec:ssh host berthd --stdio", STREAM_EXEC, "", 0, "ssh host berthd --stdio"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        struct stream_url u;
        struct failure f;
        if (stream_url_parse(good[i].url, &u, &f) < 0)
            fail_msg("%s", f.text);
        assert_int_equal(u.kind, good[i].kind);
        assert_string_equal(u.host, good[i].host);
        assert_int_equal(u.port, good[i].port);
        if (good[i].rest)
            assert_string_equal(u.rest, good[i].rest);
        assert_int_equal(stream_url_check(good[i].url, &f), 0);
    }

    static const char *const bad[] = {
        "",
        "host:1",
        "file:///x",
        "unix:",
        "unix:relative",
        "exec:",
        "exec: \t",
        "https://",
        "https://:1",
        "https://h:0",
        "https://h:65536",
        "https://h:x",
        "https://h:1/v1",
        "https://h:1?x",
        "https://h:1#x",
        "https://u@h:1",
        "https://u:p@h:1",
        "https://a b:1",
        "http://example.org:1",
        "http://10.0.0.1:1",
        "http://0.0.0.0:1",
        "http://[::]:1",
        "http://localhost.evil.example:1",
        "http://127.0.0.1.evil.example:1",
        "http://127.0.0.1@evil.example:1",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct stream_url u = {.port = 77};
        struct failure f;
        if (stream_url_parse(bad[i], &u, &f) != -EINVAL)
            fail_msg("accepted: %s", bad[i]);
        assert_int_equal(u.port, 77); /* untouched */
        assert_int_equal(f.error, -EINVAL);
    }
    char longest[200] = "unix:/";
    struct failure f;
    memset(longest + 6, 'x', 106);
    assert_int_equal(stream_url_check(longest, &f), 0); /* 107 bytes: sun_path with its NUL */
    longest[6 + 106] = 'x';
    assert_int_equal(stream_url_check(longest, &f), -EINVAL);
    assert_non_null(strstr(f.text, "107"));
    assert_non_null(strstr(f.text, "108"));
}

static void test_listener_urls(void **state)
{
    static const char *const good[] = {"unix:/x", "https://0.0.0.0:0", "https://[::]:8443",
                                       "http://127.0.0.1:0", "http://localhost:80"};
    static const char *const bad[] = {
        "exec:cat", "https://host", "http://0.0.0.0:1", "http://host:1", "unix:x", "tcp://h:1", ""};
    struct failure f;
    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        if (config_listen_check(good[i], &f) < 0)
            fail_msg("%s", f.text);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        if (config_listen_check(bad[i], &f) != -EINVAL)
            fail_msg("accepted: %s", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_listener_urls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
