/* Who gets in, and with which grant. The access file is looked at again at each decision and
 * whenever it is asked for, so a change needs no restart. While it cannot be read, or is wrong,
 * nobody gets in by it; who might is told so (503), and no token counts as a wrong one. */
#pragma once

#include <jansson.h>

#include "access/failures.h"
#include "access/issued.h"

struct access;

struct access_options {
    const char *file; /* the access file, or NULL */
    /* Opens it, now and each time that it has changed: a descriptor or a negative errno. NULL: by
     * its name. */
    int (*open)(void *context);
    void *context;
    bool certificates; /* clients that come by TLS must prove a certificate of the client CA */
};

/* Tokens of this key are issued and taken from now on. workspaces calls `each` with the
 * thread IDs and slots that there are, until it returns false. */
struct access_issuing {
    struct issued_key key;
    void (*workspaces)(void *context,
                       bool (*each)(void *each_context, struct bytes thread_id, uint32_t slot),
                       void *each_context);
    void *context;
};
void access_issue_tokens(struct access *a, const struct access_issuing *issuing);

/* -ENOENT, -EACCES, -EINVAL: of the file. -ENOMEM. */
int access_open(const struct access_options *options, struct access **ret,
                struct failure *ret_failure);
void access_free(struct access *a); /* NULL is allowed */

/* Who asks, as far as the transport knows. */
struct access_caller {
    bool local; /* a unix socket; then uid is the peer's */
    uid_t uid;
    uint64_t address;         /* not local: failures_address */
    bool certificate;         /* it proved one of the client CA, */
    const char *const *names; /* which has these, as in grant.certificate; ends with NULL */
    struct bytes authorization;
    bool loopback; /* plain http, from this machine */
    bool gateway;  /* what is ours read its request, and speaks for it */
};

struct access_decision {
    struct grant *grant; /* NULL: refused; else the caller's reference */
    int status;          /* 401, 403, 429 or 503 */
    unsigned retry_s;    /* 429, 503 */
    char text[192];      /* why */
};

/* Unix sockets: the service's own user and root may do everything; others what a line with their
 * "user" says. Else, if certificates are asked for, one must have been proved; and with an access
 * file a token must be of a line whose "certificate", if it has one, is among the names, or
 * without a token a line must have one of the names and no "token". Without an access file whoever
 * has proved a certificate may do everything.
 *
 * Plain http of this machine without a token: what a line with "loopback" says.
 *
 * Tokens are 256 random bits, and kept as digests, which are compared in constant time. One that
 * was issued (issued.h) is good for what its line is, in its workspace, but never for ADMIN, and
 * needs the line's certificate if that has one. From the gateway alone is a signed request taken,
 * whose grant is for READ, or READ and WRITE: that it is for one file the gateway sees to.
 *
 * From an address that too many wrong ones have come from (failures.h; signatures, which pages can
 * make browsers send, count apart) further wrong ones are told so (429), right ones are let in; of
 * signatures those whose token was shown or issued of late. */
void access_decide(struct access *a, const struct access_caller *caller,
                   struct access_decision *ret);

/* A token for this workspace (slot: its own), of the line that grant is of, into ret; the same one
 * each time.
 * -EACCES: the grant is of no line that tokens are made from, or does not cover it. -EOPNOTSUPP:
 * none are issued. -ENOMEM. */
int access_issue(struct access *a, struct grant *grant, struct bytes thread_id, uint32_t slot,
                 char ret[ISSUED_TEXT_MAX]);

/* Looks at the file again. True: grants may have changed. */
bool access_refresh(struct access *a);

/* Whether a connection that got this grant keeps it: as long as its line is as it was and has not
 * expired. While the file cannot be read or is wrong, it does. */
bool access_stands(const struct access *a, const struct grant *grant);

/* Adds "access": {"file", "grants", "error"} to object. -ENOMEM. */
int access_status(const struct access *a, json_t *object);
