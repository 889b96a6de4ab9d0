/* What the kernel was told, with disconnected=serve: the attributes of each file that it holds, and
 * the texts of links. The kernel keeps attributes itself, but asks again for the time of the last
 * access of what was read; then this is what can be told when nobody else can.
 *
 * Attributes are here as long as they are right: a change, by others or by us, takes them away, and
 * so does the end of the inode; those of directories are kept, since all else is reached through
 * them. The text of a link never changes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/table.h"
#include "wire/wire.h"

struct inode;
struct inode_table;

/* Memory of the texts of links; what comes later is not known. Stops a walk over a tree that is
 * full of them from taking all memory. */
#define KNOWN_LINKS_MAX ((size_t)16 << 20)

/* Directories that are kept though the kernel has forgotten them. Bounds memory. */
#define KNOWN_DIRECTORIES_MAX 65536

struct known_files {
    bool wanted;
    struct table attrs; /* inode ID -> struct known_attr */
    size_t directories;
    struct table links; /* hash of identity -> struct known_link */
    size_t link_bytes;
};

/* From now on both are noted: about 180 bytes for each file that the kernel holds. */
void known_start(struct inode_table *t);

/* The kernel is told these, which are right until a change is reported. Without memory they are not
 * known later. */
void known_note_attr(struct inode_table *t, struct inode *i, const struct wire_attr *attr);
void known_note_link(struct inode_table *t, const struct inode *i, struct bytes text);

/* NULL, or empty: not known. */
const struct wire_attr *known_attr(const struct inode_table *t, const struct inode *i);
struct bytes known_link(const struct inode_table *t, const struct inode *i);

/* What the name leads to, if it is something whose attributes are known; or NULL. */
struct inode *known_named(struct inode_table *t, const struct inode *parent, struct bytes name);

/* The attributes of the file, or of all that are at the name, are not right any more. */
void known_changed(struct inode_table *t, const struct inode *i);
void known_name_changed(struct inode_table *t, const struct inode *parent, struct bytes name);

/* The inode is about to be freed. */
void known_gone(struct inode_table *t, const struct inode *i);

/* Nothing is right any more, which may free inodes; and at the end of the table, when all are. */
void known_forget(struct inode_table *t);
void known_release(struct inode_table *t);
