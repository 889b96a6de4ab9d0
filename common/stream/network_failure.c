/* The texts of what goes wrong with connections of libcurl's. Its own texts and OpenSSL's are
 * looked at, where no code tells two causes apart, but not shown. */
#include "stream/network.h"

#include <errno.h>
#include <openssl/x509_vfy.h>
#include <string.h>

static bool curl_said(const struct stream *s, const char *words)
{
    const struct network *n = network_of(s);
    return strcasestr(n->text, words) || strcasestr(n->alert, words);
}

/* --- certificates ---------------------------------------------------------------------- */

static int failure_certificate(struct stream *s, struct failure *f)
{
    long result = X509_V_OK;
    (void)curl_easy_getinfo(network_of(s)->curl, CURLINFO_SSL_VERIFYRESULT, &result);
    switch (result) {
    case X509_V_OK:
    case X509_V_ERR_UNSPECIFIED: /* what curl leaves there when the chain is good */
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return failure_set(f, -EBADE,
                           "%s: the service's certificate is not made out for %s. Use a name that "
                           "the certificate lists, or have one made with the subject alternative "
                           "name %s",
                           s->url, s->parts.host, s->parts.host);
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return failure_set(f, -EBADE,
                           "%s: the service's certificate has expired. Have it renewed at the "
                           "service (and check this machine's clock)",
                           s->url);
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return failure_set(f, -EBADE,
                           "%s: the service's certificate is not valid yet. Check this machine's "
                           "clock and the certificate's dates",
                           s->url);
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        return failure_set(
            f, -EBADE,
            "%s: the service's certificate is signed by a CA that %s. Name the "
            "service's CA certificate with --ca-file",
            s->url, s->has_ca ? "is not in the CA file given" : "this machine does not trust");
    case X509_V_ERR_CERT_REVOKED:
        return failure_set(f, -EBADE,
                           "%s: the service's certificate was revoked. Have a new one installed at "
                           "the service",
                           s->url);
    default:
        return failure_set(
            f, -EBADE,
            "%s: the service's certificate is not acceptable: %s. Have it replaced at "
            "the service",
            s->url, X509_verify_cert_error_string(result));
    }
}

/* What the peer's TLS alert says about us, or 0 if there was none of these. Such alerts come
 * during the handshake or, in TLS 1.3, when its end is already behind us. */
static int failure_alert(struct stream *s, struct failure *f)
{
    if (curl_said(s, "certificate required") ||
        (!s->has_client_cert && curl_said(s, "alert bad certificate")))
        return failure_set(f, -EACCES,
                           "%s: the service requires a client certificate%s. Name one with "
                           "--cert-file and --key-file",
                           s->url, s->has_client_cert ? " other than the one given" : "");
    if (curl_said(s, "alert unknown ca"))
        return failure_set(f, -EACCES,
                           "%s: the service does not know the CA of the client certificate. Name a "
                           "certificate that its client CA has signed with --cert-file",
                           s->url);
    if (curl_said(s, "alert certificate expired"))
        return failure_set(f, -EACCES,
                           "%s: the service says that the client certificate has expired. Renew it "
                           "and name it with --cert-file",
                           s->url);
    if (curl_said(s, "alert bad certificate") || curl_said(s, "alert certificate") ||
        curl_said(s, "alert access denied") || curl_said(s, "alert unsupported certificate") ||
        curl_said(s, "alert decrypt error"))
        return failure_set(f, -EACCES,
                           "%s: the service does not accept the client certificate. Name one that "
                           "its client CA has signed with --cert-file",
                           s->url);
    return 0;
}

static int failure_handshake(struct stream *s, struct failure *f)
{
    int r = failure_alert(s, f);
    if (r < 0)
        return r;
    if (curl_said(s, "wrong version number") || curl_said(s, "packet length too long") ||
        curl_said(s, "http request") || curl_said(s, "record layer failure"))
        return failure_set(f, -EPROTO,
                           "%s: this port does not speak TLS. If it is a plain HTTP port of this "
                           "machine write http://; otherwise check the port",
                           s->url);
    if (curl_said(s, "alert protocol version") || curl_said(s, "unsupported protocol"))
        return failure_set(f, -EPROTO,
                           "%s: the server does not speak TLS 1.3, the least that Berth accepts. "
                           "Check the port, or what stands in front of the service",
                           s->url);
    if (curl_said(s, "alert handshake failure") || curl_said(s, "alert insufficient security"))
        return failure_set(f, -EPROTO,
                           "%s: the server refuses to agree on TLS parameters. Check the port, or "
                           "what stands in front of the service",
                           s->url);
    if (curl_said(s, "alert unrecognized name"))
        return failure_set(f, -EBADE,
                           "%s: the server has no certificate for %s. Use a name that it knows",
                           s->url, s->parts.host);
    if (curl_said(s, "alert no application protocol"))
        return failure_set(f, -EPROTO,
                           "%s: the server does not speak HTTP/1.1. Check the port, or what stands "
                           "in front of the service",
                           s->url);
    return failure_set(f, -EPROTO,
                       "%s: the server ended the connection during the TLS handshake. Check that "
                       "the port is a TLS port of a Berth service",
                       s->url);
}

/* libcurl has no code for it, but names whom it tried. */
static bool proxy_refused(const struct stream *s)
{
    char target[STREAM_HOST_MAX + 32];
    const char *host = s->parts.host;
    int len = (int)strlen(host);
    if (host[0] == '[') { /* curl's text has no brackets */
        host++;
        len -= 2;
    }
    (void)snprintf(target, sizeof target, "Failed to connect to %.*s port %u ", len, host,
                   s->parts.port);
    return s->parts.kind == STREAM_HTTPS && curl_said(s, "Failed to connect to ") &&
           !curl_said(s, target);
}

static int failure_proxy(struct stream *s, struct failure *f)
{
    long status = 0;
    (void)curl_easy_getinfo(network_of(s)->curl, CURLINFO_HTTP_CONNECTCODE, &status);
    if (status == 407)
        return failure_set(f, -EACCES,
                           "%s: the proxy requires authentication. Put user and password into the "
                           "variable https_proxy, or the host into no_proxy",
                           s->url);
    if (status)
        return failure_set(f, -ECONNREFUSED,
                           "%s: the proxy named by the environment refused to connect (status "
                           "%ld). Check https_proxy, or put the host into no_proxy",
                           s->url, status);
    return failure_set(f, -ECONNREFUSED,
                       "%s: the proxy named by the environment cannot be used. Check https_proxy, "
                       "or put the host into no_proxy",
                       s->url);
}

static int failure_refused(struct stream *s, struct failure *f)
{
    if (proxy_refused(s))
        return failure_proxy(s, f);
    long number = 0;
    (void)curl_easy_getinfo(network_of(s)->curl, CURLINFO_OS_ERRNO, &number);
    int error = (int)number;
    if (error == ECONNREFUSED)
        return failure_set(f, -ECONNREFUSED,
                           "%s: connection refused: nobody listens on port %u. Check the host and "
                           "port, and that the service runs",
                           s->url, s->parts.port);
    if (error == ENETUNREACH || error == EHOSTUNREACH || error == EADDRNOTAVAIL)
        return failure_set(f, -error,
                           "%s: the host cannot be reached (%s). Check the network and the address",
                           s->url, strerror(error));
    if (error == ETIMEDOUT)
        return failure_set(f, -ETIMEDOUT,
                           "%s: the host did not answer. Check the host and port, and for a "
                           "firewall between",
                           s->url);
    return failure_set(f, error > 0 ? -error : -ECONNREFUSED,
                       "%s: cannot connect%s%s. Check the host and port, and that the service runs",
                       s->url, error > 0 ? ": " : "", error > 0 ? strerror(error) : "");
}

static int failure_local_certificate(struct stream *s, struct failure *f)
{
    if (!s->has_client_key)
        return failure_set(f, -EINVAL,
                           "%s: the client certificate cannot be used: its file has no key, and "
                           "none was given. Name the key's file with --key-file",
                           s->url);
    return failure_set(f, -EINVAL,
                       "%s: the client certificate or its key cannot be used (PEM expected, the "
                       "key unencrypted and of this certificate). Check --cert-file and --key-file",
                       s->url);
}

int network_failure(struct stream *s, CURLcode code, struct failure *f)
{
    long proxy_status = 0;
    (void)curl_easy_getinfo(network_of(s)->curl, CURLINFO_HTTP_CONNECTCODE, &proxy_status);
    if (proxy_status >= 300)
        return failure_proxy(s, f);
    switch ((int)code) {
    case CURLE_OUT_OF_MEMORY:
        return stream_failure_memory(s, f);
    case CURLE_COULDNT_RESOLVE_HOST:
        return failure_set(f, -ECONNREFUSED,
                           "%s: the name %s does not resolve to an address. Check its spelling and "
                           "this machine's DNS",
                           s->url, s->parts.host);
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_PROXY:
        return failure_proxy(s, f);
    case CURLE_OPERATION_TIMEDOUT:
        return failure_set(f, -ETIMEDOUT,
                           "%s: no connection within %.3g s. Check the host and port, and for a "
                           "firewall between; a longer time-out can be set",
                           s->url, s->timeout_ms / 1000.0);
    case CURLE_PEER_FAILED_VERIFICATION:
        return failure_certificate(s, f);
    case CURLE_SSL_CACERT_BADFILE:
        return failure_set(f, -EINVAL,
                           "%s: the CA file holds no certificate that can be read (PEM expected). "
                           "Check --ca-file",
                           s->url);
    case CURLE_SSL_CERTPROBLEM:
        return failure_local_certificate(s, f);
    case CURLE_SSL_CONNECT_ERROR:
        return failure_handshake(s, f);
    case CURLE_COULDNT_CONNECT:
        return failure_refused(s, f);
    default:
        if (s->parts.kind == STREAM_HTTPS && (code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR))
            return failure_handshake(s, f);
        return failure_set(f, -ECONNREFUSED, "%s: cannot connect: %s. Check the URL", s->url,
                           curl_easy_strerror(code));
    }
}

int network_explain_end(struct stream *s, int error, bool answered, struct failure *f)
{
    if (s->parts.kind != STREAM_HTTPS)
        return 0;
    int r = failure_alert(s, f);
    if (r == 0 && error < 0 && !s->has_client_cert && !answered)
        return failure_set(f, -EPROTO,
                           "%s: the server ended the connection without an answer. Check that it "
                           "is a Berth service, and whether it wants a client certificate "
                           "(--cert-file)",
                           s->url);
    return r;
}
