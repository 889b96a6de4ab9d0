/* Thread IDs and directory names. A thread ID is any non-empty byte string of at most
 * WIRE_THREAD_ID_MAX bytes; its directory name is the only other form it ever takes.
 *
 * The mapping is injective. Plain IDs ([A-Za-z0-9_-][A-Za-z0-9._-]*, at most 255 bytes) are
 * their own names. Every other byte becomes %XX (upper-case hexadecimal), and also a leading
 * dot. Names that would pass 255 bytes are a readable prefix (whole escapes only), '~', and
 * the lower-case hexadecimal SHA-256 of the ID. '~' and '%' are never plain, so the three
 * forms cannot meet. A name is never "." or "..", never starts with a dot, is valid UTF-8
 * (it is ASCII), has no '/' or NUL, and is at most 255 bytes. */
#pragma once

#include "base/bytes.h"

#define THREAD_ID_MAX 1024
#define THREAD_NAME_MAX 255

/* Writes the name of id and a NUL. 0; -EINVAL for an empty or too long ID; -ENOMEM. */
int thread_id_to_name(struct bytes id, char ret_name[THREAD_NAME_MAX + 1]);

/* The ID of a name, if the name alone tells it: its length (<= THREAD_ID_MAX) and ret_id.
 * -EINVAL: no ID has this name. -ENODATA: a shortened name, valid in form; the ID has to be
 * looked up where it was stored. */
int thread_id_from_name(struct bytes name, uint8_t ret_id[THREAD_ID_MAX]);

/* True when name is what thread_id_to_name(id) writes; false without memory for the hash. */
bool thread_id_has_name(struct bytes id, struct bytes name);
