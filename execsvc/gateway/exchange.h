/* One request being answered. A handler runs from the request's header to the answer's end and
 * blocks wherever it has to wait: its process serves one connection, and this request alone.
 *
 *   1. exchange_param, exchange_query, exchange_field, exchange_next …: what was asked
 *   2. exchange_upstream: the service, as this caller
 *   3. exchange_reply… or exchange_begin, exchange_write: the answer
 *
 * or it fails: with an errno, which becomes a problem document (problem.h), or by exchange_refuse
 * with a status of its own. After the answer has begun a failure cuts the connection, so that the
 * client sees that it is not whole. */
#pragma once

#include <jansson.h>

#include "base/buffer.h"
#include "base/failure.h"
#include "gateway/upstream.h"

struct exchange;

/* A route's handler (routes.def). 0: it has answered. A negative errno with *ret_failure: the frame
 * answers, unless exchange_refuse has. */
typedef int exchange_handler(struct exchange *x, struct failure *ret_failure);

/* --- what was asked -------------------------------------------------------------------------- */

/* Of the request line; GET for a HEAD too. */
const char *exchange_method(const struct exchange *x);
bool exchange_is_head(const struct exchange *x);

/* The n-th {…} of the route's pattern, percent-decoded: may hold any byte but NUL. */
struct bytes exchange_param(const struct exchange *x, size_t n);
const char *exchange_param_string(const struct exchange *x, size_t n); /* NUL-terminated */

/* A parameter of the query, decoded (+ is a space), NULL when absent. Of several the first;
 * of those that must not be given twice there is one. */
const char *exchange_query(const struct exchange *x, const char *name);

/* The n-th of this name; NULL: there are no more. */
const char *exchange_query_nth(const struct exchange *x, const char *name, size_t n);

/* A number from the query. 0 (*ret untouched when absent), or -EINVAL. */
int exchange_query_u64(struct exchange *x, const char *name, uint64_t min, uint64_t max,
                       uint64_t *ret, struct failure *ret_failure);

/* A header field, by its name in lower case; NULL when absent. */
const char *exchange_field(const struct exchange *x, const char *name);

/* All values of If-Match or If-None-Match (its name in lower case) as one list, NULL when there is
 * none. -EINVAL: it is no list of tags. */
int exchange_tags(struct exchange *x, const char *name, const char **ret,
                  struct failure *ret_failure);

/* The n-th field; false: there are no more. */
bool exchange_field_at(const struct exchange *x, size_t n, const char **ret_name,
                       const char **ret_value);

/* Whether there is a body, and how long it is; UINT64_MAX: not known before it ends. */
bool exchange_has_body(const struct exchange *x);
uint64_t exchange_body_size(const struct exchange *x);

/* More of the body: 1 and a view that lasts until the next call; 0 at its end. -ECONNABORTED: the
 * client has gone, -ECANCELED: it sends nothing, which was answered, -EBADMSG: these are no chunks.
 */
int exchange_next(struct exchange *x, struct bytes *ret, struct failure *ret_failure);

/* All of it, of at most max bytes: -EMSGSIZE. */
int exchange_read_all(struct exchange *x, size_t max, struct buffer *ret,
                      struct failure *ret_failure);

/* As JSON, an object of at most max bytes, which the caller frees. Empty is {}. -EINVAL. */
int exchange_read_json(struct exchange *x, size_t max, json_t **ret, struct failure *ret_failure);

/* --- the service ----------------------------------------------------------------------------- */

/* A connection to the service as this caller, kept for the next requests with the same credential;
 * borrowed. It ends its waiting when the client hangs up. -EACCES: the service lets nobody in with
 * this. */
int exchange_upstream(struct exchange *x, struct upstream **ret, struct failure *ret_failure);

/* One more, which is the handler's to free. Not before exchange_upstream has answered. */
int exchange_new_upstream(struct exchange *x, struct upstream **ret, struct failure *ret_failure);

/* With another credential than the request's own fields have: before exchange_upstream. token is
 * copied; NULL: none. -ENOMEM. */
int exchange_set_token(struct exchange *x, const char *token);

/* What a failure from now on says about what has happened: nothing (at first), the whole of it, or
 * nobody knows. A handler sets it around calls that change something: to UNKNOWN before, back after
 * an answer. Failures by which the connection to the service is lost are UNKNOWN by themselves in
 * routes that change something. */
enum exchange_effect { EXCHANGE_EFFECT_NONE, EXCHANGE_EFFECT_DONE, EXCHANGE_EFFECT_UNKNOWN };
void exchange_set_effect(struct exchange *x, enum exchange_effect effect);

/* --- the answer ------------------------------------------------------------------------------ */

/* A header field of the answer; before it begins. A value with bytes that no field can hold is
 * -EINVAL. -ENOMEM. */
int exchange_add_field(struct exchange *x, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define EXCHANGE_STREAM UINT64_MAX

/* Status and header. type: of the content, NULL: there is none (204, 304). size: how many bytes
 * follow, or EXCHANGE_STREAM. -ECONNABORTED: the client has gone. */
int exchange_begin(struct exchange *x, int status, const char *type, uint64_t size);

/* Content, which is sent when enough is there; waits while the client does not read. Nothing is
 * sent for HEAD. -ECONNABORTED: it has gone, or does not read for CONVERSATION_STALL_S. */
int exchange_write(struct exchange *x, const void *data, size_t len);

/* Sends what is there. */
int exchange_flush(struct exchange *x);

bool exchange_has_begun(const struct exchange *x);

/* The whole answer. */
int exchange_reply(struct exchange *x, int status, const char *type, const void *data, size_t len);
int exchange_reply_empty(struct exchange *x, int status);
int exchange_reply_json(struct exchange *x, int status, json_t *value); /* takes value; -ENOMEM */

/* A problem document of this status, for failures that are none of an errno's; returns -ECANCELED,
 * for a handler to return. */
int exchange_refuse(struct exchange *x, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* No other request is read from this connection. */
void exchange_close(struct exchange *x);

/* The client's socket, to be watched for hang-up. */
int exchange_client_fd(const struct exchange *x);
