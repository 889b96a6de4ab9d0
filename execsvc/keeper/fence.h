/* The fence of a workspace, a file in its directory: no command is started there until somebody
 * lifts it, by whichever keeper. */
#pragma once

#include <jansson.h>

/* Fences that are listed. */
#define FENCES_LISTED_MAX 100

/* {"why", "since": seconds}, or NULL: there is none. What cannot be read is one, too. */
json_t *fence_read(int directory);

/* -errno: it is not on record. */
int fence_write(int directory, const char *why);

/* -ENOENT. */
int fence_remove(int directory);

/* An array of {"workspace": its directory's name, "why", "since"}. NULL: no memory. */
json_t *fences_list(int workspaces);
