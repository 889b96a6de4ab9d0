/* Sandboxes that a provider has of this user, and that no workspace here belongs to. */
#pragma once

#include "provider/sandbox.h"

/* *ret_found: an array of their names, owned. `without`, or NULL: a place that is not counted.
 * *ret_unsure: its text is not empty while one of them may be a workspace's that is being made, and
 * says so. Nothing is found (-EBADMSG) while the file of any place cannot be read. */
int orphans_find(const struct profile *p, const json_t *parameters, const struct place *without,
                 json_t **ret_found, struct failure *ret_unsure, struct failure *ret_failure);

int orphans_destroy(const struct profile *p, json_t *parameters, const char *name,
                    struct failure *ret_failure);

/* After the destruction of what place p says. 0: there is none. -EUCLEAN: what the provider calls
 * it was never learned, so that nothing may have been destroyed; the failure says what to do. */
int orphans_check(const struct profile *profile, const struct place *p,
                  struct failure *ret_failure);
