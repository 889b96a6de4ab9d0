#include "server/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509err.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

struct tls {
    SSL_CTX *context;
};

const char *tls_error_text(char *out, size_t size)
{
    unsigned long error = ERR_get_error();
    ERR_clear_error();
    if (error == 0)
        return NULL;
    const char *reason = ERR_reason_error_string(error);
    if (reason)
        (void)snprintf(out, size, "%s", reason);
    else
        ERR_error_string_n(error, out, size);
    return out;
}

static int tls_failure(struct failure *ret_failure, const char *what, const char *file)
{
    char reason[160];
    unsigned long first = ERR_peek_error();
    if (ERR_GET_LIB(first) == ERR_LIB_X509 && ERR_GET_REASON(first) == X509_R_KEY_VALUES_MISMATCH) {
        ERR_clear_error();
        return failure_set(ret_failure, -EINVAL, "the %s %s does not belong to the certificate",
                           what, file);
    }
    const char *text = tls_error_text(reason, sizeof reason);
    /* OpenSSL hides errno behind its own reasons: ask again for the usual ones. */
    if (access(file, R_OK) < 0)
        return failure_set(ret_failure, -errno, "cannot read the %s %s: %s", what, file,
                           strerror(errno));
    return failure_set(ret_failure, -EINVAL, "%s is not a usable %s in PEM form: %s", file, what,
                       text ? text : "unknown reason");
}

/* libcurl offers h2 as well; there is only one protocol here, and clients without ALPN are
 * as welcome. */
static int select_protocol(SSL *ssl, const unsigned char **out, unsigned char *outlen,
                           const unsigned char *in, unsigned inlen, void *context)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *selected;
    if (SSL_select_next_proto(&selected, outlen, ours, sizeof ours - 1, in, inlen) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = selected;
    return SSL_TLSEXT_ERR_OK;
}

static int set_client_ca(SSL_CTX *context, const char *client_ca, struct failure *ret_failure)
{
    if (SSL_CTX_load_verify_file(context, client_ca) != 1)
        return tls_failure(ret_failure, "client CA", client_ca);
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(client_ca);
    if (!names)
        return tls_failure(ret_failure, "client CA", client_ca);
    SSL_CTX_set_client_CA_list(context, names);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    return 0;
}

/* Its owner's group may be one of administrators; everybody is too many. */
static void warn_of_open_key(const char *key_file)
{
    struct stat st;
    if (stat(key_file, &st) == 0 && (st.st_mode & S_IRWXO))
        log_warning("the key %s is open to every user of this machine: chmod o= %s", key_file,
                    key_file);
}

int tls_new(const char *cert_file, const char *key_file, const char *client_ca, struct tls **ret,
            struct failure *ret_failure)
{
    struct tls *t = calloc(1, sizeof *t);
    if (!t)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    t->context = SSL_CTX_new(TLS_server_method());
    if (!t->context) {
        free(t);
        return failure_set(ret_failure, -ENOMEM, "OpenSSL cannot make a TLS context");
    }
    int r = 0;
    (void)SSL_CTX_set_min_proto_version(t->context, TLS1_3_VERSION);
    (void)SSL_CTX_set_max_proto_version(t->context, TLS1_3_VERSION);
    /* No finite-field groups: a peer that has proved nothing chooses among them, and one exchange
     * with the largest costs as much time as hundreds of these. */
    char groups[] = "X25519:P-256:P-384"; /* the macro drops const */
    (void)SSL_CTX_set1_groups_list(t->context, groups);
    /* No tickets: connections are long, and a resumed one would skip the certificate. */
    (void)SSL_CTX_set_num_tickets(t->context, 0);
    (void)SSL_CTX_set_session_cache_mode(t->context, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_options(t->context,
                              SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION |
                                  SSL_OP_IGNORE_UNEXPECTED_EOF); /* frames know their ends */
    /* An idle connection keeps no record buffers (34 KiB). */
    (void)SSL_CTX_set_mode(t->context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_select_cb(t->context, select_protocol, NULL);
    if (SSL_CTX_use_certificate_chain_file(t->context, cert_file) != 1)
        r = tls_failure(ret_failure, "certificate", cert_file);
    else if (SSL_CTX_use_PrivateKey_file(t->context, key_file, SSL_FILETYPE_PEM) != 1)
        r = tls_failure(ret_failure, "key", key_file);
    else if (client_ca)
        r = set_client_ca(t->context, client_ca, ret_failure);
    if (r == 0)
        warn_of_open_key(key_file);
    if (r < 0) {
        tls_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    SSL_CTX_free(t->context);
    free(t);
}

SSL *tls_accept(struct tls *t)
{
    SSL *ssl = SSL_new(t->context);
    if (ssl)
        SSL_set_accept_state(ssl);
    return ssl;
}

/* --- names ----------------------------------------------------------------------- */

static int add_name(struct tls_names *names, const char *kind, const void *data, size_t len)
{
    if (len == 0 || memchr(data, '\0', len))
        return 0;
    char **list = reallocarray(names->list, names->count + 2, sizeof *list);
    if (!list)
        return -ENOMEM;
    names->list = list;
    names->list[names->count + 1] = NULL;
    if (asprintf(&names->list[names->count], "%s:%.*s", kind, (int)len, (const char *)data) < 0) {
        names->list[names->count] = NULL;
        return -ENOMEM;
    }
    names->count++;
    return 0;
}

static int add_subject(struct tls_names *names, X509 *certificate)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *text = NULL;
    int r = -ENOMEM;
    if (bio &&
        X509_NAME_print_ex(bio, X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253) >= 0) {
        long len = BIO_get_mem_data(bio, &text);
        r = len > 0 ? add_name(names, "subject", text, (size_t)len) : 0;
    }
    BIO_free(bio);
    return r;
}

static int add_alternative(struct tls_names *names, const GENERAL_NAME *name)
{
    const char *kind = name->type == GEN_DNS     ? "DNS"
                       : name->type == GEN_EMAIL ? "email"
                       : name->type == GEN_URI   ? "URI"
                                                 : NULL;
    if (!kind)
        return 0;
    const ASN1_IA5STRING *text = name->d.ia5;
    return add_name(names, kind, ASN1_STRING_get0_data(text), (size_t)ASN1_STRING_length(text));
}

void tls_names_release(struct tls_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->list[i]);
    free(names->list);
    *names = (struct tls_names){0};
}

bool tls_peer_names(const SSL *ssl, struct tls_names *ret)
{
    X509 *certificate = SSL_get0_peer_certificate(ssl);
    if (!certificate || SSL_get_verify_result(ssl) != X509_V_OK)
        return false;
    GENERAL_NAMES *alternative = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    int r = add_subject(ret, certificate);
    for (int i = 0; r == 0 && i < sk_GENERAL_NAME_num(alternative); i++)
        r = add_alternative(ret, sk_GENERAL_NAME_value(alternative, i));
    GENERAL_NAMES_free(alternative);
    if (r < 0)
        tls_names_release(ret);
    return true;
}
