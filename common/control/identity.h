/* Which connection is which: the names of control sockets. A name begins with a digest of all that
 * makes a connection what it is: the user, the URL, token, certificates and keys by content, and
 * the environment that leads to another peer (proxies, an agent's socket). So nobody is given the
 * connection of another identity, and one whose files have changed since is found no more.
 *
 *   RUNTIME/control/DIGEST       of a connection holder, at most one
 *   RUNTIME/control/DIGEST-PID   of a mount's driver */
#pragma once

#include <stdbool.h>

#include "config/config.h"

#define IDENTITY_SIZE 33 /* hexadecimal digits and NUL */

/* -ENOMEM; -EACCES, -ENOENT and others: a file cannot be read. */
int identity_of(const struct client_settings *s, char ret[static IDENTITY_SIZE],
                struct failure *ret_failure);

/* The directory of the sockets, which is made (0700) if missing and checked: only its owner can
 * have put anything there. -EPERM: it is not private. */
int identity_directory(char **ret, struct failure *ret_failure);

/* The path of a socket: pid 0: the holder's. -ENOMEM */
int identity_socket(const char *directory, const char *identity, pid_t pid, char **ret);

/* True when the socket at this path is of this identity. */
bool identity_matches(const char *identity, const char *path);
