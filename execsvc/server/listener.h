/* Sockets that accept connections: unix, https, http on loopback. */
#pragma once

#include "base/failure.h"
#include "server/server.h"
#include "server/tls.h"

enum listener_kind { LISTENER_UNIX, LISTENER_HTTPS, LISTENER_HTTP };

/* Un-upgraded connections per listener; when one more comes the oldest is dropped. Stops
 * half-open connections from using up descriptors and memory (80 KiB each in a TLS handshake)
 * without locking out anybody. */
#define LISTENER_PENDING_MAX 512
#define LISTENER_PENDING_MIN 16

/* Opens the sockets of a URL and accepts from the next turn of the loop on; logs the line
 * "listening on URL" for each. unix: a missing directory is made, 0700; a socket that nobody
 * listens on is replaced. tls: for https, borrowed. Failures name the URL:
 *   -EADDRINUSE   somebody else listens there       -EEXIST   the path is no socket
 *   -EINVAL       the URL, or http beyond loopback; and those of the system calls. */
int listener_open(struct server *s, const char *url, struct tls *tls, struct failure *ret_failure);

/* As listener_open for "unix:path", unless a listener of this path exists. */
int listener_open_path(struct server *s, const char *path, struct failure *ret_failure);

/* Stops accepting everywhere and removes our unix sockets' names. Listeners live on until
 * listener_free_all, for the connections that came from them. */
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
