/* What a request handler that runs on a worker thread answers. The views in `message` point
 * into `storage` or into static memory. */
#pragma once

#include "base/buffer.h"
#include "wire/wire.h"

#define REPLY_UNLOCKED_ANY UINT64_MAX

struct reply {
    struct wire_message message; /* set when the handler returned 0 */
    struct buffer storage;
    uint64_t unlocked; /* a node where others may get a lock now, 0: none; also on failure */
    char text[256];    /* optional, on failure: why, when errno alone does not say it */
};
