/* The contents in a segment, with their digests. */
#include <assert.h>
#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cache/segment_private.h"

static int digest(const struct segment_service *service, const struct segment_key *key,
                  struct bytes content, uint8_t ret[SEGMENT_DIGEST_SIZE])
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (!context)
        return -ENOMEM;
    uint64_t key_len = key->name.len;
    bool done = EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1 &&
                EVP_DigestUpdate(context, service->id, sizeof service->id) == 1 &&
                EVP_DigestUpdate(context, &key_len, sizeof key_len) == 1 &&
                EVP_DigestUpdate(context, key->name.data, key->name.len) == 1 &&
                EVP_DigestUpdate(context, content.data, content.len) == 1 &&
                EVP_DigestFinal_ex(context, ret, NULL) == 1;
    EVP_MD_CTX_free(context);
    return done ? 0 : -ENOMEM;
}

int segment_read(int fd, const struct segment_service *service, const struct segment_key *key,
                 const struct segment_slot *slot, uint8_t *data)
{
    uint8_t expected[SEGMENT_DIGEST_SIZE], actual[SEGMENT_DIGEST_SIZE];
    struct iovec parts[] = {{expected, sizeof expected}, {data, slot->size}};
    ssize_t n;
    do
        n = preadv(fd, parts, 2, (off_t)(slot->unit * SEGMENT_UNIT));
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    if ((size_t)n != sizeof expected + slot->size)
        return -EBADMSG;
    int r = digest(service, key, bytes_of(data, slot->size), actual);
    if (r < 0)
        return r;
    return memcmp(expected, actual, sizeof actual) == 0 ? 0 : -EBADMSG;
}

int segment_append(struct segment_writer *w, const struct segment_service *service,
                   const struct segment_key *key, struct bytes content, uint64_t size_max,
                   struct segment_slot *ret_slot, bool *ret_full)
{
    assert(content.len <= SEGMENT_CONTENT_MAX);
    struct segment_slot slot = {
        .hash = key->hash,
        .unit = (uint32_t)(w->end / SEGMENT_UNIT),
        .size = content.len & 0xffffff,
        .kind = key->kind & 0xff,
    };
    *ret_full = w->count == SEGMENT_SLOTS_MAX || segment_slot_end(&slot) > size_max ||
                !segment_is_there(w->fd);
    if (*ret_full)
        return -ENOSPC;
    uint8_t head[SEGMENT_DIGEST_SIZE];
    int r = digest(service, key, content, head);
    /* Digest and content in one call, as a rule. */
    const struct iovec parts[] = {{head, sizeof head},
                                  {(void *)(uintptr_t)content.data, content.len}};
    ssize_t n = 0;
    if (r == 0) {
        n = pwritev(w->fd, parts, 2, (off_t)w->end);
        r = n < 0 && errno != EINTR ? -errno : 0;
    }
    size_t written = n > 0 ? (size_t)n : 0;
    if (r == 0 && written < sizeof head)
        r = segment_write_at(w->fd, head + written, sizeof head - written, w->end + written);
    size_t of_content = written > sizeof head ? written - sizeof head : 0;
    if (r == 0 && of_content < content.len)
        r = segment_write_at(w->fd, content.data + of_content, content.len - of_content,
                             w->end + sizeof head + of_content);
    if (r == 0)
        r = segment_write_at(w->fd, &slot, sizeof slot,
                             SEGMENT_HEADER_SIZE + (uint64_t)w->count * sizeof slot);
    if (r < 0) {
        /* Gives the space of a part back, which a full disk has use for. */
        (void)!ftruncate(w->fd, (off_t)w->end);
        return r;
    }
    w->count++;
    w->end = segment_slot_end(&slot);
    *ret_slot = slot;
    return 0;
}
