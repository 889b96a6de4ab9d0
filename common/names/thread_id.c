#include "names/thread_id.h"

#include <errno.h>
#include <sha2.h>

#define HASH_SIZE 32
#define HASH_TEXT (2 * HASH_SIZE)
/* Of a shortened name, what comes before '~' and the hash. */
#define PREFIX_MAX (THREAD_NAME_MAX - 1 - HASH_TEXT)

static const char upper_digits[] = "0123456789ABCDEF";
static const char lower_digits[] = "0123456789abcdef";

/* True for a byte that stands for itself at this place of an ID. A leading dot does not: it
 * would hide the directory, or be "." or "..". Ranges are spelled out, since isalnum()
 * follows the locale. */
static bool plain(uint8_t c, size_t place)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || (c == '.' && place > 0);
}

/* Encodes as much of id as fits in room, by whole bytes; returns the length and *ret_taken. */
static size_t escape(struct bytes id, char *out, size_t room, size_t *ret_taken)
{
    size_t used = 0;
    size_t i = 0;
    for (; i < id.len; i++) {
        uint8_t c = id.data[i];
        bool as_is = plain(c, i);
        if (used + (as_is ? 1 : 3) > room)
            break;
        if (as_is) {
            out[used++] = (char)c;
        } else {
            out[used++] = '%';
            out[used++] = upper_digits[c >> 4];
            out[used++] = upper_digits[c & 15];
        }
    }
    *ret_taken = i;
    return used;
}

int thread_id_to_name(struct bytes id, char ret_name[THREAD_NAME_MAX + 1])
{
    if (id.len == 0 || id.len > THREAD_ID_MAX)
        return -EINVAL;
    char name[THREAD_NAME_MAX + 1];
    size_t taken;
    size_t len = escape(id, name, THREAD_NAME_MAX, &taken);
    if (taken < id.len) {
        uint8_t hash[HASH_SIZE];
        SHA2_CTX context;
        SHA256Init(&context);
        SHA256Update(&context, id.data, id.len);
        SHA256Final(hash, &context);
        len = escape(id, name, PREFIX_MAX, &taken);
        name[len++] = '~';
        for (size_t i = 0; i < HASH_SIZE; i++) {
            name[len++] = lower_digits[hash[i] >> 4];
            name[len++] = lower_digits[hash[i] & 15];
        }
    }
    memcpy(ret_name, name, len);
    ret_name[len] = '\0';
    return 0;
}

/* The value of one hexadecimal digit out of this alphabet, or -1. */
static int digit(const char *alphabet, uint8_t c)
{
    const char *found = c ? strchr(alphabet, c) : NULL;
    return found ? (int)(found - alphabet) : -1;
}

/* Undoes escape(); accepts only what escape() writes. The length, or -EINVAL. */
static int unescape(struct bytes name, uint8_t *out)
{
    size_t used = 0;
    for (size_t i = 0; i < name.len; used++) {
        uint8_t c = name.data[i];
        if (c != '%') {
            if (!plain(c, used))
                return -EINVAL;
            out[used] = c;
            i++;
            continue;
        }
        if (name.len - i < 3)
            return -EINVAL;
        int high = digit(upper_digits, name.data[i + 1]);
        int low = digit(upper_digits, name.data[i + 2]);
        if (high < 0 || low < 0)
            return -EINVAL;
        out[used] = (uint8_t)(high << 4 | low);
        if (plain(out[used], used))
            return -EINVAL;
        i += 3;
    }
    return (int)used;
}

/* True for the length of prefix that escape() leaves when it runs out of room: what did not
 * fit was at most an escape. */
static bool prefix_full(size_t len)
{
    return len <= PREFIX_MAX && len + 3 > PREFIX_MAX;
}

static bool is_hash(const uint8_t *text)
{
    for (size_t i = 0; i < HASH_TEXT; i++)
        if (digit(lower_digits, text[i]) < 0)
            return false;
    return true;
}

int thread_id_from_name(struct bytes name, uint8_t ret_id[THREAD_ID_MAX])
{
    if (name.len == 0 || name.len > THREAD_NAME_MAX)
        return -EINVAL;
    uint8_t id[THREAD_NAME_MAX];
    const uint8_t *tilde = memchr(name.data, '~', name.len);
    if (tilde) {
        size_t prefix = (size_t)(tilde - name.data);
        bool in_form = name.len - prefix - 1 == HASH_TEXT && prefix_full(prefix) &&
                       is_hash(tilde + 1) && unescape(bytes_of(name.data, prefix), id) >= 0;
        return in_form ? -ENODATA : -EINVAL;
    }
    int len = unescape(name, id);
    if (len < 0)
        return len;
    memcpy(ret_id, id, (size_t)len);
    return len;
}

bool thread_id_has_name(struct bytes id, struct bytes name)
{
    char own[THREAD_NAME_MAX + 1];
    return thread_id_to_name(id, own) == 0 && bytes_equal(bytes_of_string(own), name);
}
