/* Tokens that the service issues itself, for one workspace each, to whoever has a line of the
 * access file: what a client hands on to programs that are to reach that workspace and nothing
 * else. None is kept: a token is
 *
 *   "berth_ws." base64url(u8 version, u8 length, the line's ID, HMAC-SHA256, u32 slot, thread ID)
 *
 * where the HMAC is of the line (but for its note), the slot and the thread ID, by a key that the
 * root has alone. So it ends with its line, changed or gone, and with its workspace: another that
 * has the same ID later has another slot (permit.h). It says nothing that its holder must not know.
 *
 * Whoever has one can sign one request for a file, and hand on the URL. The signature is made from
 * the token, and says neither whose it is nor for which workspace:
 *
 *   "v1_" base64(SHA-256("PATH:read|write:USER:TOKEN" [":" expiry in seconds since 1970])),
 * unpadded
 *
 * Of these PATH alone may have colons, so that this can be taken apart in one way only, from its
 * end. With a colon in USER a signature for reading one file would be one for writing another.
 */
#pragma once

#include "access/grant.h"
#include "base/buffer.h"

#define ISSUED_KEY_SIZE 32
#define ISSUED_PREFIX "berth_ws."
#define ISSUED_BINARY_MAX (2 + GRANT_ID_MAX + 32 + 4 + WIRE_THREAD_ID_MAX)
#define ISSUED_TEXT_MAX (sizeof ISSUED_PREFIX + (ISSUED_BINARY_MAX + 2) / 3 * 4)

struct issued_key {
    uint8_t bytes[ISSUED_KEY_SIZE];
};

/* Reads the key from this file of the directory, or makes it there, with mode 0600, first. A
 * negative errno; -EINVAL: it is no such file. */
int issued_key_load(int directory, const char *name, struct issued_key *ret);

/* A line as tokens are made from it: what it says, but for its note. To be freed; NULL: no memory.
 */
char *issued_line(const struct grant *line);

/* The token of a line, whose ID is this, for the workspace of that slot. ret ends with NUL.
 * -ENOMEM, -EINVAL: the thread ID's length. */
int issued_make(const struct issued_key *key, const char *id, const char *line,
                struct bytes thread_id, uint32_t slot, char ret[ISSUED_TEXT_MAX]);

/* What a token says of itself, which is worth nothing before issued_make has made the same. */
struct issued_claim {
    char id[GRANT_ID_MAX + 1];
    uint32_t slot;
    uint8_t thread_id[WIRE_THREAD_ID_MAX];
    size_t thread_id_len;
};

/* False: it is no such token. */
bool issued_parse(struct bytes token, struct issued_claim *ret);

/* Whether the token, which claims this, is the one that key and line make; in constant time. */
bool issued_verify(const struct issued_key *key, const struct grant *line,
                   const struct issued_claim *claim, struct bytes token);

/* --- signatures ---------------------------------------------------------------------------------
 */

#define SIGNATURE_SIZE 32
#define SIGNED_PATH_MAX 4096
#define SIGNED_USER_MAX 256
#define SIGNED_PREFIX "berth_signed."

struct signed_request {
    bool writes;
    uint64_t expires; /* 0: never */
    size_t path_len, user_len;
    uint8_t signature[SIGNATURE_SIZE];
    uint8_t path[SIGNED_PATH_MAX]; /* as it was signed, of whatever form */
    uint8_t user[SIGNED_USER_MAX];
};

/* As a bearer token, which the gateway alone may come with (access.h):
 *
 *   "berth_signed." "read" | "write" "." SIGNATURE "." EXPIRY "." PATH "." USER
 *
 * with signature, path and user as base64url, and 0 for no expiry. Appends it. -ENOMEM. */
int signed_request_format(const struct signed_request *request, struct buffer *b);

/* False: it is no such token, or its user has a colon. */
bool signed_request_parse(struct bytes token, struct signed_request *ret);

/* To be compared with many tokens, each of which costs no more for a long path. NULL: no memory. */
struct signature *signature_new(const struct signed_request *request);
void signature_free(struct signature *s); /* NULL is allowed */
DEFINE_CLEANUP(struct signature *, signature_free);
#define _cleanup_signature_ _cleanup_(signature_free_pointer)

/* Whether this token has made it; in constant time. */
bool signature_is_of(struct signature *s, const char *token);
