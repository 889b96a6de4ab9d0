/* For programs that make no connections over the network: in the place of network.c. */
#include <errno.h>

#include "stream/private.h"

int stream_open_network(struct stream *s, const struct stream_options *options,
                        struct failure *ret_failure)
{
    return failure_set(ret_failure, -EPROTONOSUPPORT,
                       "%s: this program makes no connections over the network", s->url);
}
