/* What the keeper's confinement needs for policies with a list of hosts: each such workspace is
 * handed to the process that has the proxy (egress/supervisor.h). */
#pragma once

#include "confine/confinement.h"
#include "egress/supervisor.h"

/* Where commands find it, on their own loopback. */
#define PROXY_PORT 3128

/* The supervisor is borrowed for as long as there are cells. */
struct confinement_egress proxy_for(struct supervisor *supervisor);
