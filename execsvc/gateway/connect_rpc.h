/* The Connect protocol as far as clients of E2B's daemon use it: JSON, unary calls, and calls that
 * are answered by a stream of frames. Pure.
 *
 *   unary   POST application/json; failures are {"code":"not_found","message":…} with a status
 *   stream  POST application/connect+json: frames of u8 flags, u32 length (big-endian), JSON. One
 * in; out many, and a last one with END: {} or {"error":{"code":…,"message":…}} */
#pragma once

#include <jansson.h>

#include "base/buffer.h"

#define CONNECT_STREAM_TYPE "application/connect+json"

#define CONNECT_HEAD_SIZE 5
#define CONNECT_COMPRESSED 1u
#define CONNECT_END 2u

/* The word for a negative errno, or, if that is 0, for a status of HTTP. */
const char *connect_code(int error, int status);

/* Appends a frame. -ENOMEM; -EMSGSIZE: its length fits no u32. */
int connect_append_frame(struct buffer *b, unsigned flags, struct bytes json);

/* The one message of a request that is answered by a stream: a view into body. -EBADMSG: it is not
 * one whole frame, and nothing else; -EOPNOTSUPP: it is compressed. */
int connect_request_message(struct bytes body, struct bytes *ret);

/* "5000" as Connect-Timeout-Ms has it: at most 10 digits. 0 when text is NULL. -EINVAL. */
int connect_timeout_ms(const char *text, uint64_t *ret);
