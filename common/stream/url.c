#include "stream/url.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "stream/stream.h"

static void url_cleanup(CURLU **u)
{
    curl_url_cleanup(*u);
}

static void curl_string_free(char **s)
{
    curl_free(*s);
}

/* By text alone: a name that only resolves to loopback can resolve to something else at the
 * next look-up, and would then get the token in clear. curl never looks "localhost" up. */
static bool is_loopback(const char *host)
{
    struct in_addr v4;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    return strcmp(host, "[::1]") == 0 || strcasecmp(host, "localhost") == 0;
}

static int parse_network(const char *url, bool listen, struct stream_url *u, struct failure *f)
{
    _cleanup_(url_cleanup) CURLU *parts = curl_url();
    if (!parts)
        return failure_set(f, -ENOMEM, "%s: out of memory", url);
    const char *scheme = u->kind == STREAM_HTTPS ? "https" : "http";
    CURLUcode code = curl_url_set(parts, CURLUPART_URL, url, 0);
    if (code != CURLUE_OK)
        return failure_set(f, -EINVAL, "%s: not a valid URL (%s). Write %s://HOST:PORT", url,
                           curl_url_strerror(code), scheme);
    _cleanup_(curl_string_free) char *user = NULL;
    _cleanup_(curl_string_free) char *password = NULL;
    if (curl_url_get(parts, CURLUPART_USER, &user, 0) == CURLUE_OK ||
        curl_url_get(parts, CURLUPART_PASSWORD, &password, 0) == CURLUE_OK)
        /* The URL is not repeated here: it may hold a password. */
        return failure_set(f, -EINVAL,
                           "the URL has a user name or password in it, which Berth does not use. "
                           "Put the token in a file and name it with --token-file");
    _cleanup_(curl_string_free) char *host = NULL;
    _cleanup_(curl_string_free) char *port = NULL;
    if (curl_url_get(parts, CURLUPART_HOST, &host, 0) != CURLUE_OK ||
        curl_url_get(parts, CURLUPART_PORT, &port, listen ? 0 : CURLU_DEFAULT_PORT) != CURLUE_OK ||
        strlen(host) > STREAM_HOST_MAX)
        return failure_set(f, -EINVAL, "%s: the host or port is missing. Write %s://HOST:PORT", url,
                           scheme);
    _cleanup_(curl_string_free) char *path = NULL;
    _cleanup_(curl_string_free) char *query = NULL;
    _cleanup_(curl_string_free) char *fragment = NULL;
    (void)curl_url_get(parts, CURLUPART_PATH, &path, 0);
    if ((path && *path && strcmp(path, "/") != 0) ||
        curl_url_get(parts, CURLUPART_QUERY, &query, 0) == CURLUE_OK ||
        curl_url_get(parts, CURLUPART_FRAGMENT, &fragment, 0) == CURLUE_OK)
        return failure_set(f, -EINVAL, "%s: nothing may follow the host and port. Write %s://%s:%s",
                           url, scheme, host, port);
    if (u->kind == STREAM_HTTP && !is_loopback(host))
        return failure_set(f, -EINVAL,
                           "%s: plain http is for this machine alone (localhost, 127.0.0.1, "
                           "[::1]). Use https://%s:PORT%s%s%s",
                           url, host, listen ? "" : ", or exec:ssh ", listen ? "" : host,
                           listen ? "" : " berthd --stdio");
    long number = strtol(port, NULL, 10);
    if (number < (listen ? 0 : 1) || number > 65535)
        return failure_set(f, -EINVAL, "%s: the port must be %d to 65535", url, listen ? 0 : 1);
    memcpy(u->host, host, strlen(host) + 1);
    u->port = (uint16_t)number;
    return 0;
}

static int parse_unix(const char *url, bool listen, struct stream_url *u, struct failure *f)
{
    if (u->rest[0] != '/')
        return failure_set(f, -EINVAL,
                           "%s: the path of the socket must be absolute. Write unix:/PATH", url);
    size_t max = sizeof((struct sockaddr_un *)0)->sun_path - 1;
    if (strlen(u->rest) > max)
        return failure_set(f, -EINVAL,
                           "%s: the path of a socket may have at most %zu bytes, this one has %zu. "
                           "Use a shorter directory",
                           url, max, strlen(u->rest));
    return 0;
}

static int parse_exec(const char *url, bool listen, struct stream_url *u, struct failure *f)
{
    if (listen)
        return failure_set(
            f, -EINVAL,
            "%s: a service cannot listen there. Write unix:/PATH, https://HOST:PORT or "
            "http://127.0.0.1:PORT",
            url);
    if (u->rest[strspn(u->rest, " \t\n")] == '\0')
        return failure_set(
            f, -EINVAL,
            "%s: the command is missing. Write, for example, exec:ssh HOST berthd --stdio", url);
    return 0;
}

static int parse(const char *url, bool listen, struct stream_url *ret, struct failure *ret_failure)
{
    static const struct {
        const char *prefix;
        enum stream_kind kind;
        int (*parse)(const char *url, bool listen, struct stream_url *u, struct failure *f);
    } schemes[] = {
        {"unix:", STREAM_UNIX, parse_unix},
        {"https://", STREAM_HTTPS, parse_network},
        {"http://", STREAM_HTTP, parse_network},
        {"exec:", STREAM_EXEC, parse_exec},
    };
    if (strlen(url) > STREAM_URL_MAX)
        return failure_set(ret_failure, -EINVAL, "the URL is longer than %d bytes", STREAM_URL_MAX);
    for (size_t i = 0; i < ARRAY_SIZE(schemes); i++) {
        size_t len = strlen(schemes[i].prefix);
        if (strncasecmp(url, schemes[i].prefix, len) != 0)
            continue;
        struct stream_url u = {.kind = schemes[i].kind, .rest = url + len};
        int r = schemes[i].parse(url, listen, &u, ret_failure);
        if (r == 0)
            *ret = u;
        return r;
    }
    return failure_set(ret_failure, -EINVAL,
                       "%s: not a URL of a service. Write unix:/PATH, https://HOST:PORT%s "
                       "http://127.0.0.1:PORT%s",
                       *url ? url : "the empty string", listen ? " or" : ",",
                       listen ? "" : " or exec:COMMAND");
}

int stream_url_parse(const char *url, struct stream_url *ret, struct failure *ret_failure)
{
    return parse(url, false, ret, ret_failure);
}

int stream_url_parse_listen(const char *url, struct stream_url *ret, struct failure *ret_failure)
{
    return parse(url, true, ret, ret_failure);
}

int stream_url_check(const char *url, struct failure *ret_failure)
{
    struct stream_url u;
    return stream_url_parse(url, &u, ret_failure);
}
