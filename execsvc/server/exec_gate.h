/* Where commands wait until what was written on mounts has arrived: whoever starts one must find in
 * it what programs there have been told is written. Nobody is asked, and nothing waits, unless a
 * mount may be ahead of the service (SYNC). */
#pragma once

#include "exec/exec_service.h"

/* Takes the call of an EXEC, as exec_service_start does. */
void exec_gate_enter(struct exec_service *exec, struct subscribers *subscribers, struct call *call,
                     const struct wire_message *request);
