/* What a request header is answered: who may speak frames, and everything else that HTTP asks
 * of this service. Decisions only, no I/O. */
#pragma once

#include "stream/http.h"
#include "server/server.h"

/* Who asks, as far as the transport knows. */
struct upgrade_caller {
    bool local;       /* unix socket */
    bool credentials; /* its peer credentials are acceptable */
    bool certificate; /* it proved a certificate of the client CA */
    uid_t uid;        /* local */
};

/* What tells its credentials from others', and tells nothing else. ssl: NULL without TLS. */
void upgrade_credential(const struct upgrade_caller *caller, const struct http_request *request,
                        const SSL *ssl, uint8_t ret[32]);

enum { UPGRADE_ANSWERED = 0, UPGRADE_ACCEPTED = 1 };

/* UPGRADE_ACCEPTED: let frames follow. UPGRADE_ANSWERED: *ret_text is the answer, after which
 * the connection ends; *ret_refusal is set when the caller was refused, for the log. -ENOMEM.
 *
 * A unix peer must be root or of the service's own user. On other listeners everything that
 * is configured is asked for: with a token file a token, with a client CA a certificate of
 * it, with both both. */
int upgrade_answer(struct server *s, const struct upgrade_caller *caller,
                   const struct http_request *request, struct buffer *ret_text,
                   struct failure *ret_refusal);
