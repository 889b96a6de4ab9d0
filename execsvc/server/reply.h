/* What a request handler that runs on a worker thread answers. The views in `message` point
 * into `storage` or into static memory. */
#pragma once

#include "base/buffer.h"
#include "wire/wire.h"

struct reply {
    struct wire_message message; /* set when the handler returned 0 */
    struct buffer storage;
    char text[256]; /* optional, on failure: why, when errno alone does not say it */
};
