/* What a process of the gateway's takes upon itself before it reads the first byte of its client:
 *
 *   its user        nobody, where it may change it
 *   capabilities    none, and none can be gained
 *   gateway-landlock   no file, no TCP, no socket of others', no signal to them
 *   gateway-seccomp    no program, process or socket; what it talks to it has been given
 *   memory, files      bounds, so that one request cannot take the machine's
 *
 * So whoever takes it over by what they send has the service's wire, as themselves, and nothing
 * else. The last two but memory can be taken away for tests by BERTH_WITHOUT. */
#pragma once

#include "base/failure.h"
#include "config/config.h"

/* Memory of one that is not sanitised. */
#define GATEWAY_MEMORY_MAX (512u << 20)

int gateway_confine(enum config_confine mode, struct failure *ret_failure);

/* The parent's, which reads nothing from the network: the capabilities that gateway_confine needs.
 */
int gateway_confine_parent(struct failure *ret_failure);
