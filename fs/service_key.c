#include "service_key.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/buffer.h"

int service_key(const char *url, const uint8_t service_id[16], uint8_t ret[static SERVICE_KEY_SIZE])
{
    _cleanup_buffer_ struct buffer b = {0};
    int r = service_id ? buffer_append(&b, service_id, 16) : 0;
    if (r == 0)
        r = buffer_append(&b, url, strlen(url));
    if (r == 0 && EVP_Digest(b.data, b.len, ret, NULL, EVP_sha256(), NULL) != 1)
        r = -EIO;
    return r;
}
