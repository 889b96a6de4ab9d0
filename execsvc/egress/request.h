/* A request to the proxy: its header, read whole, and what is sent on of it. Pure functions.
 *
 * CONNECT HOST:PORT (RFC 9110 9.3.6) and METHOD http://HOST[:PORT]/… (RFC 9112 3.2.2) are taken.
 * Where it goes is what the request line says and nothing else; a Host field is replaced by that.
 * What can be read in two ways is refused: bare line feeds, folded fields, spaces in names, two
 * Hosts, two lengths. */
#pragma once

#include "base/buffer.h"
#include "egress/allow_list.h"

/* Request line and fields, in bytes. Stops memory use by an endless header; fits a long URL and
 * some cookies. */
#define EGRESS_HEAD_MAX 32768

struct egress_request {
    bool connect;
    bool head; /* HEAD: the answer has no body */
    char method[16];
    struct allow_host host;
    uint16_t port;
    struct buffer forward; /* the header as the server gets it; empty for CONNECT */
};

/* Looks for the end of a header. *at, 0 at first: what was looked at before, so that bytes that
 * come one by one are not all looked at each time. 1: it ends at *at; 0: it is not complete;
 * -EBADMSG: it is none; -EMSGSIZE: it is longer than EGRESS_HEAD_MAX. */
int egress_request_find_end(struct bytes data, size_t *at);

/* Reads a complete header. 0; -EINVAL, and a text for its sender: escaped, at most why_size bytes
 * with the NUL; -ENOMEM. */
int egress_request_parse(struct bytes head, struct egress_request *ret, char *ret_why,
                         size_t why_size);

void egress_request_release(struct egress_request *r);
