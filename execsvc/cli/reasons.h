/* What is missing and why, where several are missing for one reason. */
#pragma once

#include <jansson.h>

/* Calls tell for each reason that `why` finds in the object's values, in their order, with the
 * names of all that have it, commas between. NULL from why: it is left out. Names that do not fit
 * a line are cut. */
void reasons_each(const json_t *object, const char *(*why)(const json_t *value),
                  void (*tell)(void *context, const char *names, const char *reason),
                  void *context);
