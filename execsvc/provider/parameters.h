/* What a user says of a provider: NAME[:KEY=VALUE[,KEY=VALUE…]], and KEY=VALUE by itself. */
#pragma once

#include <jansson.h>

#include "provider/profile.h"

/* Splits "docker:image=debian:12,memory=1G" into the name and an object of strings; a comma in a
 * value is doubled. -EINVAL, with a sentence. */
int parameters_split(const char *spec, char **ret_name, json_t **ret_given,
                     struct failure *ret_failure);

/* Adds KEY=VALUE, taking the value as it is. -EINVAL. */
int parameters_add(json_t *given, const char *word, struct failure *ret_failure);

/* parameters_check: whether one may have this value. parameters_complete: what a profile's
 * parameters are, given these: those that are left out are their defaults, or "". -EINVAL: unknown;
 * not what the profile's pattern wants; missing although it wants something; or such as no vendor's
 * program may get: more than PROFILE_TEXT_MAX bytes, control characters, not UTF-8, or beginning
 * with '-', which it would take for an option. */
int parameters_check(const struct profile *p, const char *key, const char *value,
                     struct failure *ret_failure);
int parameters_complete(const struct profile *p, const json_t *given, json_t **ret,
                        struct failure *ret_failure);
