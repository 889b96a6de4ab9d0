/* Attributes that the service has told with its answer to a change of this mount's, until the
 * kernel asks: it takes its own to be out of date after each.
 *
 * They are right as long as they are found here. They were told while changes were reported, and
 * every change of the file, of others or of ours, takes them away, as does the end of its last
 * inode, with which reports may end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/wire.h"

struct inode;
struct inode_table;

/* Files of which they are kept; one that falls on the place of another makes it go. Bounds memory.
 */
#define ATTRS_MAX 512

/* attr is right as of now. */
void attrs_note(struct inode_table *t, const struct wire_attr *attr);

/* NULL: not known. Borrowed, until anything changes. */
const struct wire_attr *attrs_get(const struct inode_table *t, uint64_t ino, uint64_t generation);

/* No other name of the file can have been changed, or its own, without our knowing that it was of
 * this file. */
bool attrs_are_sure(const struct inode *i, const struct wire_attr *attr);

/* A file has changed, or was read at the service, which sets the time of the last access. */
void attrs_changed(struct inode_table *t, uint64_t ino, uint64_t generation);
/* Anything may have. */
void attrs_forget(struct inode_table *t);
