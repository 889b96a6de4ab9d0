/* Parts of listings, which both ends cut in the same way: a name more or less changes the part that
 * it is in, and those behind stay what they were. A part is DIRENT elements, as in a list, that
 * name no node: so it is the same in every session, and its digest says what it is. */
#pragma once

#include <stdbool.h>

#include "wire/wire.h"

#define PART_DIGEST_SIZE 32

/* Bytes of a part. With fewer, digests would be no less than what they stand for; with more than
 * the latter (and an entry), one change would bring too much. */
#define PART_SIZE_LEAST ((size_t)4096)
#define PART_SIZE_MOST ((size_t)32768)
#define PART_SIZE_MAX (PART_SIZE_MOST + 1024)

/* A part of so many bytes ends with the entry of that name, the last in it. */
bool part_ends(struct bytes name, size_t size);

/* A copy of `elements` that names no nodes, and (ret_nodes) these: TREE_PART.nodes. Both are
 * appended. -ENOMEM; -EBADMSG: they are no DIRENTs. */
int part_take_nodes(struct bytes elements, struct buffer *ret_elements, struct buffer *ret_nodes);

/* The opposite, in place; *ret_count elements. -EBADMSG: there are more elements or more nodes;
 * nothing is to be made of them then. */
int part_put_nodes(uint8_t *elements, size_t len, struct bytes nodes, uint32_t *ret_count);

/* Steps through nodes: those from *ret_first, so many of them; *at starts at 0. False at the end,
 * or where there can be no more: a part does not have so many entries. */
bool part_next_nodes(struct bytes nodes, size_t *at, uint64_t *ret_first, uint32_t *ret_count);

/* -EIO */
int part_digest(struct bytes elements, uint8_t ret[PART_DIGEST_SIZE]);
