/* What one client may do: who it is, by which credentials it is known, and which verbs it may use
 * on which workspaces. Immutable once made, so that any thread may read one; references are counted
 * on one thread. In the access file each is a line, one JSON object:
 *
 *   { "id": "laptop",                       the identity, in logs and for `berth token revoke`
 *     "token": "sha256:HEX",                the SHA-256 of a bearer token
 *     "certificate": "DNS:laptop.example",  a name of a client certificate: subject:… as RFC 2253
 *                                           writes it, DNS:…, email:… or URI:…
 *     "user": 1000,                         a user ID at a unix socket
 *     "loopback": true,                     whoever comes by plain http from this machine, and
 *                                           brings no token: any program of any user of it
 *     "workspaces": [ "chat-*" ],           thread IDs; * stands for any bytes, \ takes the meaning
 *                                           away from what follows it
 *     "verbs": [ "read", "write", "exec", "admin" ],
 *     "expires": "2027-01-31T12:00:00Z",    not named: never
 *     "note": "…" }                         for people
 *
 * At least one credential; of several, a client needs all. A user or loopback goes with no other.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/failure.h"
#include "wire/wire.h"

#define GRANT_ID_MAX 64
#define GRANT_TOKEN_DIGEST_SIZE 32

/* Stops a line from making each request of its client slow. */
#define GRANT_PATTERNS_MAX 64
#define GRANT_PATTERN_MAX 1024

#define GRANT_VERB(VERB) (1u << WIRE_VERB_##VERB)
#define GRANT_VERBS_ALL \
    (GRANT_VERB(READ) | GRANT_VERB(WRITE) | GRANT_VERB(EXEC) | GRANT_VERB(ADMIN))

struct grant {
    unsigned refs;
    char id[GRANT_ID_MAX + 1];
    bool has_token;
    uint8_t token[GRANT_TOKEN_DIGEST_SIZE];
    char *certificate; /* or NULL */
    bool has_user;
    uid_t user;
    bool loopback;
    bool everything; /* all workspaces */
    char **patterns; /* else */
    size_t pattern_count;
    unsigned verbs; /* GRANT_VERB(…) */
    time_t expires; /* 0: never */
    char *note;     /* or NULL */

    /* Of one that was made from a line, by a token that the service issued: the line, which it ends
     * with, and the one workspace of those of the line, with its slot. Else NULL, and 0. */
    struct grant *issuer;
    uint8_t *only;
    size_t only_len;
    uint32_t only_slot;
    bool signed_for; /* a signature was what was shown, not the token itself */
};

/* A line of the access file. -EINVAL with what is wrong, which never shows the line: it may be a
 * token. -ENOMEM. */
int grant_parse(struct bytes line, struct grant **ret, struct failure *ret_failure);

/* As a line without its end. -ENOMEM. */
int grant_format(const struct grant *grant, char **ret);

/* One for whoever may do everything; id is cut if it is too long. NULL: no memory. */
struct grant *grant_new_whole(const char *id);

/* One of a line for the workspace of this slot, with these verbs of it, until then (0: as long as
 * the line). It has the line's ID. NULL: no memory. */
struct grant *grant_new_issued(struct grant *line, struct bytes thread_id, uint32_t slot,
                               unsigned verbs, time_t expires);

struct grant *grant_ref(struct grant *grant);
void grant_unref(struct grant *grant); /* NULL is allowed */
DEFINE_CLEANUP(struct grant *, grant_unref);
#define _cleanup_grant_ _cleanup_(grant_unref_pointer)

/* Whether both say the same. */
bool grant_equal(const struct grant *a, const struct grant *b);

bool grant_covers(const struct grant *grant, struct bytes thread_id);
bool grant_is_over(const struct grant *grant, time_t now);

/* Bytes that match a pattern as "workspaces" has them. */
bool grant_pattern_matches(const char *pattern, struct bytes text);

/* "read,write" into *ret_verbs. -EINVAL. */
int grant_verbs_parse(const char *words, unsigned *ret_verbs, struct failure *ret_failure);

/* "read,write". */
const char *grant_verbs_text(unsigned verbs, char *out, size_t size);

/* "sha256" of a token, for "token". False: OpenSSL cannot. */
bool grant_token_digest(struct bytes token, uint8_t ret[GRANT_TOKEN_DIGEST_SIZE]);

/* [A-Za-z0-9._@-]{1,64} */
bool grant_id_is_valid(const char *id);
