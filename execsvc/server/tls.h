/* The server side of TLS 1.3. */
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>

#include "base/cleanup.h"
#include "base/failure.h"

struct tls;

/* client_ca: PEM, or NULL: clients are not asked for certificates. A certificate that does not
 * lead to it fails the handshake; none at all is for the HTTP answer to refuse. Failures name
 * the file and OpenSSL's reason. */
int tls_new(const char *cert_file, const char *key_file, const char *client_ca, struct tls **ret,
            struct failure *ret_failure);
void tls_free(struct tls *t);

/* A connection's state, to be freed with SSL_free. NULL: no memory. */
SSL *tls_accept(struct tls *t);

/* The names of a certificate: first its subject, "subject:" and RFC 2253; then its alternative
 * names, as "DNS:…", "email:…" and "URI:…", but those with a NUL in them. list ends with NULL. */
struct tls_names {
    char **list;
    size_t count;
};

/* Did the peer prove a certificate of the client CA? Its names then; list NULL: no memory. */
bool tls_peer_names(const SSL *ssl, struct tls_names *ret);
void tls_names_release(struct tls_names *names);
#define _cleanup_tls_names_ _cleanup_(tls_names_release)

/* Empties the thread's OpenSSL error queue; its first entry's text, or NULL. */
const char *tls_error_text(char *out, size_t size);
