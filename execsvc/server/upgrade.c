#include "server/upgrade.h"

#include <openssl/evp.h>
#include <openssl/x509.h>
#include <sys/random.h>

#include "base/log.h"

#define AUTHENTICATE "WWW-Authenticate: Bearer realm=\"berth\"\r\n"
#define UPGRADE_FIELD "Upgrade: berth/1\r\n"

static int refuse(struct buffer *ret_text, struct failure *ret_refusal, int status,
                  const char *detail, const char *fields)
{
    (void)failure_set(ret_refusal, -EACCES, "answered %d: %s", status, detail);
    return http_answer_problem(ret_text, status, detail, fields);
}

/* 0: may pass; 1: answered; -ENOMEM. */
static int authenticate(struct server *s, const struct access_caller *caller,
                        struct grant **ret_grant, struct buffer *ret_text,
                        struct failure *ret_refusal)
{
    struct access_decision decision;
    char fields[64] = "";
    access_decide(s->access, caller, &decision);
    *ret_grant = decision.grant;
    if (decision.grant)
        return 0;
    s->counters.unauthorized++;
    /* RFC 9110 wants a challenge in every 401. */
    if (decision.status == 401)
        (void)snprintf(fields, sizeof fields, AUTHENTICATE);
    else if (decision.retry_s > 0)
        (void)snprintf(fields, sizeof fields, "Retry-After: %u\r\n", decision.retry_s);
    int r = refuse(ret_text, ret_refusal, decision.status, decision.text, fields);
    return r < 0 ? r : 1;
}

void upgrade_credential(const struct access_caller *caller, const SSL *ssl, uint8_t ret[32])
{
    _cleanup_buffer_ struct buffer all = {0};
    unsigned char *der = NULL;
    X509 *certificate = ssl ? SSL_get0_peer_certificate(ssl) : NULL;
    int der_len = certificate ? i2d_X509(certificate, &der) : 0;
    unsigned size = 32;
    bool ok = buffer_printf(&all, "%d %u %d ", caller->local, (unsigned)caller->uid,
                            der_len > 0 ? der_len : 0) == 0 &&
              (der_len <= 0 || buffer_append(&all, der, (size_t)der_len) == 0) &&
              buffer_append(&all, caller->authorization.data, caller->authorization.len) == 0 &&
              EVP_Digest(all.data, all.len, ret, &size, EVP_sha256(), NULL) == 1;
    OPENSSL_free(der);
    /* Such that it is nobody else's, and not this client's next time either. */
    if (!ok)
        (void)getrandom(ret, 32, 0);
    OPENSSL_cleanse(all.data, all.len);
}

int upgrade_refuse_busy(const char *why, struct buffer *ret_text, struct failure *ret_refusal)
{
    return refuse(ret_text, ret_refusal, 503, why, "Retry-After: 5\r\n");
}

static int answer_stream(struct server *s, const struct access_caller *caller,
                         const struct http_request *request, struct grant **ret_grant,
                         struct buffer *ret_text, struct failure *ret_refusal)
{
    if (strcmp(request->method, "GET") != 0)
        return refuse(ret_text, ret_refusal, 405, "only GET is answered here", "Allow: GET\r\n");
    _cleanup_grant_ struct grant *grant = NULL;
    int r = authenticate(s, caller, &grant, ret_text, ret_refusal);
    if (r != 0)
        return r < 0 ? r : UPGRADE_ANSWERED;
    if (!request->http_1_1 || request->body)
        return refuse(ret_text, ret_refusal, 400, "an HTTP/1.1 request without a body is needed",
                      "");
    if (!request->upgrade_berth)
        return refuse(ret_text, ret_refusal, 426,
                      request->upgrade ? "this service speaks berth/1 and no other protocol"
                                       : "this is a stream: ask for Upgrade: berth/1",
                      UPGRADE_FIELD);
    const char *busy = s->stopping                                 ? "the service is stopping"
                       : s->connection_count >= s->connections_max ? "too many connections"
                       : !audit_works(s->audit) ? "the service cannot write its audit log"
                                                : NULL;
    if (busy)
        return upgrade_refuse_busy(busy, ret_text, ret_refusal);
    *ret_grant = take_ptr(grant);
    return UPGRADE_ACCEPTED;
}

bool upgrade_is_for_service(const struct http_request *request)
{
    return strcmp(request->path, "/v1/stream") == 0;
}

int upgrade_answer(struct server *s, const struct access_caller *caller,
                   const struct http_request *request, struct grant **ret_grant,
                   struct buffer *ret_text, struct failure *ret_refusal)
{
    if (upgrade_is_for_service(request))
        return answer_stream(s, caller, request, ret_grant, ret_text, ret_refusal);
    return refuse(ret_text, ret_refusal, 404, "there is nothing here", "");
}
