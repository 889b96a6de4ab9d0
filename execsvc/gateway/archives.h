/* A workspace from an archive. */
#pragma once

#include "gateway/exchange.h"

/* Whether the request's body is one, by its Content-Type: application/x-tar, application/zstd,
 * application/gzip. Which compression it has is found out by looking. */
bool archives_is_one(const struct exchange *x);

/* Sends the WORKSPACE_CREATE, which is FROM_STREAM, and the body's files behind it. *ret: its
 * WORKSPACE. -EBADMSG: the archive is none; -EINVAL: one that leads out. Nothing is made then. */
int archives_import(struct exchange *x, const struct wire_message *create, struct wire_frame **ret,
                    struct failure *ret_failure);
