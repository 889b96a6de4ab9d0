/* The server side of TLS 1.3. */
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>

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

/* Did the peer prove a certificate of the client CA? */
bool tls_peer_verified(const SSL *ssl);

/* Empties the thread's OpenSSL error queue; its first entry's text, or NULL. */
const char *tls_error_text(char *out, size_t size);
