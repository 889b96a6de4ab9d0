/* What network.c and network_failure.c share: libcurl's side of a stream. */
#pragma once

#include <curl/curl.h>

#include "stream/private.h"

/* Largest TLS record; see network_write. */
#define TLS_RECORD_MAX 16384

struct network {
    CURL *curl;
    uint8_t *retry; /* TLS: a record that was offered to curl and not taken */
    size_t retry_len;
    char text[CURL_ERROR_SIZE];
    char alert[CURL_ERROR_SIZE]; /* curl's last text about a TLS alert of the peer's */
};

static inline struct network *network_of(const struct stream *s)
{
    return s->network;
}

/* The failure of curl_easy_perform. */
int network_failure(struct stream *s, CURLcode code, struct failure *ret_failure);

/* As stream_carrier has it. */
int network_explain_end(struct stream *s, int error, bool answered, struct failure *ret_failure);
