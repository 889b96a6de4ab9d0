/* st_ino in a joined mount. A service's own numbers are (slot << 40 | number), and each service has
 * slots of its own: here each (service, slot) gets a slot of the joined mount's, for ever. They are
 * in one file of this user, which every joined mount reads and appends to: a record's place is its
 * slot, so that none is ever given twice. All functions are for the loop; the file is local and
 * small, and is written to once for each workspace ever seen. */
#pragma once

#include <stdint.h>

#include "base/failure.h"

/* Of one service: stops one that makes slots up from taking them all. Above, numbers are hashed
 * into slots that nobody is given, where they are no longer told apart for certain. */
#define SLOTS_PER_SERVICE_MAX 65536

struct slots;

/* path: absolute, or NULL: the user's own file. What cannot be opened is a warning in the log, and
 * slots are then given for the life of this mount. -ENOMEM. */
int slots_open(const char *path, struct slots **ret);
void slots_free(struct slots *s);

/* A number as this service has it, as the joined mount shows it. */
uint64_t slots_number(struct slots *s, const uint8_t service_id[16], uint64_t number);
