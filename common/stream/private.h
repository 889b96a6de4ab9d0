/* What the files of this folder share about one stream. */
#pragma once

#include "base/buffer.h"
#include "stream/bridge.h"
#include "stream/stream.h"
#include "stream/url.h"

/* Limits of the answer to the upgrade request. They stop a peer that is no service (or a
 * hostile one) from filling our memory before anything is agreed. */
#define UPGRADE_HEADER_MAX 16384
#define UPGRADE_BODY_MAX 4096

/* What moves the bytes: a socket of this machine (stream.c) or libcurl (network.c). */
struct stream_carrier {
    ssize_t (*read)(struct stream *s, void *buffer, size_t len); /* as stream_read */
    ssize_t (*write)(struct stream *s, const void *data, size_t len);
    void (*opened)(struct stream *s); /* NULL, or: the upgrade is done */
    /* NULL, or as stream_failure_end, for what it alone knows. 0: nothing. */
    int (*explain_end)(struct stream *s, int error, bool answered, struct failure *ret_failure);
    void (*close)(struct stream *s);
};

struct stream {
    const struct stream_carrier *carrier;
    void *network; /* network.c's */
    int fd;
    struct bridge *bridge; /* exec */
    char *url;
    struct stream_url parts; /* points into url */
    bool has_token;
    bool has_client_cert;
    bool has_client_key;
    bool has_ca;
    bool abandoned;
    bool quiet;           /* of the options, or it has been said that we wait */
    bool answering;       /* exec: bytes of an answer have come */
    uint64_t start_ns;    /* of the set-up */
    uint64_t deadline_ns; /* the same */
    uint32_t timeout_ms;
    uint64_t setup_ns;
    struct buffer early; /* read behind the upgrade's answer */
    bool corked;         /* see stream_expect */
    int end_error;       /* negative errno that the stream ended with, 0 at end of file */
};

/* Milliseconds until the deadline of the set-up, 0 when it has passed. */
int stream_time_left_ms(const struct stream *s);

/* exec: it has begun to answer, so that the rest must come soon. */
void stream_note_answer(struct stream *s);

/* Waits for `events` on the stream until the deadline, passing on the command's standard error.
 * 0, -ETIMEDOUT, or another negative errno. */
int stream_wait(struct stream *s, short events);

/* Connects an http or https stream: sets carrier, network and fd. In network.c, or in
 * without_network.c, which refuses (-EPROTONOSUPPORT). */
int stream_open_network(struct stream *s, const struct stream_options *options,
                        struct failure *ret_failure);

/* GET /v1/stream and the answer. */
int stream_upgrade(struct stream *s, const struct stream_options *options,
                   struct failure *ret_failure);

int stream_failure_memory(struct stream *s, struct failure *ret_failure);

/* Connecting to a unix socket failed with this errno. */
int stream_failure_unix(struct stream *s, int error, struct failure *ret_failure);

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
