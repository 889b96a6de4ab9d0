/* The request parser: every way of cutting a header gives the same request, and what follows
 * it is left alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "stream/http.h"

#define UPGRADE                                                                     \
    "GET /v1/stream?x=1 HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\n" \
    "upgrade: BERTH/1\r\nX-Empty:\r\nAuthorization: Bearer secret\r\n\r\n"

/* Feeds in pieces of `piece` bytes; the result of the last, and how much was used in all. */
static int feed(struct http_reader *r, const char *data, size_t len, size_t piece, size_t *ret_used)
{
    size_t done = 0;
    int result = 0;
    while (done < len && result == 0) {
        size_t n = len - done < piece ? len - done : piece;
        size_t used = n;
        result = http_reader_feed(r, data + done, n, &used);
        done += used;
    }
    *ret_used = done;
    return result;
}

static void test_every_cut_gives_the_same(void **state)
{
    /* Frames may begin as a folded line would. */
    static const char data[] = UPGRADE " \t\n \x18\0\0\0 frames";
    for (size_t piece = 1; piece <= sizeof data; piece++) {
        struct http_reader *r;
        size_t used;
        assert_int_equal(http_reader_new(&r), 0);
        assert_true(http_reader_untouched(r));
        assert_int_equal(feed(r, data, sizeof data, piece, &used), 1);
        assert_int_equal(used, sizeof UPGRADE - 1);
        const struct http_request *q = http_reader_request(r);
        assert_string_equal(q->method, "GET");
        assert_string_equal(q->path, "/v1/stream");
        assert_true(q->http_1_1 && q->upgrade && q->upgrade_berth && !q->body);
        assert_true(bytes_equal(q->authorization, bytes_of_string("Bearer secret")));
        assert_int_equal(http_reader_feed(r, data, 1, &used), -EBADMSG);
        http_reader_free(r);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *data;
        int error;
    } cases[] = {
        {"\x16\x03\x01\x02\x00\x01", -EBADMSG},
        {"GET / HTTP/1.1\r\n\r\n", -EBADMSG},
        {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", -EBADMSG},
        {"GET / HTTP/3.0\r\nHost: a\r\n\r\n", -EBADMSG},
        {"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nAuthorization: y\r\n\r\n", -EBADMSG},
        {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", -EBADMSG},
        {"GET / HTTP/1.1\r\nHost: a\r\nHo st: a\r\n\r\n", -EBADMSG},
        {"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", -EBADMSG},
        {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
         "Transfer-Encoding: chunked\r\n\r\n",
         -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\nContent-Length: 1\r\n\r\n",
         -EBADMSG},
        {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n", -EBADMSG},
        {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", -EBADMSG},
        {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n\r\n", -EBADMSG},
        {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", -EBADMSG},
        {"GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: a\r\nX-API-KEY: b\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\nOrigin: a\r\norigin: a\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\nSec-Fetch-Site: a\r\nX: y\r\nSec-Fetch-Site: b\r\n\r\n",
         -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\n\n", -EPROTO},
        {"GET / HTTP/1.1\nHost: a\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\ntransfer-encoding: gzip, identity\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n", -EBADMSG},
        {"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\nX:\r\n\tTransfer-Encoding: chunked\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\nX: a\n b\n\n", -EPROTO},
        {"GET / HTTP/1.1\r\n X: a\r\nHost: a\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nHost: a\r\n \r\n\r\n", -EPROTO},
        /* The first mistake counts, however the bytes come. */
        {"GET / HTTP/1.1\r\nX: a\r\n b\r\n\r\n", -EPROTO},
        {"GET / HTTP/1.1\r\nX: a\r\n b\r\nContent-Length: x\r\n\r\n", -EPROTO},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        for (size_t piece = 1; piece < 1000; piece += 333) {
            struct http_reader *r;
            size_t used;
            assert_int_equal(http_reader_new(&r), 0);
            assert_int_equal(feed(r, cases[i].data, strlen(cases[i].data), piece, &used),
                             cases[i].error);
            http_reader_free(r);
        }
    }
}

/* RFC 9110 5.5, wherever the bytes are cut. */
static void test_white_space_around_values(void **state)
{
    static const char data[] =
        "GET / HTTP/1.1\r\nHost: h \r\nAuthorization: \tBearer a b \t \r\nX-Empty: \t \r\n"
        "Transfer-Encoding: chunked \r\nSec-Fetch-Site:cross-site\t\r\n\r\n";
    for (size_t piece = 1; piece <= sizeof data; piece++) {
        struct http_reader *r;
        size_t used;
        assert_int_equal(http_reader_new(&r), 0);
        assert_int_equal(feed(r, data, sizeof data - 1, piece, &used), 1);
        assert_true(
            bytes_equal(http_reader_request(r)->authorization, bytes_of_string("Bearer a b")));
        assert_true(http_reader_request(r)->chunked);
        assert_string_equal(http_reader_field(r, "host"), "h");
        assert_string_equal(http_reader_field(r, "authorization"), "Bearer a b");
        assert_string_equal(http_reader_field(r, "x-empty"), "");
        assert_string_equal(http_reader_field(r, "sec-fetch-site"), "cross-site");
        http_reader_free(r);
    }
}

static void test_header_size(void **state)
{
    static const char start[] = "GET /v1/stream HTTP/1.1\r\nHost: h\r\nX: ";
    static char data[HTTP_HEADER_MAX + 1];
    struct http_reader *r;
    size_t used;
    memset(data, 'x', sizeof data);
    memcpy(data, start, sizeof start - 1);
    assert_int_equal(http_reader_new(&r), 0);
    assert_int_equal(feed(r, data, sizeof data, 100, &used), -EMSGSIZE);
    http_reader_free(r);
    /* Exactly as large as allowed. */
    memcpy(data + HTTP_HEADER_MAX - 4, "\r\n\r\n", 4);
    assert_int_equal(http_reader_new(&r), 0);
    assert_int_equal(feed(r, data, HTTP_HEADER_MAX, 100, &used), 1);
    http_reader_free(r);
}

static void test_upgrade_needs_connection(void **state)
{
    static const struct {
        const char *fields;
        bool upgrade, berth;
    } cases[] = {
        {"Upgrade: berth/1\r\n", false, false},
        {"Connection: upgrade\r\n", false, false},
        {"Connection: upgrades\r\nUpgrade: berth/1\r\n", false, false},
        {"Connection: upgrade\r\nUpgrade: berth/10\r\n", true, false},
        {"Connection: close\r\nConnection: upgrade\r\nUpgrade: a\r\nUpgrade: berth/1\r\n", true,
         true},
        {"Connection:,,\t upgrade ,\r\nUpgrade: ,berth/1,\r\n", true, true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        _cleanup_buffer_ struct buffer b = {0};
        struct http_reader *r;
        size_t used;
        assert_int_equal(buffer_printf(&b, "GET / HTTP/1.1\r\nHost: h\r\n%s\r\n", cases[i].fields),
                         0);
        assert_int_equal(http_reader_new(&r), 0);
        assert_int_equal(feed(r, (const char *)b.data, b.len, 7, &used), 1);
        assert_int_equal(http_reader_request(r)->upgrade, cases[i].upgrade);
        assert_int_equal(http_reader_request(r)->upgrade_berth, cases[i].berth);
        http_reader_free(r);
    }
}

static void test_problem_is_json(void **state)
{
    _cleanup_buffer_ struct buffer b = {0};
    assert_int_equal(http_answer_problem(&b, 404, "a \"quote\" \\x1b\n\xff", "X: y\r\n"), 0);
    assert_int_equal(buffer_append_u8(&b, 0), 0);
    const char *body = strstr((const char *)b.data, "\r\n\r\n") + 4;
    assert_non_null(strstr((const char *)b.data, "\r\nX: y\r\n"));
    assert_non_null(strstr(body, "\"detail\":\"a \\\"quote\\\" \\\\x1b\\u000a\\u00ff\""));
    assert_non_null(strstr(body, "\"retry\":false,\"effect\":\"none\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut_gives_the_same),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_white_space_around_values), cmocka_unit_test(test_header_size),
        cmocka_unit_test(test_upgrade_needs_connection),  cmocka_unit_test(test_problem_is_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
