/* Finding a connection that is there already, and starting a holder of one.
 *
 * In this order: the mount that the caller stands in, the holder of this identity, another mount of
 * it; then, if connections are to be held (cli.settings.persist_s; by default those that are not
 * unix sockets on this machine), a holder is started; else it is a connection of our own. */
#pragma once

#include <stdbool.h>

#include "base/failure.h"

/* How long a holder waits for something to do, if nobody says otherwise. */
#define WARM_PERSIST_DEFAULT_S 600

/* A control socket, as found in the directory of them. */
struct warm_socket {
    char *path;
    bool mount; /* else a holder's */
};

struct warm_list {
    struct warm_socket *sockets;
    size_t count;
};

/* Those of this identity, or (NULL) all; holders first. None is not a failure. */
int warm_list_read(const char *directory, const char *identity, struct warm_list *ret);
void warm_list_release(struct warm_list *l);
#define _cleanup_warm_list_ _cleanup_(warm_list_release)
