#include "requests.h"

bool fuzz_request(size_t i, struct sample *ret)
{
    for (size_t k = 0; k < wire_row_count(); k++) {
        const struct wire_row *row = wire_row_at(k);
        if (row->class != WIRE_CLASS_REQUEST || row->phase == WIRE_PHASE_HELLO || i-- > 0)
            continue;
        sample_make(row, SAMPLE_LEAST, ret);
        return true;
    }
    return false;
}
