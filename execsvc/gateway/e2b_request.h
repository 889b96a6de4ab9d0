/* What all requests of E2B's dialect have in common: which workspace, who asks, which path, and the
 * form of failures. */
#pragma once

#include "gateway/connect_rpc.h"
#include "gateway/e2b_shapes.h"
#include "gateway/exchange.h"
#include "gateway/path.h"

/* What we tell of ourselves: new enough for everything that clients ask for. */
#define E2B_VERSION "0.6.4"

/* Where clients take their sandbox's home to be. It is the workspace's root. */
#define E2B_HOME PATH_E2B_HOME

/* A label of a sandbox: variables of all its commands, as JSON of strings. */
#define E2B_ENVIRONMENT_LABEL "e2b.envs"

/* A request's JSON: more than the longest command line, and input that is given in one piece. */
#define E2B_BODY_MAX (8u << 20)

/* The workspace that the request is about, from E2b-Sandbox-Id, or else from a Host of
 * PORT-ID.DOMAIN; empty: it does not say. */
struct bytes e2b_workspace(struct exchange *x);

/* A label of those that were made by this dialect: others are nobody's to list, and end, by it. */
#define E2B_SANDBOX_LABEL "e2b.sandbox"

/* Whether it is as whom the caller wants this: "user" or "root", which are both the service's own
 * user, or nobody in particular. -EINVAL: who asks for another one wants less than that. */
int e2b_check_user(struct exchange *x, struct failure *ret_failure);

/* The service as this caller, and the workspace. Without any token, as the SDK's debug mode comes,
 * the workspace is made if it is not there and may be, but not by a GET, which a page of the web
 * can make a browser send. */
int e2b_enter(struct exchange *x, struct upstream **ret, struct bytes *ret_workspace,
              struct failure *ret_failure);

/* As e2b_enter, and its tree. */
int e2b_open_tree(struct exchange *x, struct tree **ret, struct failure *ret_failure);

/* A client's path as one from the workspace's root: what is relative, or begins with ~, E2B_HOME or
 * PATH_WORKSPACE. A view into path. -ENXIO: it is somewhere else in the sandbox, which only
 * commands reach. */
int e2b_path(const char *path, struct bytes *ret);

/* As e2b_path, which is answered as not found, or (writes) as a bad argument, with the reason. */
int e2b_take_path(const char *path, bool writes, struct bytes *ret, struct failure *ret_failure);

/* A path from the root, as clients see it: in b, with a NUL behind it. -ENOMEM. */
int e2b_show_path(struct buffer *b, struct bytes path);

/* The JSON of a unary call, or (stream) of the frame. To be freed. */
int e2b_read(struct exchange *x, bool stream, json_t **ret, struct failure *ret_failure);

/* The entry at a place, as JSON. NULL with a failure of -ENOMEM, or of the service. */
json_t *e2b_entry_at(struct tree *t, const struct place *p, struct failure *ret_failure);

/* --- streams ---------------------------------------------------------------------------------- */

struct e2b_stream_out {
    struct exchange *x;
    struct buffer json; /* to be filled for e2b_send */
    struct buffer frame;
};
void e2b_stream_release(struct e2b_stream_out *s);
#define _cleanup_e2b_stream_ _cleanup_(e2b_stream_release)

/* Sends what is in json as a frame, and empties it. -ECONNABORTED, -ENOMEM. */
int e2b_send(struct e2b_stream_out *s, unsigned flags);

/* The last frame: a failure, if error is negative. */
int e2b_end(struct e2b_stream_out *s, int error, const char *text);
