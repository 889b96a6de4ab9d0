/* Who the caller of an exchange is to the service, and connections to it in the caller's name. */
#include "gateway/private.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "access/issued.h"

/* What is behind "Bearer ", or NULL. */
static const char *bearer(const char *authorization)
{
    static const char scheme[] = "bearer ";
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return NULL;
    const char *token = authorization + sizeof scheme - 1;
    return token + strspn(token, " ");
}

/* NULL: none is given. */
static const char *token_of(const struct exchange *x)
{
    if (x->token_set)
        return x->token;
    const char *token = bearer(exchange_field(x, "authorization"));
    if (!token)
        token = exchange_field(x, "x-access-token");
    return token ? token : exchange_field(x, "x-api-key");
}

/* To E2B's daemon it says which of the sandbox's users is meant, and is beside a token. */
static bool names_a_user(const struct exchange *x, const char *authorization)
{
    return (x->route->flags & (ROUTE_E2B | ROUTE_CONNECT | ROUTE_STREAM)) &&
           strncasecmp(authorization, "basic ", 6) == 0;
}

int exchange_check_credentials(const struct exchange *x, struct failure *f)
{
    const char *authorization = exchange_field(x, "authorization");
    const bool given[] = {
        authorization && !names_a_user(x, authorization),
        exchange_field(x, "x-access-token"),
        exchange_field(x, "x-api-key"),
        (x->route->flags & ROUTE_E2B) && exchange_query(x, "signature"),
    };
    unsigned count = 0;
    for (size_t i = 0; i < ARRAY_SIZE(given); i++)
        count += given[i];
    return count < 2 ? 0
                     : failure_set(f, -EINVAL,
                                   "two credentials: give one alone of Authorization, "
                                   "X-API-Key, X-Access-Token and a signature");
}

int exchange_set_token(struct exchange *x, const char *token)
{
    char *copy = token ? strdup(token) : NULL;
    if (token && !copy)
        return -ENOMEM;
    free(x->token);
    x->token = copy;
    x->token_set = true;
    return 0;
}

static bool is_token(const char *text)
{
    for (const char *c = text; *c; c++)
        if (*c <= ' ' || *c >= 0x7f)
            return false;
    return *text != '\0';
}

/* A name that this machine alone has, perhaps with a port. */
static bool is_own_name(const char *host)
{
    size_t len = strcspn(host, ":/");
    static const char local[] = "localhost";
    size_t n = sizeof local - 1;
    if (strncmp(host, "[::1]", 5) == 0)
        return true;
    if (len >= n && strncasecmp(host + len - n, local, n) == 0)
        return len == n || host[len - n - 1] == '.';
    return strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == len;
}

/* Without a token whoever reaches this machine's own ports is let in, if anybody is. A page of the
 * web in a browser of this machine does, too: its browser says which page that is, or asks for the
 * name that the page has given this machine. Images and links have no Origin. Names without a dot
 * are those that clients of a unix socket make up, and nobody else's. */
static bool is_of_a_page(const struct exchange *x)
{
    const char *authority = strstr(x->request->target, "://");
    /* RFC 9112 3.2.2: what an absolute target has counts, and not Host. */
    const char *host =
        authority && x->request->target[0] != '/' ? authority + 3 : exchange_field(x, "host");
    const char *origin = exchange_field(x, "origin");
    const char *site = exchange_field(x, "sec-fetch-site");
    const char *name = origin ? strstr(origin, "://") : NULL;
    return (site && strcasecmp(site, "cross-site") == 0) ||
           (origin && (!name || !is_own_name(name + 3))) ||
           (host && memchr(host, '.', strcspn(host, ":/?")) && !is_own_name(host));
}

/* What must not be passed on: a status, or 0. */
static int judge(const struct exchange *x, const char *token, struct failure *f)
{
    if (!token && is_of_a_page(x)) {
        (void)failure_set(f, -EACCES, "without a token a page of the web is not answered");
        return 403;
    }
    if (token && !is_token(token)) {
        (void)failure_set(f, -EACCES, "the token is empty, or no token");
        return 401;
    }
    /* A signature is for one file, which e2b_files.c sees to: it is no token for anything else. */
    if (token && !x->token_set && strncmp(token, SIGNED_PREFIX, sizeof SIGNED_PREFIX - 1) == 0) {
        (void)failure_set(f, -EACCES, "the bearer token is not one of this service");
        return 401;
    }
    return 0;
}

static void drop(struct conversation_upstream *u)
{
    upstream_free(u->upstream);
    if (u->token)
        explicit_bzero(u->token, strlen(u->token));
    free(u->token);
    *u = (struct conversation_upstream){0};
}

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : !a && !b;
}

/* One with this token, or where one can be put. */
static struct conversation_upstream *find(struct conversation *c, const char *token)
{
    struct conversation_upstream *oldest = &c->upstreams[0];
    for (size_t i = 0; i < CONVERSATION_UPSTREAMS_MAX; i++) {
        struct conversation_upstream *u = &c->upstreams[i];
        if (u->upstream)
            upstream_flush(u->upstream); /* it may have been ended since */
        if (u->upstream && upstream_is_lost(u->upstream))
            drop(u);
        if (u->upstream && same(u->token, token))
            return u;
        if (u->used < oldest->used)
            oldest = u;
    }
    drop(oldest);
    return oldest;
}

/* The service's own answer to who asks is the answer. */
static int refused(struct exchange *x, const struct stream_refusal *refusal, int error,
                   struct failure *f)
{
    if (refusal->status != 401 && refusal->status != 403 && refusal->status != 429 &&
        refusal->status != 503)
        return error == -ENOMEM
                   ? error
                   : failure_set(f, -ECONNREFUSED, "the service takes no connection now");
    x->unauthorized = refusal->status;
    x->retry_s = refusal->retry_s;
    return failure_set(f, error, "%s", refusal->reason);
}

static int connect_as(struct exchange *x, const char *token, struct upstream **ret,
                      struct failure *f)
{
    const struct conversation_options *o = x->conversation->options;
    struct stream_refusal refusal = {0};
    int fd = o->connect(o->context);
    if (fd < 0)
        return failure_set(f, -ECONNREFUSED, "the service cannot be reached: %s", strerror(-fd));
    const struct stream_options options = {
        .url = "unix:/", .socket = fd, .token = token, .caller = o->ticket, .refusal = &refusal};
    int r = upstream_open(&options, "gateway " BERTH_VERSION, ret, f);
    return r < 0 ? refused(x, &refusal, r, f) : 0;
}

int exchange_new_upstream(struct exchange *x, struct upstream **ret, struct failure *ret_failure)
{
    int r = connect_as(x, token_of(x), ret, ret_failure);
    return r < 0 ? r : upstream_set_caller(*ret, x->conversation->fd);
}

int exchange_upstream(struct exchange *x, struct upstream **ret, struct failure *ret_failure)
{
    struct conversation *c = x->conversation;
    const char *token = token_of(x);
    x->unauthorized = judge(x, token, ret_failure);
    if (x->unauthorized)
        return -EACCES;
    struct conversation_upstream *u = find(c, token);
    int r = 0;
    if (!u->upstream) {
        u->token = token ? strdup(token) : NULL;
        if (token && !u->token)
            return failure_set(ret_failure, -ENOMEM, "out of memory");
        r = connect_as(x, token, &u->upstream, ret_failure);
        if (r < 0) {
            drop(u);
            return r;
        }
    }
    u->used = ++c->last_used;
    r = upstream_set_caller(u->upstream, c->fd);
    if (r < 0)
        return failure_set(ret_failure, r, "the client cannot be watched: %s", strerror(-r));
    *ret = u->upstream;
    return 0;
}
