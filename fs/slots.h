/* st_ino in a joined mount. A service's own numbers are (slot << 40 | number), and each service has
 * slots of its own: here each (service, slot) gets a slot of the joined mount's, for ever. They are
 * in one file of this user, which every joined mount reads and appends to: a record's place is its
 * slot, so that none is ever given twice. All functions are for the loop; the file is local and
 * small, and is written to once for each workspace ever seen.
 *
 * A service is known by the URL that the user gave and by what it says of itself. By the latter
 * alone, one that says another's ID would be given that one's numbers. */
#pragma once

#include <stdint.h>

#include "base/failure.h"

/* Of one URL: stops a service that makes up slots, or another ID at each connection, from taking
 * them all. Above, numbers are hashed into slots that nobody is given, where they are no longer
 * told apart for certain. */
#define SLOTS_PER_URL_MAX 65536

struct slots;

struct slots_service {
    uint8_t url[8], id[8]; /* digests: of the URL, and of both */
};

/* -EIO: there is no digest. */
int slots_service_of(const char *url, const uint8_t service_id[16], struct slots_service *ret);

/* path: absolute, or NULL: the user's own file. What cannot be opened is a warning in the log, and
 * slots are then given for the life of this mount. -ENOMEM. */
int slots_open(const char *path, struct slots **ret);
void slots_free(struct slots *s);

/* A number as this service has it, as the joined mount shows it. */
uint64_t slots_number(struct slots *s, const struct slots_service *of, uint64_t number);
