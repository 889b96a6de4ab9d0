/* Bodies of requests: any bytes, cut in any way. The first byte is the length of the pieces; whole
 * and in pieces the result must be the same, and what is content comes from what was fed. */
#include <stdlib.h>

#include "base/buffer.h"
#include "stream/http_body.h"

static void check(bool ok)
{
    if (!ok)
        abort();
}

static int feed(const uint8_t *data, size_t len, size_t piece, struct buffer *content,
                size_t *ret_used)
{
    static const struct http_request q = {.body = true, .chunked = true};
    struct http_body b;
    size_t done = 0;
    int r = 0;
    http_body_begin(&b, &q);
    while (r == 0 && done < len) {
        size_t n = len - done < piece ? len - done : piece, used = SIZE_MAX;
        struct bytes part;
        r = http_body_feed(&b, data + done, n, &used, &part);
        if (r < 0)
            break;
        check(used > 0 && used <= n && part.len <= used);
        check(part.len == 0 ||
              (part.data >= data + done && part.data + part.len <= data + done + used));
        check(buffer_append(content, part.data, part.len) == 0);
        done += used;
    }
    *ret_used = done;
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len < 1)
        return 0;
    _cleanup_buffer_ struct buffer whole = {0}, cut = {0};
    size_t whole_used, cut_used;
    int a = feed(data + 1, len - 1, len, &whole, &whole_used);
    int b = feed(data + 1, len - 1, (size_t)data[0] + 1, &cut, &cut_used);
    check(a == b);
    check(a < 0 || (whole_used == cut_used && bytes_equal(buffer_view(&whole), buffer_view(&cut))));
    return 0;
}
