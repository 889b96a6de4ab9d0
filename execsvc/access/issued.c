#include "access/issued.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/cleanup.h"

#define VERSION 1
#define MAC_SIZE 32
#define SLOT_SIZE 4
#define PREFIX_LEN (sizeof ISSUED_PREFIX - 1)

/* --- the key ---------------------------------------------------------------------------------- */

static int read_key(int fd, struct issued_key *ret)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size != ISSUED_KEY_SIZE || st.st_uid != geteuid() ||
        (st.st_mode & 077) != 0)
        return -EINVAL;
    ssize_t n = pread(fd, ret->bytes, sizeof ret->bytes, 0);
    return n < 0 ? -errno : n == (ssize_t)sizeof ret->bytes ? 0 : -EINVAL;
}

/* Whole or not at all, whenever it ends. */
static int make_key(int directory, const char *name)
{
    uint8_t bytes[ISSUED_KEY_SIZE];
    char draft[80];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return -EIO;
    (void)snprintf(draft, sizeof draft, "%s.new", name);
    (void)unlinkat(directory, draft, 0);
    _cleanup_close_ int fd =
        openat(directory, draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    ssize_t n = write(fd, bytes, sizeof bytes);
    int r = n < 0 ? -errno : n != (ssize_t)sizeof bytes ? -ENOSPC : 0;
    OPENSSL_cleanse(bytes, sizeof bytes);
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    if (r == 0 && renameat(directory, draft, directory, name) < 0)
        r = -errno;
    if (r < 0)
        (void)unlinkat(directory, draft, 0);
    return r;
}

int issued_key_load(int directory, const char *name, struct issued_key *ret)
{
    for (;;) {
        _cleanup_close_ int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            return read_key(fd, ret);
        if (errno != ENOENT)
            return -errno;
        int r = make_key(directory, name);
        if (r < 0)
            return r;
    }
}

/* --- tokens ----------------------------------------------------------------------------------- */

char *issued_line(const struct grant *line)
{
    struct grant plain = *line;
    char *text;
    plain.note = NULL;
    return grant_format(&plain, &text) < 0 ? NULL : text;
}

/* place: the slot and the thread ID, as they are in the token. */
static int compute_mac(const struct issued_key *key, const char *line, struct bytes place,
                       uint8_t ret[MAC_SIZE])
{
    static const char purpose[] = "berth token of a workspace, 1";
    _cleanup_buffer_ struct buffer all = {0};
    unsigned size = MAC_SIZE;
    /* A line has no NUL, so this can be taken apart in one way only. */
    int r = buffer_append(&all, purpose, sizeof purpose);
    if (r == 0)
        r = buffer_append(&all, line, strlen(line) + 1);
    if (r == 0)
        r = buffer_append(&all, place.data, place.len);
    if (r == 0 && !HMAC(EVP_sha256(), key->bytes, sizeof key->bytes, all.data, all.len, ret, &size))
        r = -ENOMEM;
    return r;
}

int issued_make(const struct issued_key *key, const char *id, const char *line,
                struct bytes thread_id, uint32_t slot, char ret[ISSUED_TEXT_MAX])
{
    uint8_t binary[ISSUED_BINARY_MAX];
    size_t id_len = strlen(id), n = 2;
    if (id_len == 0 || id_len > GRANT_ID_MAX || thread_id.len == 0 ||
        thread_id.len > WIRE_THREAD_ID_MAX)
        return -EINVAL;
    binary[0] = VERSION;
    binary[1] = (uint8_t)id_len;
    memcpy(binary + n, id, id_len);
    n += id_len;
    uint8_t *mac = binary + n, *place = mac + MAC_SIZE;
    for (unsigned i = 0; i < SLOT_SIZE; i++)
        place[i] = (uint8_t)(slot >> 8 * i);
    memcpy(place + SLOT_SIZE, thread_id.data, thread_id.len);
    int r = compute_mac(key, line, bytes_of(place, SLOT_SIZE + thread_id.len), mac);
    if (r < 0)
        return r;
    n += MAC_SIZE + SLOT_SIZE + thread_id.len;
    memcpy(ret, ISSUED_PREFIX, PREFIX_LEN);
    n = base64_write(BASE64_URL_UNPADDED, bytes_of(binary, n), ret + PREFIX_LEN);
    ret[PREFIX_LEN + n] = '\0';
    return 0;
}

bool issued_parse(struct bytes token, struct issued_claim *ret)
{
    uint8_t binary[ISSUED_TEXT_MAX];
    size_t n;
    if (token.len < PREFIX_LEN || token.len >= ISSUED_TEXT_MAX ||
        memcmp(token.data, ISSUED_PREFIX, PREFIX_LEN) != 0 ||
        base64_read(bytes_of(token.data + PREFIX_LEN, token.len - PREFIX_LEN), binary, &n) < 0 ||
        n < 2 || binary[0] != VERSION)
        return false;
    size_t id_len = binary[1], head = 2 + id_len + MAC_SIZE + SLOT_SIZE;
    if (id_len == 0 || id_len > GRANT_ID_MAX || n <= head || n - head > WIRE_THREAD_ID_MAX)
        return false;
    memcpy(ret->id, binary + 2, id_len);
    ret->id[id_len] = '\0';
    ret->slot = 0;
    for (unsigned i = 0; i < SLOT_SIZE; i++)
        ret->slot |= (uint32_t)binary[head - SLOT_SIZE + i] << 8 * i;
    ret->thread_id_len = n - head;
    memcpy(ret->thread_id, binary + head, ret->thread_id_len);
    return grant_id_is_valid(ret->id) && strlen(ret->id) == id_len;
}

bool issued_verify(const struct issued_key *key, const struct grant *line,
                   const struct issued_claim *claim, struct bytes token)
{
    char text[ISSUED_TEXT_MAX];
    _cleanup_free_ char *words = issued_line(line);
    bool same = words &&
                issued_make(key, line->id, words, bytes_of(claim->thread_id, claim->thread_id_len),
                            claim->slot, text) == 0 &&
                strlen(text) == token.len && CRYPTO_memcmp(text, token.data, token.len) == 0;
    OPENSSL_cleanse(text, sizeof text);
    return same;
}

/* --- signatures ------------------------------------------------------------------------------- */

/* The next word of text, up to a dot or the end. */
static struct bytes next_word(struct bytes *text)
{
    const uint8_t *dot = text->len ? memchr(text->data, '.', text->len) : NULL;
    struct bytes word = bytes_of(text->data, dot ? (size_t)(dot - text->data) : text->len);
    *text = dot ? bytes_of(dot + 1, text->len - word.len - 1) : (struct bytes){0};
    return word;
}

static bool read_number(struct bytes word, uint64_t *ret)
{
    uint64_t n = 0;
    for (size_t i = 0; i < word.len; i++) {
        if (word.data[i] < '0' || word.data[i] > '9' || i == 18)
            return false;
        n = 10 * n + (word.data[i] - '0');
    }
    *ret = n;
    return word.len > 0;
}

/* Up to max bytes; out has room for what base64_read may write of so many. */
static bool read_bytes(struct bytes word, uint8_t *out, size_t max, size_t *ret_len)
{
    return word.len <= base64_size(max) && base64_read(word, out, ret_len) == 0 && *ret_len <= max;
}

bool signed_request_parse(struct bytes token, struct signed_request *ret)
{
    uint8_t bytes[SIGNED_PATH_MAX + 4];
    size_t n;
    if (token.len < sizeof SIGNED_PREFIX - 1 ||
        memcmp(token.data, SIGNED_PREFIX, sizeof SIGNED_PREFIX - 1) != 0)
        return false;
    token = bytes_of(token.data + sizeof SIGNED_PREFIX - 1, token.len - sizeof SIGNED_PREFIX + 1);
    struct bytes operation = next_word(&token);
    ret->writes = bytes_equal(operation, bytes_of_string("write"));
    if (!ret->writes && !bytes_equal(operation, bytes_of_string("read")))
        return false;
    if (!read_bytes(next_word(&token), bytes, SIGNATURE_SIZE, &n) || n != SIGNATURE_SIZE)
        return false;
    memcpy(ret->signature, bytes, n);
    if (!read_number(next_word(&token), &ret->expires) ||
        !read_bytes(next_word(&token), bytes, SIGNED_PATH_MAX, &ret->path_len))
        return false;
    memcpy(ret->path, bytes, ret->path_len);
    if (!read_bytes(next_word(&token), bytes, SIGNED_USER_MAX, &ret->user_len) || token.len > 0 ||
        (ret->user_len > 0 && memchr(bytes, ':', ret->user_len)))
        return false;
    memcpy(ret->user, bytes, ret->user_len);
    return true;
}

int signed_request_format(const struct signed_request *request, struct buffer *b)
{
    int r = buffer_printf(b, "%s%s.", SIGNED_PREFIX, request->writes ? "write" : "read");
    if (r == 0)
        r = base64_append(b, BASE64_URL_UNPADDED, bytes_of(request->signature, SIGNATURE_SIZE));
    if (r == 0)
        r = buffer_printf(b, ".%llu.", (unsigned long long)request->expires);
    if (r == 0)
        r = base64_append(b, BASE64_URL_UNPADDED, bytes_of(request->path, request->path_len));
    if (r == 0)
        r = buffer_append(b, ".", 1);
    if (r == 0)
        r = base64_append(b, BASE64_URL_UNPADDED, bytes_of(request->user, request->user_len));
    return r;
}

struct signature {
    const struct signed_request *request;
    EVP_MD_CTX *begun, *context;
    char expiry[24];
};

struct signature *signature_new(const struct signed_request *request)
{
    const char *operation = request->writes ? ":write:" : ":read:";
    _cleanup_signature_ struct signature *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->request = request;
    s->begun = EVP_MD_CTX_new();
    s->context = EVP_MD_CTX_new();
    if (request->expires > 0)
        (void)snprintf(s->expiry, sizeof s->expiry, ":%llu", (unsigned long long)request->expires);
    if (!s->begun || !s->context || EVP_DigestInit_ex(s->begun, EVP_sha256(), NULL) != 1 ||
        EVP_DigestUpdate(s->begun, request->path, request->path_len) != 1 ||
        EVP_DigestUpdate(s->begun, operation, strlen(operation)) != 1 ||
        EVP_DigestUpdate(s->begun, request->user, request->user_len) != 1 ||
        EVP_DigestUpdate(s->begun, ":", 1) != 1)
        return NULL;
    return take_ptr(s);
}

void signature_free(struct signature *s)
{
    if (!s)
        return;
    EVP_MD_CTX_free(s->begun);
    EVP_MD_CTX_free(s->context);
    free(s);
}

bool signature_is_of(struct signature *s, const char *token)
{
    uint8_t digest[SIGNATURE_SIZE];
    return EVP_MD_CTX_copy_ex(s->context, s->begun) == 1 &&
           EVP_DigestUpdate(s->context, token, strlen(token)) == 1 &&
           EVP_DigestUpdate(s->context, s->expiry, strlen(s->expiry)) == 1 &&
           EVP_DigestFinal_ex(s->context, digest, NULL) == 1 &&
           CRYPTO_memcmp(digest, s->request->signature, sizeof digest) == 0;
}
