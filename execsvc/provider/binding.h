/* Which engine, cluster or account a sandbox is made with. Vendors' programs take that from the
 * environment and from settings that are changed all day ("current context"); so what it was is
 * kept in the place, and every later command has it again. A profile says what there is of it:
 *
 *   "default_from" of a parameter   a command that prints what is meant where nobody says it
 *   "bound_to"."environment"        variables that are kept as they are
 *   "bound_to"."secrets"            such whose values are not kept, but known again */
#pragma once

#include "places/place.h"
#include "provider/profile.h"

/* Runs "default_from" of parameters that are "", and sets them. What fails, or prints nothing,
 * leaves it "". -EINVAL: what it prints the parameter may not be. */
int binding_ask(const struct profile *p, json_t *parameters, struct failure *ret_failure);

/* Sets the environment and the secrets of a new place, which has its name, from ours. -EINVAL: a
 * variable is such as cannot be kept. */
int binding_take(const struct profile *p, struct place *place, struct failure *ret_failure);

/* The first of the secrets that is now another one than when the sandbox was made; NULL: none. */
const char *binding_changed_secret(const struct place *place);

/* "context=lab, DOCKER_HOST is not set", for people; "" where nothing is known. Owned. NULL: no
 * memory.
 */
char *binding_describe(const struct profile *p, const struct place *place);
