/* Requests to the proxy: what is taken, what is sent on of it, what is refused, and where a message
 * ends. */
#include "unit.h"

#include "base/cleanup.h"
#include "egress/message.h"
#include "egress/request.h"

static int parse(const char *text, struct egress_request *ret, char *ret_why)
{
    size_t len = 0;
    struct bytes data = bytes_of_string(text);
    int r = egress_request_find_end(data, &len);
    assert_int_equal(r, 1);
    assert_int_equal(len, data.len);
    return egress_request_parse(data, ret, ret_why, 256);
}

static void connect_goes_where_its_line_says(void **state)
{
    static const struct {
        const char *text;
        const char *host;
        uint16_t port;
    } cases[] = {
        {"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n", "example.org", 443},
        {"CONNECT example.org:443 HTTP/1.1\r\nHost: evil.test\r\n\r\n", "example.org", 443},
        {"CONNECT EXAMPLE.org.:22 HTTP/1.1\r\nHost: x\r\n\r\n", "example.org", 22},
        {"CONNECT [2001:DB8::1]:443 HTTP/1.1\r\nHost: x\r\n\r\n", "2001:db8::1", 443},
        {"CONNECT 192.0.2.1:443 HTTP/1.0\r\n\r\n", "192.0.2.1", 443},
        {"CONNECT example.org:443 HTTP/1.1\r\n\r\n", "example.org", 443},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct egress_request q;
        char why[256];
        assert_int_equal(parse(cases[i].text, &q, why), 0);
        assert_true(q.connect);
        assert_string_equal(q.host.name, cases[i].host);
        assert_int_equal(q.port, cases[i].port);
        assert_int_equal(q.forward.len, 0);
        egress_request_release(&q);
    }
}

static void what_is_sent_on(void **state)
{
    static const struct {
        const char *text;
        const char *forward;
    } cases[] = {
        {"GET http://example.org/a?b HTTP/1.1\r\nHost: evil.test\r\nX: 1\r\nEmpty:\r\n\r\n",
         "GET /a?b HTTP/1.1\r\nHost: example.org\r\nX: 1\r\nEmpty: \r\nVia: 1.1 berth\r\n"
         "Connection: close\r\n\r\n"},
        {"GET HTTP://Example.org:8080 HTTP/1.1\r\nHost: h\r\n\r\n",
         "GET / HTTP/1.1\r\nHost: example.org:8080\r\nVia: 1.1 berth\r\nConnection: close\r\n\r\n"},
        {"GET http://example.org?q HTTP/1.0\r\n\r\n",
         "GET /?q HTTP/1.0\r\nHost: example.org\r\nVia: 1.0 berth\r\nConnection: close\r\n\r\n"},
        {"OPTIONS http://[2001:db8::1] HTTP/1.1\r\nHost: h\r\n\r\n",
         "OPTIONS * HTTP/1.1\r\nHost: [2001:db8::1]\r\nVia: 1.1 berth\r\nConnection: "
         "close\r\n\r\n"},
        /* What is for the proxy goes no further, and nobody can have the length taken away. */
        {"POST http://h/ HTTP/1.1\r\nHost: h\r\nProxy-Authorization: Basic x\r\n"
         "Proxy-Connection: keep-alive\r\nConnection: keep-alive, X-Hop ,content-length\r\n"
         "x-hop: 1\r\nTE: trailers\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\n",
         "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nVia: 1.1 berth\r\n"
         "Connection: close\r\n\r\n"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct egress_request q;
        char why[256];
        assert_int_equal(parse(cases[i].text, &q, why), 0);
        assert_false(q.connect);
        assert_int_equal(q.forward.len, strlen(cases[i].forward));
        assert_memory_equal(q.forward.data, cases[i].forward, q.forward.len);
        egress_request_release(&q);
    }
}

static void refused(void **state)
{
    static const struct {
        const char *text;
        const char *why;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", "a proxy is asked by"},
        {"GET https://example.org/ HTTP/1.1\r\nHost: h\r\n\r\n", "a proxy is asked by"},
        {"GET ftp://example.org/ HTTP/1.1\r\nHost: h\r\n\r\n", "a proxy is asked by"},
        {"GET http://u:p@example.org/ HTTP/1.1\r\nHost: h\r\n\r\n", "user names"},
        {"GET http://example.org@evil.test/ HTTP/1.1\r\nHost: h\r\n\r\n", "user names"},
        {"GET http://example.org:80@evil.test/ HTTP/1.1\r\nHost: h\r\n\r\n", "user names"},
        {"CONNECT example.org@evil.test:443 HTTP/1.1\r\nHost: h\r\n\r\n", ""},
        {"GET http://example.org/#f HTTP/1.1\r\nHost: h\r\n\r\n", ""},
        {"GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n", ""},
        {"GET http://exa%6dple.org/ HTTP/1.1\r\nHost: h\r\n\r\n", ""},
        {"GET http://2130706433/ HTTP/1.1\r\nHost: h\r\n\r\n", "four decimal numbers"},
        {"GET http://0177.0.0.1/ HTTP/1.1\r\nHost: h\r\n\r\n", "four decimal numbers"},
        {"CONNECT 0x7f.1:80 HTTP/1.1\r\nHost: h\r\n\r\n", "four decimal numbers"},
        {"CONNECT example.org HTTP/1.1\r\nHost: h\r\n\r\n", ""},
        {"CONNECT example.org:0 HTTP/1.1\r\nHost: h\r\n\r\n", "the port"},
        {"CONNECT example.org:70000 HTTP/1.1\r\nHost: h\r\n\r\n", "the port"},
        {"CONNECT example.org:443:443 HTTP/1.1\r\nHost: h\r\n\r\n", ""},
        {"CONNECT /x HTTP/1.1\r\nHost: h\r\n\r\n", ""},
        {"CONNECT http://example.org:443 HTTP/1.1\r\nHost: h\r\n\r\n", ""},
        {"CONNECT a:443 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n", "no body"},
        {"CONNECT a:443 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", "no body"},
        {"GET http://h/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "more than one Host"},
        {"GET http://h/ HTTP/1.1\r\n\r\n", "no Host"},
        {"GET http://h/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", ""},
        {"GET http://h/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n"
         "Transfer-Encoding: chunked\r\n\r\n",
         ""},
        {"GET http://h/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", ""},
        {"GET http://h/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x, chunked\r\n\r\n", ""},
        {"GET http://h/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n", "white space"},
        {"GET http://h/ HTTP/1.1\r\nHost: a\r\nX: a\r\n b: c\r\n\r\n", "folded"},
        {"GET http://h/ HTTP/1.1\r\nHost: a\r\nX: a\r\n\tb\r\n\r\n", "folded"},
        {"GET http://h/ HTTP/2.0\r\nHost: a\r\n\r\n", ""},
        {"BREW http://h/ HTTP/1.1\r\nHost: a\r\n\r\n", "no HTTP request"},
        {"GET http://h/ a HTTP/1.1\r\nHost: a\r\n\r\n", ""},
        {"GET http://h/ HTTP/1.1\r\nHost: h\r\nTransfer-Encodings: x\r\n\r\n", "the length"},
        {"x\r\n\r\n", "no HTTP request"},
        {"GET http://h/ H\r\n\r\n", "no HTTP request"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct egress_request q;
        char why[256] = "";
        if (parse(cases[i].text, &q, why) != -EINVAL || !strstr(why, cases[i].why) || !*why)
            fail_msg("%s: %s", cases[i].text, why);
    }
}

static void many_fields(void **state)
{
    _cleanup_buffer_ struct buffer b = {0};
    struct egress_request q;
    char why[256];
    assert_int_equal(buffer_printf(&b, "CONNECT a:1 HTTP/1.1\r\nHost: h\r\n"), 0);
    for (int i = 0; i < 200; i++)
        assert_int_equal(buffer_printf(&b, "X: 1\r\n"), 0);
    assert_int_equal(buffer_printf(&b, "\r\n"), 0);
    assert_int_equal(egress_request_parse(buffer_view(&b), &q, why, sizeof why), -EINVAL);
    assert_non_null(strstr(why, "too many header fields"));
}

static void where_a_header_ends(void **state)
{
    static const struct {
        const char *text;
        int result;
        size_t len;
    } cases[] = {
        {"", 0, 0},
        {"GET", 0, 0},
        {"GET\r", 0, 0},
        {"GET\r\n", 0, 0},
        {"GET\r\n\r", 0, 0},
        {"GET\r\n\r\nrest", 1, 7},
        {"GET\n", -EBADMSG, 0},
        {"GET\r\n\n", -EBADMSG, 0},
        {"GET\rx", -EBADMSG, 0},
        {"\r\n", -EBADMSG, 0},
        {"\n", -EBADMSG, 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        size_t at = 0;
        assert_int_equal(egress_request_find_end(bytes_of_string(cases[i].text), &at),
                         cases[i].result);
        if (cases[i].result == 1)
            assert_int_equal(at, cases[i].len);
        /* Byte by byte. */
        int r = 0;
        at = 0;
        for (size_t n = 1; n <= strlen(cases[i].text) && r == 0; n++)
            r = egress_request_find_end(bytes_of(cases[i].text, n), &at);
        assert_int_equal(r, cases[i].result);
    }
    static char data[EGRESS_HEAD_MAX + 1];
    size_t len = 0;
    memset(data, 'x', sizeof data);
    assert_int_equal(egress_request_find_end(bytes_of(data, EGRESS_HEAD_MAX), &len), 0);
    assert_int_equal(egress_request_find_end(bytes_of(data, sizeof data), &len), -EMSGSIZE);
    memcpy(data + EGRESS_HEAD_MAX - 4, "\r\n\r\n", 4);
    len = 0;
    assert_int_equal(egress_request_find_end(bytes_of(data, sizeof data), &len), 1);
    len = 0;
    assert_int_equal(egress_request_find_end(bytes_of("G\0\r\n\r\n", 6), &len), -EBADMSG);
}

static void where_a_message_ends(void **state)
{
    static const struct {
        const char *text;
        size_t len; /* 0: its end is that of the stream */
        bool request, no_body;
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\nGET", 18, true, false},
        {"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET", 41, true, false},
        {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\nGET", 58, true,
         false},
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP", 40, false, false},
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nHTTP", 38, false, true},
        {"HTTP/1.1 204 No\r\n\r\nHTTP", 19, false, false},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\nHTTP", 44, false, false},
        {"HTTP/1.1 200 OK\r\n\r\nabc", 0, false, false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        for (size_t piece = 1; piece < 70; piece++) {
            struct message m;
            size_t used = 0;
            size_t len = strlen(cases[i].text);
            if (cases[i].request)
                message_begin_request(&m);
            else
                message_begin_response(&m, cases[i].no_body);
            for (size_t at = 0; at < len; at += piece)
                used += message_feed(&m, cases[i].text + at, len - at < piece ? len - at : piece);
            assert_false(m.broken);
            assert_true(m.done == (cases[i].len > 0));
            assert_int_equal(used, cases[i].len ? cases[i].len : len);
        }
    }
    struct message m;
    message_begin_response(&m, false);
    (void)message_feed(&m, "SSH-2.0\r\n", 9);
    assert_true(m.broken && !m.done);
    assert_int_equal(message_feed(&m, "x", 1), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(connect_goes_where_its_line_says),
        cmocka_unit_test(what_is_sent_on),
        cmocka_unit_test(refused),
        cmocka_unit_test(many_fields),
        cmocka_unit_test(where_a_header_ends),
        cmocka_unit_test(where_a_message_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
