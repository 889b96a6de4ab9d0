/* A request to the proxy. The first byte is the length of the pieces in which the end of its header
 * is looked for. What is sent on is one header, with one Host that is the one that was judged. */
#include <stdlib.h>
#include <strings.h>

#include "base/cleanup.h"
#include "egress/message.h"
#include "egress/request.h"

static void check(bool ok)
{
    if (!ok)
        abort();
}

static void check_forward(const struct egress_request *q)
{
    static const char host[] = "\r\nHost: ";
    struct bytes forward = buffer_view(&q->forward);
    size_t end = 0;
    /* A header's fields grow by the space behind their colon, and by those that are added. */
    check(forward.len > EGRESS_HEAD_MAX || egress_request_find_end(forward, &end) == 1);
    check(forward.len > EGRESS_HEAD_MAX || end == forward.len);
    const uint8_t *at = memmem(forward.data, forward.len, host, sizeof host - 1);
    check(at != NULL);
    at += sizeof host - 1;
    at += *at == '[';
    check(strncasecmp((const char *)at, q->host.name, strlen(q->host.name)) == 0);
    for (size_t left = forward.len - (size_t)(at - forward.data); left > sizeof host; at++, left--)
        check(strncasecmp((const char *)at, host, sizeof host - 2) != 0);
    struct message m;
    message_begin_request(&m);
    check(message_feed(&m, forward.data, forward.len) == forward.len && !m.broken);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len < 2)
        return 0;
    size_t piece = (size_t)data[0] + 1;
    struct bytes all = bytes_of(data + 1, len - 1);
    size_t whole = 0, cut = 0;
    int r = egress_request_find_end(all, &whole);
    int again = 0;
    for (size_t n = piece; again == 0 && n - piece < all.len; n += piece)
        again = egress_request_find_end(bytes_of(all.data, n < all.len ? n : all.len), &cut);
    check(r == again && (r != 1 || whole == cut));
    struct egress_request q;
    char why[256] = "";
    if (r != 1)
        return 0;
    r = egress_request_parse(bytes_of(all.data, whole), &q, why, sizeof why);
    check(r == 0 || (r == -EINVAL && *why));
    if (r < 0)
        return 0;
    check(q.port > 0 && q.host.name[0]);
    if (!q.connect)
        check_forward(&q);
    egress_request_release(&q);
    return 0;
}
