/* What the files of listings that were read ahead (tree.h) share. */
#pragma once

#include "tree.h"

/* What one answer brought. */
struct tree_part {
    struct tree_part *next;
    struct tree_directory *directory;
    uint8_t *data; /* entries, packed */
    size_t size;
    size_t first; /* index of the first entry */
    size_t count;
    struct tree_entry entries[];
};

/* Something was made, or moved to the name, by this mount. */
struct made_name {
    uint64_t ino, generation; /* ino 0: not known */
};

struct tree_directory {
    struct tree_directory *newer, *older;
    uint64_t node;
    struct wire_attr attr; /* its own */
    struct tree_part *parts, *last;
    uint32_t *names; /* chains: index + 1 of the first, or 0; NULL: not needed yet */
    uint64_t cookie; /* of the last entry that was brought, or where it started */
    size_t count;
    size_t capacity; /* of names: a power of two */
    size_t stale;
    struct table made; /* hash of name -> struct made_name: since the answer */
    size_t walked;     /* behind the last subdirectory that was opened and had no listing */
    bool fresh;        /* attr is right */
    bool end;          /* the last entry is the directory's last */
    bool unlisted;     /* rules left something out */
    bool dropped; /* it is not found any more, and goes by portions; older: the next of these */
};

/* The part that an entry is in. */
const struct tree_part *tree_part_of(const struct tree_entry *e);

struct tree_entry *tree_entry_at(const struct tree_directory *d, size_t index);

/* An entry as it was sent. */
void tree_unpack(const struct tree_entry *e, struct wire_dirent *ret);

bool tree_is_file(const struct tree_entry *e, uint64_t ino, uint64_t generation);

/* The listing of a directory, or NULL. */
struct tree_directory *tree_find_directory(const struct inode_table *t, uint64_t ino,
                                           uint64_t generation);

/* The chain that entries of this file are in, among others. There are files. */
struct tree_entry **tree_chain_of(const struct inode_table *t, uint64_t ino, uint64_t generation);
void tree_remove_from_chain(struct inode_table *t, const struct tree_entry *e);

/* Gives an entry's reference to its inode, or back. */
void tree_pass_reference(struct inode_table *t, const struct tree_entry *e);

/* What is counted of a listing's names, of TREE_MEMORY_MAX. */
size_t tree_names_memory(const struct tree_directory *d);

/* From now on the listing is not found; it goes by portions (tree_drop_some). */
void tree_drop(struct inode_table *t, struct tree_directory *d);

/* A new listing, as it was sent. -ENOMEM: nothing was taken. */
int tree_add(struct inode_table *t, const struct wire_tree_directory *from);

/* Takes a file's attributes away wherever they are told and, with names, its listing. */
void tree_take_away(struct inode_table *t, uint64_t ino, uint64_t generation, bool names);
