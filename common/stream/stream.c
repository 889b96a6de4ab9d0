#include "stream/private.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

#define CONNECT_TIMEOUT_MS 10000
#define EXEC_TIMEOUT_MS 60000
#define BACKLOG_RETRY_MS 20
#define CORKED_MIN 0x10000

static void curl_init(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

int stream_time_left_ms(const struct stream *s)
{
    uint64_t now = clock_monotonic_ns();
    return now < s->deadline_ns ? (int)((s->deadline_ns - now) / NSEC_PER_MSEC) + 1 : 0;
}

int stream_wait(struct stream *s, short events)
{
    for (;;) {
        int left = stream_time_left_ms(s);
        if (left == 0)
            return -ETIMEDOUT;
        struct pollfd fds[2] = {{.fd = s->fd, .events = events},
                                {.fd = stream_command_fd(s), .events = POLLIN}};
        int n = poll(fds, 2, left);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0 && fds[1].revents)
            (void)stream_command_pump(s);
        if (n > 0 && fds[0].revents)
            return 0;
    }
}

/* --- opening ------------------------------------------------------------------------- */

/* An exec stream is a connection to ourselves, of which the command gets the other end: curl
 * makes it as any other unix socket. (Handing curl one end of a socket pair through its
 * open-socket callback needs CURL_SOCKOPT_ALREADY_CONNECTED, which libcurl 7.88, Debian 12's,
 * disregards.) The name is random and in no file system; it is gone when the listener is closed,
 * before the command starts. */
static int listen_to_self(char name[static 24])
{
    uint8_t random[8];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return -EIO;
    uint64_t number;
    memcpy(&number, random, sizeof number);
    (void)snprintf(name, 24, "berth-%016" PRIx64, number);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(name);
    memcpy(address.sun_path + 1, name, len); /* behind a NUL: the abstract namespace */
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (bind(fd, (struct sockaddr *)&address,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len)) < 0 ||
        listen(fd, 8) < 0)
        return -errno;
    return take_fd(&fd);
}

/* The connection that this process made; anybody could have found the name and made others. */
static int accept_from_self(int listener)
{
    for (;;) {
        _cleanup_close_ int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            return -errno;
        struct ucred peer;
        socklen_t len = sizeof peer;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.pid == getpid())
            return take_fd(&fd);
    }
}

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
    struct stream *s = context;
    static const char word[] = "alert";
    if (type != CURLINFO_TEXT || !memmem(data, size, word, strlen(word)) ||
        memmem(data, size, "(OUT)", 5))
        return 0;
    size_t used = 0;
    for (size_t i = 0; i < size && used + 1 < sizeof s->alert; i++)
        if (data[i] != ',') /* "TLS alert, unknown CA" and "alert unknown ca" alike */
            s->alert[used++] = data[i];
    s->alert[used] = '\0';
    return 0;
}

static int check_token(const char *token, const char *url, struct failure *f)
{
    /* Anything else could end the header line and start another. */
    for (const char *c = token; *c; c++)
        if (*c <= ' ' || *c >= 0x7f)
            return failure_set(f, -EINVAL,
                               "%s: the token has spaces or bytes that are not printable ASCII. "
                               "Check the token file",
                               url);
    if (!*token)
        return failure_set(f, -EINVAL, "%s: the token is empty. Check the token file", url);
    return 0;
}

static int check_file(const char *file, const char *what, const char *url, struct failure *f)
{
    if (!file || access(file, R_OK) == 0)
        return 0;
    int error = -errno;
    return failure_set(f, error == -ENOENT || error == -EACCES ? error : -EINVAL,
                       "%s: cannot read the %s %s: %s. Check the path and its permissions", url,
                       what, file, strerror(-error));
}

/* socket_name: exec's own. */
static int set_options(struct stream *s, const struct stream_options *o, const char *socket_name,
                       struct failure *f)
{
    CURL *c = s->curl;
    bool ok = true;
#define SET(option, value) ok = ok && curl_easy_setopt(c, option, value) == CURLE_OK
    SET(CURLOPT_ERRORBUFFER, s->curl_text);
    SET(CURLOPT_DEBUGFUNCTION, note_alert);
    SET(CURLOPT_DEBUGDATA, s);
    SET(CURLOPT_VERBOSE, 1L); /* until the set-up is done; curl's texts go to note_alert alone */
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_CONNECT_ONLY, 1L);
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1); /* no h2 by ALPN: it has no Upgrade */
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)s->timeout_ms);
    SET(CURLOPT_TIMEOUT_MS, (long)s->timeout_ms);
    switch (s->parts.kind) {
    case STREAM_UNIX:
        SET(CURLOPT_URL, "http://localhost/");
        SET(CURLOPT_UNIX_SOCKET_PATH, s->parts.rest);
        SET(CURLOPT_PROXY, "");
        break;
    case STREAM_EXEC:
        SET(CURLOPT_URL, "http://localhost/");
        SET(CURLOPT_ABSTRACT_UNIX_SOCKET, socket_name);
        SET(CURLOPT_PROXY, "");
        break;
    case STREAM_HTTP:
        SET(CURLOPT_URL, s->url);
        SET(CURLOPT_PROXY, "");
        break;
    case STREAM_HTTPS:
        SET(CURLOPT_URL, s->url);
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
        break;
    }
#undef SET
    return ok ? 0
              : failure_set(f, -ENOMEM, "%s: libcurl refuses an option or is out of memory",
                            s->url);
}

static int connect_once(struct stream *s, const struct stream_options *o, struct failure *f)
{
    char socket_name[24] = "";
    _cleanup_close_ int listener = -1;
    if (s->parts.kind == STREAM_EXEC) {
        listener = listen_to_self(socket_name);
        if (listener < 0)
            return failure_set(f, listener, "%s: cannot make a socket for the command: %s", s->url,
                               strerror(-listener));
    }
    int r = set_options(s, o, socket_name, f);
    if (r < 0)
        return r;
    CURLcode code = curl_easy_perform(s->curl);
    if (code != CURLE_OK)
        return stream_failure_connect(s, code, f);
    curl_socket_t fd = CURL_SOCKET_BAD;
    code = curl_easy_getinfo(s->curl, CURLINFO_ACTIVESOCKET, &fd);
    if (code != CURLE_OK || fd == CURL_SOCKET_BAD)
        return stream_failure_connect(s, CURLE_COULDNT_CONNECT, f);
    s->fd = fd;
    if (s->parts.kind != STREAM_EXEC)
        return 0;
    _cleanup_close_ int theirs = accept_from_self(listener);
    if (theirs < 0)
        return failure_set(f, theirs, "%s: cannot connect to the command: %s", s->url,
                           strerror(-theirs));
    close_fd(&listener);
    return bridge_start(s->parts.rest, theirs, &s->bridge, f);
}

/* A unix socket whose backlog is full answers a non-blocking connect with EAGAIN, which curl
 * takes for "in progress" and then for a failure without an errno: ask it again. */
static bool backlog_was_full(const struct stream *s)
{
    if (s->parts.kind != STREAM_UNIX)
        return false;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, s->parts.rest, strlen(s->parts.rest)); /* fits: stream_url_parse */
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd >= 0 &&
           (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 || errno == EAGAIN);
}

static int connect_stream(struct stream *s, const struct stream_options *o, struct failure *f)
{
    for (;;) {
        s->curl = curl_easy_init();
        if (!s->curl)
            return failure_set(f, -ENOMEM, "%s: out of memory", s->url);
        int r = connect_once(s, o, f);
        if (r != -ECONNREFUSED || !backlog_was_full(s))
            return r;
        curl_easy_cleanup(take_ptr(s->curl));
        s->fd = -1;
        if (stream_time_left_ms(s) == 0)
            return failure_set(f, -EBUSY,
                               "%s: the service takes no connections: too many are waiting. Try "
                               "again later",
                               s->url);
        (void)poll(NULL, 0, BACKLOG_RETRY_MS);
    }
}

int stream_open(const struct stream_options *o, struct stream **ret, struct failure *ret_failure)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, curl_init);
    uint64_t start = clock_monotonic_ns();
    if (!o->url)
        return failure_set(ret_failure, -EINVAL, "no URL given");
    struct stream_url parts;
    int r = stream_url_parse(o->url, &parts, ret_failure);
    if (r < 0)
        return r;
    if (o->token && (r = check_token(o->token, o->url, ret_failure)) < 0)
        return r;
    if (parts.kind == STREAM_HTTPS &&
        ((r = check_file(o->ca_file, "CA file", o->url, ret_failure)) < 0 ||
         (r = check_file(o->cert_file, "client certificate", o->url, ret_failure)) < 0 ||
         (r = check_file(o->key_file, "client key", o->url, ret_failure)) < 0))
        return r;
    if (o->key_file && !o->cert_file)
        return failure_set(ret_failure, -EINVAL,
                           "%s: a client key without a certificate. Name the certificate with "
                           "--cert-file",
                           o->url);

    _cleanup_stream_ struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return failure_set(ret_failure, -ENOMEM, "%s: out of memory", o->url);
    s->fd = -1;
    s->url = strdup(o->url);
    if (!s->url)
        return failure_set(ret_failure, -ENOMEM, "%s: out of memory", o->url);
    (void)stream_url_parse(s->url, &s->parts, ret_failure); /* again, to point into our copy */
    s->has_token = o->token;
    s->has_ca = o->ca_file;
    s->has_client_cert = o->cert_file;
    s->timeout_ms = o->connect_timeout_ms       ? o->connect_timeout_ms
                    : parts.kind == STREAM_EXEC ? EXEC_TIMEOUT_MS
                                                : CONNECT_TIMEOUT_MS;
    s->deadline_ns = start + s->timeout_ms * NSEC_PER_MSEC;
    r = connect_stream(s, o, ret_failure);
    if (r == 0)
        r = stream_upgrade(s, o->token, ret_failure);
    if (r < 0)
        return r;
    (void)curl_easy_setopt(s->curl, CURLOPT_VERBOSE, 0L);
    s->setup_ns = clock_monotonic_ns() - start;
    *ret = take_ptr(s);
    return 0;
}

/* --- use ------------------------------------------------------------------------------ */

int stream_fd(const struct stream *s)
{
    return s->fd;
}

static int error_of(struct stream *s, CURLcode code)
{
    if (code == CURLE_AGAIN)
        return -EAGAIN;
    long number = 0;
    (void)curl_easy_getinfo(s->curl, CURLINFO_OS_ERRNO, &number);
    s->end_error = code == CURLE_OUT_OF_MEMORY ? -ENOMEM : number > 0 ? -(int)number : -ECONNRESET;
    if (s->end_error == -EAGAIN)
        s->end_error = -ECONNRESET;
    return s->end_error;
}

ssize_t stream_read(struct stream *s, void *buffer, size_t len)
{
    if (s->early.len > 0) {
        size_t n = len < s->early.len ? len : s->early.len;
        memcpy(buffer, s->early.data, n);
        buffer_consume(&s->early, n);
        if (s->early.len == 0)
            buffer_release(&s->early);
        return (ssize_t)n;
    }
    size_t n = 0;
    CURLcode code = curl_easy_recv(s->curl, buffer, len, &n);
    return code == CURLE_OK ? (ssize_t)n : error_of(s, code);
}

ssize_t stream_write(struct stream *s, const void *data, size_t len)
{
    if (len == 0)
        return 0;
    const void *from = data;
    size_t count = len;
    if (s->parts.kind == STREAM_HTTPS) {
        /* OpenSSL wants a record that it could not send to be offered again at the same
         * address, but the caller's output moves: such a record is kept here. */
        if (!s->retry_len) {
            count = len < TLS_RECORD_MAX ? len : TLS_RECORD_MAX;
            if (!s->retry) {
                s->retry = malloc(TLS_RECORD_MAX);
                if (!s->retry)
                    return -ENOMEM;
            }
            memcpy(s->retry, data, count);
            s->retry_len = count;
        }
        from = s->retry;
        count = s->retry_len;
    }
    size_t n = 0;
    CURLcode code = curl_easy_send(s->curl, from, count, &n);
    if (code != CURLE_OK)
        return error_of(s, code);
    s->retry_len = 0;
    return n ? (ssize_t)n : -EAGAIN;
}

/* OpenSSL gives each record to the kernel by itself, and without delay each would be a segment of
 * its own, which costs both ends as much as one of four times its size. */
void stream_expect(struct stream *s, size_t len)
{
    if (s->parts.kind != STREAM_HTTPS || (s->corked ? len > 0 : len <= CORKED_MIN))
        return;
    s->corked = !s->corked;
    const int value = s->corked;
    (void)setsockopt(s->fd, IPPROTO_TCP, TCP_CORK, &value, sizeof value);
}

int stream_command_fd(const struct stream *s)
{
    return s->bridge ? bridge_stderr_fd(s->bridge) : -1;
}

bool stream_command_pump(struct stream *s)
{
    return s->bridge && bridge_pump(s->bridge);
}

const char *stream_end_reason(struct stream *s, char *text, size_t size)
{
    if (s->bridge) {
        int code;
        char how[512];
        (void)bridge_wait(s->bridge, 200, &code);
        (void)snprintf(text, size, "the command %s", bridge_describe(s->bridge, how, sizeof how));
    } else if (s->end_error < 0) {
        (void)snprintf(text, size, "the connection broke: %s", strerror(-s->end_error));
    } else {
        (void)snprintf(text, size, "the service closed the connection");
    }
    return text;
}

bool stream_is_local(const struct stream *s)
{
    return s->parts.kind == STREAM_UNIX;
}

uint64_t stream_setup_ns(const struct stream *s)
{
    return s->setup_ns;
}

void stream_abandon(struct stream *s)
{
    s->abandoned = true;
}

void stream_close(struct stream *s)
{
    if (!s)
        return;
    if (s->curl)
        curl_easy_cleanup(s->curl); /* closes its socket: end of file for the command */
    if (s->bridge)
        bridge_stop(s->bridge, s->abandoned);
    buffer_release(&s->early);
    free(s->retry);
    free(s->url);
    free(s);
}
