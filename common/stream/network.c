/* Streams over the network, by libcurl. A program that makes none has without_network.c instead,
 * and starts without libcurl, OpenSSL and the thirty libraries behind them. */
#include "stream/network.h"

#include <errno.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void curl_init(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* --- use ------------------------------------------------------------------------------ */

static int error_of(struct stream *s, CURLcode code)
{
    if (code == CURLE_AGAIN)
        return -EAGAIN;
    long number = 0;
    (void)curl_easy_getinfo(network_of(s)->curl, CURLINFO_OS_ERRNO, &number);
    int error = code == CURLE_OUT_OF_MEMORY ? -ENOMEM : number > 0 ? -(int)number : -ECONNRESET;
    return error == -EAGAIN ? -ECONNRESET : error;
}

static ssize_t network_read(struct stream *s, void *buffer, size_t len)
{
    size_t n = 0;
    CURLcode code = curl_easy_recv(network_of(s)->curl, buffer, len, &n);
    return code == CURLE_OK ? (ssize_t)n : error_of(s, code);
}

static ssize_t network_write(struct stream *s, const void *data, size_t len)
{
    struct network *network = network_of(s);
    const void *from = data;
    size_t count = len;
    if (s->parts.kind == STREAM_HTTPS) {
        /* OpenSSL wants a record that it could not send to be offered again at the same
         * address, but the caller's output moves: such a record is kept here. */
        if (!network->retry_len) {
            count = len < TLS_RECORD_MAX ? len : TLS_RECORD_MAX;
            if (!network->retry) {
                network->retry = malloc(TLS_RECORD_MAX);
                if (!network->retry)
                    return -ENOMEM;
            }
            memcpy(network->retry, data, count);
            network->retry_len = count;
        }
        from = network->retry;
        count = network->retry_len;
    }
    size_t n = 0;
    CURLcode code = curl_easy_send(network->curl, from, count, &n);
    if (code != CURLE_OK)
        return error_of(s, code);
    network->retry_len = 0;
    return n ? (ssize_t)n : -EAGAIN;
}

static void network_opened(struct stream *s)
{
    (void)curl_easy_setopt(network_of(s)->curl, CURLOPT_VERBOSE, 0L);
}

static void network_close(struct stream *s)
{
    struct network *network = network_of(s);
    if (network->curl)
        curl_easy_cleanup(network->curl); /* closes its socket */
    free(network->retry);
    free(network);
    s->network = NULL;
}

static const struct stream_carrier network_carrier = {
    .read = network_read,
    .write = network_write,
    .opened = network_opened,
    .explain_end = network_explain_end,
    .close = network_close,
};

/* --- opening -------------------------------------------------------------------------- */

/* curl's own sockets would be inherited by commands that we or others start: an exec stream's
 * command would hold our end too, and never see the end of file. */
static curl_socket_t open_socket(void *context, curlsocktype purpose, struct curl_sockaddr *a)
{
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

/* Else OpenSSL asks the kernel for each record twice: for its header, and for the rest. It may then
 * hold records that it has not decrypted: whoever reads does so until there is nothing. */
static CURLcode read_ahead(CURL *curl, void *context, void *userdata)
{
    SSL_CTX_set_read_ahead((SSL_CTX *)context, 1);
    return CURLE_OK;
}

/* libcurl can be built for other libraries, whose context would be something else. */
static bool curl_has_openssl(void)
{
    const char *name = curl_version_info(CURLVERSION_NOW)->ssl_version;
    return name && strncmp(name, "OpenSSL/", strlen("OpenSSL/")) == 0;
}

/* The error buffer keeps the first text, which is about a socket that the peer has reset, while
 * the reason is in an alert that is read later. */
static int note_alert(CURL *curl, curl_infotype type, char *data, size_t size, void *context)
{
    struct network *n = context;
    static const char word[] = "alert";
    if (type != CURLINFO_TEXT || !memmem(data, size, word, strlen(word)) ||
        memmem(data, size, "(OUT)", 5))
        return 0;
    size_t used = 0;
    for (size_t i = 0; i < size && used + 1 < sizeof n->alert; i++)
        if (data[i] != ',') /* "TLS alert, unknown CA" and "alert unknown ca" alike */
            n->alert[used++] = data[i];
    n->alert[used] = '\0';
    return 0;
}

static int set_options(struct stream *s, const struct stream_options *o, struct failure *f)
{
    struct network *n = network_of(s);
    CURL *c = n->curl;
    bool ok = true;
    /* What stream_url_parse has read, whatever libcurl would have read in its place. */
    char url[STREAM_HOST_MAX + 32];
    (void)snprintf(url, sizeof url, "%s://%s:%u/", s->parts.kind == STREAM_HTTPS ? "https" : "http",
                   s->parts.host, s->parts.port);
#define SET(option, value) ok = ok && curl_easy_setopt(c, option, value) == CURLE_OK
    SET(CURLOPT_ERRORBUFFER, n->text);
    SET(CURLOPT_DEBUGFUNCTION, note_alert);
    SET(CURLOPT_DEBUGDATA, n);
    SET(CURLOPT_VERBOSE, 1L); /* until the set-up is done; curl's texts go to note_alert alone */
    SET(CURLOPT_URL, url);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_CONNECT_ONLY, 1L);
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1); /* no h2 by ALPN: it has no Upgrade */
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)s->timeout_ms);
    SET(CURLOPT_TIMEOUT_MS, (long)s->timeout_ms);
    if (s->parts.kind == STREAM_HTTP) {
        SET(CURLOPT_PROXY, "");
    } else {
        SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_3);
        SET(CURLOPT_TCP_KEEPALIVE, 1L);
        if (curl_has_openssl())
            SET(CURLOPT_SSL_CTX_FUNCTION, read_ahead);
        /* An encrypted key is an error, not a question on the terminal of a daemon. */
        SET(CURLOPT_KEYPASSWD, "");
        if (o->ca_file)
            SET(CURLOPT_CAINFO, o->ca_file);
        if (o->ca_file)
            SET(CURLOPT_CAPATH, NULL); /* ours instead of the system's, not besides */
        if (o->cert_file)
            SET(CURLOPT_SSLCERT, o->cert_file);
        if (o->key_file)
            SET(CURLOPT_SSLKEY, o->key_file);
    }
#undef SET
    return ok ? 0
              : failure_set(f, -ENOMEM, "%s: libcurl refuses an option or is out of memory",
                            s->url);
}

int stream_open_network(struct stream *s, const struct stream_options *o, struct failure *f)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, curl_init);
    s->network = calloc(1, sizeof(struct network));
    if (!s->network)
        return stream_failure_memory(s, f);
    s->carrier = &network_carrier;
    struct network *network = network_of(s);
    network->curl = curl_easy_init();
    if (!network->curl)
        return stream_failure_memory(s, f);
    int r = set_options(s, o, f);
    if (r < 0)
        return r;
    CURLcode code = curl_easy_perform(network->curl);
    if (code != CURLE_OK)
        return network_failure(s, code, f);
    curl_socket_t fd = CURL_SOCKET_BAD;
    code = curl_easy_getinfo(network->curl, CURLINFO_ACTIVESOCKET, &fd);
    if (code != CURLE_OK || fd == CURL_SOCKET_BAD)
        return network_failure(s, CURLE_COULDNT_CONNECT, f);
    s->fd = fd;
    return 0;
}
