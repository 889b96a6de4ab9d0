/* multipart/form-data (RFC 7578) as it comes in: parts one after the other, whose content is handed
 * on as it arrives. Pure; memory is bounded by MULTIPART_HEADER_MAX. */
#pragma once

#include "base/buffer.h"

/* A part's header. Stops memory use by one without end. */
#define MULTIPART_HEADER_MAX 16384
#define MULTIPART_BOUNDARY_MAX 70

struct multipart_part {
    const char *name;     /* of the form's field; "" if it has none */
    const char *filename; /* NULL: none */
};

/* A negative errno ends it, and is what multipart_feed answers. Views last for the call. */
struct multipart_events {
    int (*begin)(void *context, const struct multipart_part *part);
    int (*content)(void *context, struct bytes data);
    int (*end)(void *context);
    void *context;
};

struct multipart;

/* type: the Content-Type, which has the boundary. -EINVAL: it is not this type, or has none.
 * -ENOMEM. */
int multipart_new(const char *type, const struct multipart_events *events, struct multipart **ret);
void multipart_free(struct multipart *m); /* NULL is allowed */
DEFINE_CLEANUP(struct multipart *, multipart_free);
#define _cleanup_multipart_ _cleanup_(multipart_free_pointer)

/* -EBADMSG: it is no such body; -EMSGSIZE: a header is too long; -ENOMEM; those of the events.
 * After a failure it takes nothing more. */
int multipart_feed(struct multipart *m, struct bytes data);

/* True when the last boundary has come: the body may end. What follows it is ignored. */
bool multipart_is_complete(const struct multipart *m);
