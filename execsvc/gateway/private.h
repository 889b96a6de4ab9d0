/* What the files that serve one connection share. */
#pragma once

#include "gateway/conversation.h"
#include "gateway/counters.h"
#include "gateway/exchange.h"
#include "gateway/routes.h"
#include "stream/http_body.h"

#define CONVERSATION_INPUT_SIZE 65536

/* Connections to the service of one HTTP connection, each for another credential. Stops a client
 * that has many from holding as many. */
#define CONVERSATION_UPSTREAMS_MAX 4

struct conversation_upstream {
    char *token; /* NULL: none was given */
    struct upstream *upstream;
    uint64_t used; /* counts up */
};

struct conversation {
    const struct conversation_options *options;
    int fd;
    size_t input_at, input_len; /* received and not taken */
    struct conversation_upstream upstreams[CONVERSATION_UPSTREAMS_MAX];
    uint64_t last_used;
    bool closing; /* no other request is read */
    uint8_t input[CONVERSATION_INPUT_SIZE];
};

/* A body that nobody has read is read for another request's sake, unless it is longer. */
#define EXCHANGE_UNREAD_MAX (256u << 10)

struct exchange {
    struct conversation *conversation;
    struct http_reader *reader;
    const struct http_request *request;
    const struct route *route;
    struct buffer params[ROUTE_PARAMS_MAX]; /* decoded, and a NUL */
    size_t param_count;
    struct buffer query; /* decoded: name, NUL, value, NUL … */
    size_t query_count;
    struct buffer tags[2]; /* exchange_tags: of If-Match, If-None-Match */
    struct http_body body;
    bool continued;    /* the client has been told to send the body */
    uint64_t received; /* of the body */
    char *token;       /* exchange_set_token */
    bool token_set;
    int unauthorized; /* status by which the service refused the caller, or 0 */
    unsigned retry_s;
    enum exchange_effect effect;
    /* the answer */
    struct buffer fields;
    bool cache_control;    /* is one of them */
    struct buffer head;    /* not sent yet */
    struct buffer content; /* not sent yet */
    int status;            /* once it has begun */
    bool chunked;
    bool bodyless;
    uint64_t left; /* of its size */
    uint64_t sent;
    bool ended;
    int broken; /* a negative errno: nothing more can be sent */
};

/* --- the bytes (conversation.c) -------------------------------------------------------------- */

/* Waits for more input, at most so long. -ECONNABORTED at the end, -ETIMEDOUT, -ENOBUFS: the
 * buffer is full. */
int conversation_receive(struct conversation *c, int timeout_ms);
struct bytes conversation_input(const struct conversation *c);
void conversation_take(struct conversation *c, size_t len);

/* Sends all. -ECONNABORTED. */
struct iovec;
int conversation_send(struct conversation *c, struct iovec *parts, size_t count);

/* --- one request ----------------------------------------------------------------------------- */

/* Takes apart the target: the path's route and parameters, the query. 0; 1: refused, answered. */
int exchange_begin_request(struct exchange *x, struct failure *ret_failure);
/* -EINVAL: it says in two ways who the caller is, who might be somebody else by each. */
int exchange_check_credentials(const struct exchange *x, struct failure *ret_failure);
/* Whether its route looks at all that it says, and each is said once that must be. */
int exchange_admit(struct exchange *x, struct failure *ret_failure);
void exchange_release(struct exchange *x);

/* After the handler: the end of an answer, or the problem. */
void exchange_conclude(struct exchange *x, int result, const struct failure *failure);
