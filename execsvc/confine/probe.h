/* A measurement from inside, as a command's child would make it: what is measured is no promise of
 * ours but what the kernel says there. */
#pragma once

#include "confine/restraint.h"
#include "confine/sandbox.h"

/* Joins the sandbox (NULL: there is none; mounts: see sandbox_join), takes the restraint upon
 * itself and measures, in a child that ends. A negative errno and where it failed, a word of
 * restraint_step_name; -ETIMEDOUT: it did not answer. */
int probe_measure(const struct sandbox *sandbox, int mounts, const struct restraint *restraint,
                  struct attest_facts *ret, uint32_t *ret_step);
