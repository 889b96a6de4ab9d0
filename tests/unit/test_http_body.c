/* Bodies of requests: every way of cutting one gives the same content, and what follows is left
 * alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>

#include "base/buffer.h"
#include "stream/http_body.h"

static const struct http_request in_chunks = {.body = true, .chunked = true};

/* Feeds in pieces until the end or an error, which is returned. */
static int feed(const struct http_request *q, const char *data, size_t len, size_t piece,
                struct buffer *content, size_t *ret_used)
{
    struct http_body b;
    size_t done = 0;
    int r = 0;
    http_body_begin(&b, q);
    while (r == 0 && done < len) {
        size_t n = len - done < piece ? len - done : piece, used = SIZE_MAX;
        struct bytes part;
        r = http_body_feed(&b, data + done, n, &used, &part);
        if (r < 0)
            return r;
        assert_true(used <= n && used > 0 && part.len <= used);
        assert_int_equal(buffer_append(content, part.data, part.len), 0);
        done += used;
    }
    *ret_used = done;
    assert_int_equal(r == 1, http_body_ended(&b));
    return r;
}

static void test_every_cut_gives_the_same(void **state)
{
    static const char data[] = "5\r\nabcde\r\n00A;name=\"x y\";z\r\n0123456789\r\n0\r\nField: x\r\n"
                               "Other:\r\n\r\nGET / HTTP/1.1\r\n";
    const size_t len = strlen(data), end = len - strlen("GET / HTTP/1.1\r\n");
    for (size_t piece = 1; piece <= len; piece++) {
        _cleanup_buffer_ struct buffer content = {0};
        size_t used;
        assert_int_equal(feed(&in_chunks, data, len, piece, &content, &used), 1);
        assert_int_equal(used, end);
        assert_true(bytes_equal(buffer_view(&content), bytes_of_string("abcde0123456789")));
    }
    for (size_t cut = 0; cut < end; cut++) {
        _cleanup_buffer_ struct buffer content = {0};
        size_t used;
        assert_int_equal(feed(&in_chunks, data, cut, 3, &content, &used), 0);
    }
}

static void test_length(void **state)
{
    static const struct http_request five = {.body = true, .length = 5}, none = {0};
    for (size_t piece = 1; piece < 10; piece++) {
        _cleanup_buffer_ struct buffer content = {0};
        size_t used;
        assert_int_equal(feed(&five, "abcdefgh", 8, piece, &content, &used), 1);
        assert_int_equal(used, 5);
        assert_true(bytes_equal(buffer_view(&content), bytes_of_string("abcde")));
    }
    struct http_body b;
    http_body_begin(&b, &none);
    assert_true(http_body_ended(&b));
}

static void test_refused(void **state)
{
    static const char *const cases[] = {
        "\r\n",
        ";\r\n",
        "x\r\n",
        "-1\r\n",
        "+1\r\n",
        " 1\r\n",
        "1 \r\n",
        "1\t;\r\n",
        "0x1\r\n",
        "1\n",
        "1\rx",
        "1;a\n",
        "1;a\rb",
        "1;\x01\r\n",
        "1;\x7f\r\n",
        "1\r\nab",
        "1\r\na\n",
        "1\r\naX\n",
        "1\r\na\rb",
        "1\r\na\r\n\r\n",
        "0\r\n \r\n",
        "0\r\nx\n",
        "0\r\nx\r\r",
        "0\r\nx: y\r\n z\r\n",
        "0\r\n:\r\n",
        "0\r\n\rx",
        "0\r\n\n",
        "0000000000000000\r\n",
        "1234567890abcdef\r\n",
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        for (size_t piece = 1; piece < 40; piece += 13) {
            _cleanup_buffer_ struct buffer content = {0};
            size_t used;
            if (feed(&in_chunks, cases[i], strlen(cases[i]), piece, &content, &used) != -EBADMSG)
                fail_msg("taken: %s", cases[i]);
        }
}

/* What has no end of its own has one that is ours, and not one byte before it. */
static void test_bounds(void **state)
{
    _cleanup_buffer_ struct buffer b = {0};
    _cleanup_buffer_ struct buffer content = {0};
    size_t used;
    assert_int_equal(buffer_printf(&b, "0;%0*d\r\n\r\n", HTTP_CHUNK_EXTENSION_MAX, 0), 0);
    assert_int_equal(feed(&in_chunks, (const char *)b.data, b.len, 9, &content, &used), 1);
    b.len = 0;
    assert_int_equal(buffer_printf(&b, "0;%0*d\r\n\r\n", HTTP_CHUNK_EXTENSION_MAX + 1, 0), 0);
    assert_int_equal(feed(&in_chunks, (const char *)b.data, b.len, 9, &content, &used), -EBADMSG);
    b.len = 0;
    assert_int_equal(buffer_printf(&b, "0\r\n%0*d\r\n\r\n", HTTP_TRAILER_MAX, 0), 0);
    assert_int_equal(feed(&in_chunks, (const char *)b.data, b.len, 9, &content, &used), 1);
    b.len = 0;
    assert_int_equal(buffer_printf(&b, "0\r\n%0*d\r\n%d\r\n\r\n", HTTP_TRAILER_MAX, 0, 0), 0);
    assert_int_equal(feed(&in_chunks, (const char *)b.data, b.len, 9, &content, &used), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut_gives_the_same),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
