/* The table of routes (routes.def). */
#pragma once

#include "gateway/exchange.h"

enum route_flags {
    ROUTE_CHANGES = 1 << 0,
    ROUTE_OPEN = 1 << 1,
    ROUTE_E2B = 1 << 2,
    ROUTE_CONNECT = 1 << 3,
    ROUTE_STREAM = 1 << 4,
};

struct route {
    const char *method;
    const char *pattern;
    exchange_handler *handler;
    unsigned flags;
};

/* A pattern has at most so many {…}. */
#define ROUTE_PARAMS_MAX 4

/* Where the parameters are in the path. */
struct route_match {
    struct bytes params[ROUTE_PARAMS_MAX];
    size_t param_count;
};

size_t route_count(void);
const struct route *route_at(size_t i);

/* The route of a method and a path without its query, or NULL; HEAD finds GET's. ret_allow: the
 * methods that the path has, "GET, HEAD"; empty when nothing is at the path. */
#define ROUTE_ALLOW_MAX 128
const struct route *route_find(const char *method, const char *path, struct route_match *ret_match,
                               char ret_allow[ROUTE_ALLOW_MAX]);

#define ROUTE(METHOD, pattern, handler, flags) \
    int handler(struct exchange *x, struct failure *ret_failure);
#include "gateway/routes.def"
#undef ROUTE
