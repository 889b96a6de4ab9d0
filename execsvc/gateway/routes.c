#include "gateway/routes.h"

#include <stdio.h>
#include <string.h>

#include "gateway/counters.h"

static const struct route routes[] = {
#define ROUTE(METHOD, pattern, handler, flags) {#METHOD, pattern, handler, flags},
#include "gateway/routes.def"
#undef ROUTE
};

_Static_assert(ARRAY_SIZE(routes) < COUNTERS_ROUTES, "each has its counters");

size_t route_count(void)
{
    return ARRAY_SIZE(routes);
}

const struct route *route_at(size_t i)
{
    return &routes[i];
}

static bool matches(const char *pattern, const char *path, struct route_match *ret)
{
    *ret = (struct route_match){0};
    while (*pattern) {
        if (*pattern != '{') {
            if (*pattern++ != *path++)
                return false;
            continue;
        }
        const char *end = strchr(pattern, '}');
        bool rest = end[-1] == '.';
        size_t len = rest ? strlen(path) : strcspn(path, "/");
        if (len == 0 && !rest)
            return false;
        ret->params[ret->param_count++] = bytes_of(path, len);
        path += len;
        pattern = end + 1;
    }
    return *path == '\0';
}

static void add_method(char allow[ROUTE_ALLOW_MAX], const char *method)
{
    size_t len = strlen(allow);
    (void)snprintf(allow + len, ROUTE_ALLOW_MAX - len, "%s%s%s", len ? ", " : "", method,
                   strcmp(method, "GET") == 0 ? ", HEAD" : "");
}

const struct route *route_find(const char *method, const char *path, struct route_match *ret_match,
                               char ret_allow[ROUTE_ALLOW_MAX])
{
    struct route_match m;
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    ret_allow[0] = '\0';
    for (size_t i = 0; i < ARRAY_SIZE(routes); i++) {
        if (!matches(routes[i].pattern, path, &m))
            continue;
        if (strcmp(routes[i].method, method) == 0) {
            *ret_match = m;
            return &routes[i];
        }
        if (!strstr(ret_allow, routes[i].method))
            add_method(ret_allow, routes[i].method);
    }
    return NULL;
}
