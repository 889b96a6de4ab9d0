/* A line of the proxy's log, whatever a process that has read what strangers sent may write: what
 * is made of it can be sent. */
#include <stdlib.h>

#include "base/buffer.h"
#include "egress/history.h"

static void check(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    _cleanup_buffer_ struct buffer element = {0};
    struct wire_message m, again;
    json_t *object;
    int r = history_parse(bytes_of(data, len), &object, &m);
    check(r == 0 || r == -EINVAL);
    if (r < 0)
        return 0;
    check(wire_encode(&element, &m) == 0);
    check(wire_decode(WIRE_EGRESS_DECISION, buffer_view(&element), &again) == 0);
    check(bytes_equal(again.egress_decision.host, m.egress_decision.host));
    json_decref(object);
    return 0;
}
