/* JSON as the routes speak it: what the wire has, and what requests ask for. */
#pragma once

#include <jansson.h>

#include "base/failure.h"
#include "gateway/exchange.h"
#include "wire/wire.h"

/* New references, NULL: no memory. A time is RFC 3339 to the millisecond, null for 0. */
json_t *document_of_time(const struct wire_time *t);
json_t *document_of_bytes(struct bytes b); /* null when they are no UTF-8 */
json_t *document_of_workspace(const struct wire_workspace *w);
json_t *document_of_snapshot(const struct wire_snapshot *s);

/* -EINVAL: body has a member that is none of those, whose names end with NULL; such a mistake must
 * not be taken for a request for less. */
int document_check(const json_t *body, const char *const *names, struct failure *ret_failure);

/* Members of a request's body: absent, they leave *ret as it is. -EINVAL.
 * A time to live is in seconds, or null for never. Labels are an object of strings, or of null if
 * that may take one away. */
int document_string(const json_t *body, const char *name, const char **ret,
                    struct failure *ret_failure);
int document_bool(const json_t *body, const char *name, bool *ret, struct failure *ret_failure);
int document_life(const json_t *body, const char *name, bool *ret_given, uint64_t *ret_ms,
                  struct failure *ret_failure);
int document_labels(const json_t *body, bool nulls, char **ret, struct failure *ret_failure);

/* A page: {"NAME": items, "next": …}; next is what `after` of the next page is, null after the
 * last. Takes items. */
json_t *document_page(const char *name, json_t *items, bool more, const char *next);

/* The workspace that the first parameter names: a thread ID, or with ?by=name a directory's name.
 * -EINVAL. */
int document_key(struct exchange *x, struct bytes *ret_key, uint32_t *ret_flags,
                 struct failure *ret_failure);
