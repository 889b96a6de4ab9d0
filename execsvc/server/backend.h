/* What runs the file requests of one connection on the workers. It outlives the connection until
 * the last of them is done; only then are the connection's handles closed. */
#pragma once

#include "server/server.h"

struct backend;

/* grant: of its client. -ENOMEM. */
int backend_new(struct server *s, struct connection *c, struct grant *grant, struct backend **ret);

struct lane *backend_lane(const struct backend *b);

/* What its requests work on. */
struct file_session *backend_files(const struct backend *b);

/* The connection is gone. */
void backend_close(struct backend *b);
