/* What the files of this folder share about one stream. */
#pragma once

#include <curl/curl.h>

#include "base/buffer.h"
#include "stream/bridge.h"
#include "stream/stream.h"
#include "stream/url.h"

/* Limits of the answer to the upgrade request. They stop a peer that is no service (or a
 * hostile one) from filling our memory before anything is agreed. */
#define UPGRADE_HEADER_MAX 16384
#define UPGRADE_BODY_MAX 4096

/* Largest TLS record; see stream_write. */
#define TLS_RECORD_MAX 16384

struct stream {
    CURL *curl;
    int fd;                /* curl's */
    struct bridge *bridge; /* exec */
    char *url;
    struct stream_url parts; /* points into url */
    bool has_token;
    bool has_client_cert;
    bool has_ca;
    bool abandoned;
    uint64_t deadline_ns; /* of the set-up */
    uint32_t timeout_ms;
    uint64_t setup_ns;
    struct buffer early; /* read behind the upgrade's answer */
    uint8_t *retry;      /* TLS: a record that was offered to curl and not taken */
    size_t retry_len;
    bool corked;   /* see stream_expect */
    int end_error; /* negative errno that the stream ended with, 0 at end of file */
    char curl_text[CURL_ERROR_SIZE];
    char alert[CURL_ERROR_SIZE]; /* curl's last text about a TLS alert of the peer's */
};

/* Milliseconds until the deadline of the set-up, 0 when it has passed. */
int stream_time_left_ms(const struct stream *s);

/* Waits for `events` on the stream until the deadline, passing on the command's standard error.
 * 0, -ETIMEDOUT, or another negative errno. */
int stream_wait(struct stream *s, short events);

/* GET /v1/stream and the answer. */
int stream_upgrade(struct stream *s, const char *token, struct failure *ret_failure);

/* The failure of curl_easy_perform. */
int stream_failure_connect(struct stream *s, CURLcode code, struct failure *ret_failure);

/* The time ran out after the connection was there. */
int stream_failure_timeout(struct stream *s, struct failure *ret_failure);

/* The stream ended (error 0) or failed (negative errno) before the answer was complete.
 * answered: bytes of one had come. */
int stream_failure_end(struct stream *s, int error, bool answered, struct failure *ret_failure);

/* What came is not HTTP: its first bytes. */
int stream_failure_not_http(struct stream *s, struct bytes start, struct failure *ret_failure);

/* A complete answer other than the 101 wanted. reason: what its body says, escaped, or "". */
int stream_failure_status(struct stream *s, unsigned status, const char *reason,
                          struct failure *ret_failure);
