/* What a request header is answered that asks for frames: who may speak them. Decisions only, no
 * I/O. */
#pragma once

#include "stream/http.h"
#include "server/server.h"

/* What tells its credentials from others', and tells nothing else. ssl: NULL without TLS. */
void upgrade_credential(const struct access_caller *caller, const SSL *ssl, uint8_t ret[32]);

/* Whether the service itself answers this; all else is the gateway's. */
bool upgrade_is_for_service(const struct http_request *request);

enum { UPGRADE_ANSWERED = 0, UPGRADE_ACCEPTED = 1 };

/* UPGRADE_ACCEPTED: let frames follow, with *ret_grant (access_decide), the caller's.
 * UPGRADE_ANSWERED: *ret_text is the answer, after which the connection ends; *ret_refusal is set
 * when the caller was refused, for the log. -ENOMEM. */
int upgrade_answer(struct server *s, const struct access_caller *caller,
                   const struct http_request *request, struct grant **ret_grant,
                   struct buffer *ret_text, struct failure *ret_refusal);

/* What whoever was accepted is answered, if there is no place all the same. As upgrade_answer. */
int upgrade_refuse_busy(const char *why, struct buffer *ret_text, struct failure *ret_refusal);
