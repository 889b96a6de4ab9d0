/* Unix sockets by path, of any length. */
#pragma once

#include <sys/stat.h>

#include "base/failure.h"

/* Binds and listens on path: non-blocking, mode 0600, its directory made (0700) if missing. A
 * socket there that nobody listens on is replaced; two services that try at the same time
 * are kept apart. *ret_stat is the socket's name's. -EADDRINUSE: somebody listens; -EEXIST:
 * something else is there. */
int unix_path_listen(const char *path, int *ret_fd, struct stat *ret_stat,
                     struct failure *ret_failure);

/* Connects (blocking socket). Negative errno of connect(2); -ECONNREFUSED and -ENOENT: nobody
 * listens. */
int unix_path_connect(const char *path, int *ret_fd);

/* The same to a socket of SOCK_SEQPACKET, non-blocking: -EAGAIN when too many wait there already.
 */
int unix_path_connect_packets(const char *path, int *ret_fd);
