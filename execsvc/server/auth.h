/* Bearer tokens. Only their digests are kept, so that neither a core dump nor the time a
 * comparison takes tells a token. */
#pragma once

#include "base/bytes.h"
#include "base/failure.h"

struct auth;

/* token_file: see token_list_load, whose errors these are. */
int auth_new(const char *token_file, struct auth **ret, struct failure *ret_failure);
void auth_free(struct auth *a);

/* Is the value of an Authorization field ("Bearer TOKEN") one of ours? */
bool auth_check(const struct auth *a, struct bytes authorization);
