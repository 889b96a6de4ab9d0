/* Connections that come by a socket that listens. */
#pragma once

#include "base/failure.h"
#include "server/server.h"
#include "server/sockets.h"
#include "server/tls.h"

/* Un-upgraded connections per listener; when one more comes the oldest is dropped. Stops
 * half-open connections from using up descriptors and memory (80 KiB each in a TLS handshake)
 * without locking out anybody. */
#define LISTENER_PENDING_MAX 512
#define LISTENER_PENDING_MIN 16

/* Takes *fd, which listens, and accepts from it from the next turn of the loop on; logs the line
 * "listening on URL". url is copied; tls: for https, borrowed. -ENOMEM. */
int listener_open(struct server *s, enum listener_kind kind, const char *url, int *fd,
                  struct tls *tls);

/* Stops accepting everywhere. Listeners live on until listener_free_all, for the connections that
 * came from them. */
void listener_stop_all(struct server *s);
void listener_free_all(struct server *s);

struct listener *listener_first(struct server *s);
struct listener *listener_next(struct listener *l);

enum listener_kind listener_kind(const struct listener *l);
const char *listener_url(const struct listener *l);

/* Connections from l that have not upgraded, oldest first. */
struct connection_list *listener_pending(struct listener *l);
void listener_pending_changed(struct listener *l, int change);
unsigned listener_pending_count(const struct listener *l);
