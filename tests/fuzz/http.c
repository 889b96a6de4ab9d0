/* The request parser of the service: any bytes, cut in any way. The first byte is the length of
 * the pieces; whole and in pieces the result must be the same. */
#include <stdlib.h>

#include "base/cleanup.h"
#include "stream/http.h"

static void check(bool ok)
{
    if (!ok)
        abort();
}

/* The result, and how many bytes belonged to the header when it is complete. */
static int feed(struct http_reader *r, const uint8_t *data, size_t len, size_t piece,
                size_t *ret_used)
{
    size_t done = 0;
    int result = 0;
    while (done < len && result == 0) {
        size_t n = len - done < piece ? len - done : piece;
        size_t used = SIZE_MAX;
        result = http_reader_feed(r, data + done, n, &used);
        if (result < 0)
            break;
        check(used <= n && (result == 1 || used == n));
        done += used;
    }
    *ret_used = done;
    return result;
}

static void check_same(const struct http_request *a, const struct http_request *b)
{
    check(strcmp(a->method, b->method) == 0 && strcmp(a->path, b->path) == 0);
    check(a->http_1_1 == b->http_1_1 && a->body == b->body && a->upgrade == b->upgrade &&
          a->upgrade_berth == b->upgrade_berth && a->chunked == b->chunked &&
          a->length == b->length && a->keep_alive == b->keep_alive &&
          a->expects_continue == b->expects_continue);
    check(strcmp(a->target, b->target) == 0);
    check(!a->chunked || (a->body && a->length == 0 && a->http_1_1));
    check(bytes_equal(a->authorization, b->authorization));
    check(!a->upgrade_berth || a->upgrade);
    check(!a->upgrade || a->http_1_1);
}

/* An answer may hold anything of the request; it must stay one answer, with a JSON body. */
static void check_answer(const struct http_request *q)
{
    _cleanup_buffer_ struct buffer b = {0};
    check(http_answer_problem(&b, 404, q->path, "") == 0);
    const uint8_t *body = memmem(b.data, b.len, "\r\n\r\n", 4);
    check(body != NULL);
    for (const uint8_t *p = body + 4; p < b.data + b.len - 1; p++)
        check(*p >= 0x20 && *p < 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len < 1)
        return 0;
    size_t piece = (size_t)data[0] + 1;
    struct http_reader *whole = NULL, *cut = NULL;
    size_t whole_used, cut_used;
    check(http_reader_new(&whole) == 0 && http_reader_new(&cut) == 0);
    int a = feed(whole, data + 1, len - 1, len, &whole_used);
    int b = feed(cut, data + 1, len - 1, piece, &cut_used);
    check(a == b);
    if (a == 1) {
        check(whole_used == cut_used && whole_used <= HTTP_HEADER_MAX);
        check_same(http_reader_request(whole), http_reader_request(cut));
        check_answer(http_reader_request(whole));
    }
    http_reader_free(whole);
    http_reader_free(cut);
    return 0;
}
