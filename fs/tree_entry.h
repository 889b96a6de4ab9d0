/* Entries of a listing in few bytes: about 30 and the name, where a DIRENT takes 144. Most of what
 * the attributes of a file say is as in those of its directory, or as in most files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/wire.h"

/* What one entry takes at most. */
#define TREE_ENTRY_MAX 512

/* base, base_node: the directory's own. Returns the length. */
size_t tree_entry_pack(const struct wire_dirent *entry, uint64_t base_node,
                       const struct wire_attr *base, uint8_t ret[TREE_ENTRY_MAX]);

/* The opposite, with the same base. The name is borrowed from data. */
void tree_entry_unpack(const uint8_t *data, uint64_t base_node, const struct wire_attr *base,
                       struct wire_dirent *ret);

/* Parts of it alone. */
uint64_t tree_entry_cookie(const uint8_t *data);
struct bytes tree_entry_name(const uint8_t *data);
/* False: it has no attributes, nor outputs. */
bool tree_entry_identity(const uint8_t *data, const struct wire_attr *base, uint64_t *ret_ino,
                         uint64_t *ret_generation);
/* It has attributes, and they are of this file. */
bool tree_entry_is(const uint8_t *data, const struct wire_attr *base, uint64_t ino,
                   uint64_t generation);
