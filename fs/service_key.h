/* What a service is known by on this machine, for what is kept of it: the URL that the user gave,
 * and what it says of itself. One that says another's ID finds and leaves nothing of that one's. */
#pragma once

#include <stdint.h>

#define SERVICE_KEY_SIZE 32

/* service_id NULL: of the URL alone. -ENOMEM, -EIO. */
int service_key(const char *url, const uint8_t service_id[16],
                uint8_t ret[static SERVICE_KEY_SIZE]);
