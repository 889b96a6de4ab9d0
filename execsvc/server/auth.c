#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <strings.h>

#include "base/cleanup.h"
#include "config/config.h"

#define DIGEST_SIZE 32

struct auth {
    size_t count;
    uint8_t digests[][DIGEST_SIZE];
};

static bool digest_of(const void *data, size_t len, uint8_t ret[DIGEST_SIZE])
{
    unsigned size = DIGEST_SIZE;
    return EVP_Digest(data, len, ret, &size, EVP_sha256(), NULL) == 1;
}

int auth_new(const char *token_file, struct auth **ret, struct failure *ret_failure)
{
    _cleanup_token_list_ struct token_list list = {0};
    int r = token_list_load(token_file, &list, ret_failure);
    if (r < 0)
        return r;
    struct auth *a = calloc(1, sizeof *a + list.count * DIGEST_SIZE);
    if (!a)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    for (; a->count < list.count; a->count++) {
        const char *token = list.tokens[a->count];
        if (!digest_of(token, strlen(token), a->digests[a->count])) {
            auth_free(a);
            return failure_set(ret_failure, -EIO, "OpenSSL cannot compute SHA-256");
        }
    }
    *ret = a;
    return 0;
}

void auth_free(struct auth *a)
{
    free(a);
}

bool auth_check(const struct auth *a, struct bytes authorization)
{
    static const char scheme[] = "Bearer ";
    size_t skip = sizeof scheme - 1;
    if (authorization.len <= skip ||
        strncasecmp((const char *)authorization.data, scheme, skip) != 0)
        return false;
    while (skip < authorization.len && authorization.data[skip] == ' ')
        skip++;
    size_t end = authorization.len;
    while (end > skip &&
           (authorization.data[end - 1] == ' ' || authorization.data[end - 1] == '\t'))
        end--;
    uint8_t digest[DIGEST_SIZE];
    if (!digest_of(authorization.data + skip, end - skip, digest))
        return false;
    /* All are compared, each in constant time: the time tells nothing about which was near. */
    int match = 0;
    for (size_t i = 0; i < a->count; i++)
        match |= CRYPTO_memcmp(digest, a->digests[i], DIGEST_SIZE) == 0;
    return match != 0;
}
