/* Nothing that the driver needs may be reached through its own mount. */
#pragma once

#include "base/failure.h"
#include "client/client.h"
#include "config/config.h"

/* -ELOOP: the file (NULL: none), what it is, lies under the mountpoint. */
int outside_check(const char *mountpoint, const char *what, const char *file,
                  struct failure *ret_failure);

/* The same of all that these name. */
int outside_files(const char *mountpoint, const struct client_settings *s,
                  struct failure *ret_failure);

/* -ELOOP: the service of this machine would come to the mount when it goes to its own files, and
 * wait for itself. Asks the service. */
int outside_root(struct client *client, const char *url, const char *mountpoint,
                 struct failure *ret_failure);
