/* Where an HTTP message ends, found while its bytes pass by. */
#pragma once

#include <http_parser.h>
#include <stdbool.h>
#include <stddef.h>

struct message {
    http_parser parser;
    bool no_body; /* it answers a HEAD */
    bool done;    /* its last byte has passed */
    bool broken;  /* it is none */
};

void message_begin_request(struct message *m);

/* Interim answers (1xx) belong to the one that they announce. no_body: it answers a HEAD. */
void message_begin_response(struct message *m, bool no_body);

/* How many of these bytes belong to it: all, until it is done or broken, and then none. */
size_t message_feed(struct message *m, const void *data, size_t len);
