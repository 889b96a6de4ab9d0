/* Any payload as any message: two bytes of type, then the payload. What decodes must encode to
 * the same bytes. */
#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len < 2)
        return 0;
    enum wire_type type = (enum wire_type)(data[0] | data[1] << 8);
    struct wire_message m;
    if (wire_decode(type, bytes_of(data + 2, len - 2), &m) < 0)
        return 0;
    struct buffer b = {0};
    if (wire_encode(&b, &m) < 0 || b.len != len - 2)
        abort();
    struct wire_message again;
    if (wire_decode(type, buffer_view(&b), &again) < 0)
        abort();
    struct buffer c = {0};
    if (wire_encode(&c, &again) < 0 || !bytes_equal(buffer_view(&b), buffer_view(&c)))
        abort();
    buffer_release(&b);
    buffer_release(&c);
    return 0;
}
