#include "stream/url.h"

#include <arpa/inet.h>
#include <http_parser.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "stream/stream.h"

#define HTTPS_PORT 443
#define HTTP_PORT 80

/* By text alone: a name that only resolves to loopback can resolve to something else at the
 * next look-up, and would then get the token in clear. curl never looks "localhost" up. */
static bool is_loopback(const char *host)
{
    struct in_addr v4;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    return strcmp(host, "[::1]") == 0 || strcasecmp(host, "localhost") == 0;
}

static bool has(const struct http_parser_url *parts, enum http_parser_url_fields field)
{
    return parts->field_set & (1U << field);
}

static struct bytes part(const struct http_parser_url *parts, enum http_parser_url_fields field,
                         const char *url)
{
    if (!has(parts, field))
        return (struct bytes){0};
    return bytes_of(url + parts->field_data[field].off, parts->field_data[field].len);
}

static bool is_ascii(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text >= 0x80)
            return false;
    return true;
}

static int parse_network(const char *url, bool listen, struct stream_url *u, struct failure *f)
{
    const char *scheme = u->kind == STREAM_HTTPS ? "https" : "http";
    int authority = (int)strcspn(u->rest, "/?#");
    if (memchr(u->rest, '@', (size_t)authority))
        /* The URL is not repeated here: it may hold a password. */
        return failure_set(f, -EINVAL,
                           "the URL has a user name or password in it, which Berth does not use. "
                           "Put the token in a file and name it with --token-file");
    const char *behind = u->rest + authority;
    if (*behind && strcmp(behind, "/") != 0)
        return failure_set(f, -EINVAL, "%s: nothing may follow the host and port. Write %s://%.*s",
                           url, scheme, authority, u->rest);
    struct http_parser_url parts;
    http_parser_url_init(&parts);
    if (http_parser_parse_url(url, strlen(url), false, &parts) != 0)
        return failure_set(f, -EINVAL, "%s: not a valid URL. Write %s://HOST:PORT%s", url, scheme,
                           is_ascii(url) ? "" : ", with a HOST of ASCII letters (xn--...)");
    struct bytes host = part(&parts, UF_HOST, url);
    bool v6 = memchr(host.data, ':', host.len);
    if (host.len == 0 || host.len > STREAM_HOST_MAX - 2 || (listen && !has(&parts, UF_PORT)))
        return failure_set(f, -EINVAL, "%s: the host or port is missing. Write %s://HOST:PORT", url,
                           scheme);
    char text[STREAM_HOST_MAX + 1];
    (void)snprintf(text, sizeof text, v6 ? "[%.*s]" : "%.*s", (int)host.len,
                   (const char *)host.data);
    uint16_t port = has(&parts, UF_PORT)      ? parts.port
                    : u->kind == STREAM_HTTPS ? HTTPS_PORT
                                              : HTTP_PORT;
    if (u->kind == STREAM_HTTP && !is_loopback(text))
        return failure_set(f, -EINVAL,
                           "%s: plain http is for this machine alone (localhost, 127.0.0.1, "
                           "[::1]). Use https://%s:PORT%s%s%s",
                           url, text, listen ? "" : ", or exec:ssh ", listen ? "" : text,
                           listen ? "" : " berthd --stdio");
    if (!listen && port == 0)
        return failure_set(f, -EINVAL, "%s: the port must be 1 to 65535", url);
    memcpy(u->host, text, strlen(text) + 1);
    u->port = port;
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
    if (url[0] == '/')
        return failure_set(ret_failure, -EINVAL, "%s: not a URL of a service. Write unix:%s", url,
                           url);
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

bool stream_url_is_network(const char *url)
{
    struct stream_url u;
    struct failure f;
    return stream_url_parse(url, &u, &f) == 0 && (u.kind == STREAM_HTTPS || u.kind == STREAM_HTTP);
}

int stream_url_check(const char *url, struct failure *ret_failure)
{
    struct stream_url u;
    return stream_url_parse(url, &u, ret_failure);
}
