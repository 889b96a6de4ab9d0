/* Multipart bodies: what is told of them does not depend on how they come in pieces, and content is
 * what was sent. Input: u8 piece size, u8 length, the boundary, the body. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "gateway/multipart.h"

static int on_begin(void *context, const struct multipart_part *part)
{
    return buffer_printf(context, "<%s|%s>", part->name, part->filename ? part->filename : "");
}

static int on_content(void *context, struct bytes data)
{
    return buffer_append(context, data.data, data.len);
}

static int on_end(void *context)
{
    return buffer_append(context, "\0", 1);
}

static int run(const char *type, struct bytes body, size_t piece, struct buffer *ret)
{
    const struct multipart_events events = {
        .begin = on_begin, .content = on_content, .end = on_end, .context = ret};
    _cleanup_multipart_ struct multipart *m = NULL;
    int r = multipart_new(type, &events, &m);
    for (size_t at = 0; r == 0 && at < body.len; at += piece)
        r = multipart_feed(m,
                           bytes_of(body.data + at, piece < body.len - at ? piece : body.len - at));
    return r < 0 ? r : multipart_is_complete(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char type[320];
    if (size < 2 || size - 2 < data[1])
        return 0;
    (void)snprintf(type, sizeof type, "multipart/form-data; boundary=%.*s", data[1],
                   (const char *)data + 2);
    struct bytes body = bytes_of(data + 2 + data[1], size - 2 - data[1]);
    struct buffer whole = {0}, pieces = {0};
    int r = run(type, body, body.len ? body.len : 1, &whole);
    int again = run(type, body, data[0] ? data[0] : 1, &pieces);
    assert(r == again);
    if (r >= 0)
        assert(bytes_equal(buffer_view(&whole), buffer_view(&pieces)));
    assert(whole.len <= size + 32 * size);
    buffer_release(&whole);
    buffer_release(&pieces);
    return 0;
}
