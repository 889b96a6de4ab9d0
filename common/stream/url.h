/* The parts of a service's URL. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/failure.h"

enum stream_kind { STREAM_UNIX, STREAM_HTTPS, STREAM_HTTP, STREAM_EXEC };

#define STREAM_URL_MAX 4096 /* bounds every text made from a URL */
#define STREAM_HOST_MAX 255 /* a DNS name */

struct stream_url {
    enum stream_kind kind;
    const char *rest;               /* unix: the path, exec: the command; points into the URL */
    char host[STREAM_HOST_MAX + 1]; /* https, http; IPv6 with brackets */
    uint16_t port;
};

/* The URL to connect to. 0, or -EINVAL with the reason and what is expected. */
int stream_url_parse(const char *url, struct stream_url *ret, struct failure *ret_failure);

/* True for https and http. */
bool stream_url_is_network(const char *url);

/* The URL of a listener: not exec:, and the port, which must be there, may be 0 (any). */
int stream_url_parse_listen(const char *url, struct stream_url *ret, struct failure *ret_failure);
