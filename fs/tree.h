/* Listings that the service sent before they were asked for: what a READTREE brought, directory by
 * directory, until the kernel wants it.
 *
 * A listing is right as long as it is here. It was asked for while changes were reported, and
 * every change by others takes away what it concerns: a directory's listing when one of its names
 * changes, an entry's attributes when its file does. Of a name that this mount changes the entry
 * goes, and what was made in its place is known to be there, but not in which order: whoever lists
 * the directory next asks for it anew. What changed between the
 * request and its answer is noted meanwhile and taken away as soon as that is here. Directories and
 * files are known by identity, whether they are inodes or not.
 *
 * Each listing has one wire reference on its directory, so that changes are reported, and each
 * entry one on its file. An inode made from an entry lives by the entry's reference (inode_lend),
 * which is given to it when the listing goes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/table.h"
#include "wire/wire.h"

struct inode;
struct inode_table;

/* Memory of all listings, about 70 bytes an entry; the one used longest ago makes room, and one
 * alone takes no more than half of it. Stops a
 * walk over a large tree, or a service that sends one without end, from taking all memory. */
#define TREE_MEMORY_MAX ((size_t)64 << 20)

/* Changes noted while answers are on their way; past that they are not kept. Bounds memory. */
#define TREE_RECENT_MAX 1024

/* With more entries whose attributes were taken away, and one of so many, a listing is worth being
 * asked for again. */
#define TREE_STALE_MAX 16
#define TREE_STALE_PART 64

/* Names made in a directory since it was asked for; past that it is not kept. Bounds memory. */
#define TREE_MADE_MAX 16384

struct tree_directory;

/* Two words, of which there are as many as files are known. */
struct tree_entry {
    struct tree_entry *same; /* chain of identities: of those with a reference */
    uint64_t offset : 21;    /* in the part's data */
    uint64_t place : 15;     /* in the part */
    uint64_t next_name : 24; /* chain of names: index in the directory + 1, or 0 */
    uint64_t gone : 1;       /* the name was removed */
    uint64_t held : 1;       /* it has a reference */
    uint64_t fresh : 1;      /* its attributes are right, */
    uint64_t linked : 1;     /* but for what was done by another of its names */
};

struct tree_change {
    uint64_t ino, generation, stamp;
    bool names;
};

struct tree_store {
    struct table directories; /* hash of identity -> struct tree_directory */
    struct tree_directory *newest, *oldest;
    struct tree_directory *dropped; /* that go by portions */
    struct tree_entry **files;      /* chains, by identity */
    size_t capacity;                /* of files: 0 or a power of two, at least half of count */
    size_t count;                   /* entries, */
    size_t dropping;                /* and of these in directories that go */
    size_t bytes;
    size_t asked; /* requests under way */
    struct tree_change *recent;
    size_t recent_count;
    uint64_t unlisted, hidden; /* entries that rules left out, ever */
    uint64_t lost_stamp;       /* answers to what was asked before are not kept */
};

/* A READTREE is about to be sent, and no longer under way. -ENOMEM: it must not be sent. */
int tree_asked(struct inode_table *t);
void tree_answered(struct inode_table *t);

/* Takes over an answer with its references; before tree_answered. cookie: where its first directory
 * goes on, or 0. stamp: inode_table.stamp when it was asked for. keep: changes are reported; if
 * not, all is given back. */
void tree_take(struct inode_table *t, const struct wire_tree *reply, uint64_t cookie,
               uint64_t stamp, bool keep);

/* The same for directories of which together there is more than in one answer. */
void tree_take_directories(struct inode_table *t, const struct wire_tree_directory *directories,
                           size_t count, uint64_t cookie, uint64_t stamp, bool keep);

/* A file, or (names) a directory's names, have changed, whether they are known or not. Takes away
 * the file's content and attributes too (content.h, attrs.h). */
void tree_changed(struct inode_table *t, uint64_t ino, uint64_t generation, bool names);

/* The same for one name of a directory that this mount has made lead to a file (NULL: it is not
 * known to which) or to nothing, while nobody else has changed the directory since that was asked
 * for. */
void tree_name_made(struct inode_table *t, const struct inode *directory, struct bytes name,
                    const struct wire_attr *file);
void tree_name_removed(struct inode_table *t, const struct inode *directory, struct bytes name);

/* A directory was made, and is empty. Takes over a reference, if true. */
bool tree_add_empty(struct inode_table *t, uint64_t node, const struct wire_attr *attr);

/* Listings of which nothing is answered any more have entries still, whose references are to be
 * given back: of at most so many. True: there are more. */
bool tree_drop_some(struct inode_table *t, size_t max);

/* Entries that the driver's loop gives back in one turn: a millisecond. One directory can have a
 * million, which must hold up nobody who works elsewhere. */
#define TREE_DROP_PORTION 1024

/* Anything may have changed. */
void tree_forget(struct inode_table *t);

/* Forgets all at the end, gives nothing back. */
void tree_release(struct inode_table *t);

/* The listing of a directory, or NULL. It may be gone after any call that changes something. */
struct tree_directory *tree_find(struct inode_table *t, const struct inode *directory);

/* The same by identity, and not as a use of it. */
struct tree_directory *tree_identified(const struct inode_table *t, uint64_t ino,
                                       uint64_t generation);

/* The attributes of a file, as an entry tells them. False: they are not known. */
bool tree_file_attr(const struct inode_table *t, uint64_t ino, uint64_t generation,
                    struct wire_attr *ret);

/* An entry has a reference on this file. */
bool tree_has_file(const struct inode_table *t, uint64_t ino, uint64_t generation);

/* The directory's own attributes; NULL: not known any more. */
const struct wire_attr *tree_attr(const struct tree_directory *directory);
/* The last entry of the listing is the directory's last. */
bool tree_is_complete(const struct tree_directory *directory);
/* And rules leave nothing out of listings that could be looked up. */
bool tree_has_all_names(const struct tree_directory *directory);
/* A name that was made, and is not among the entries: ino and generation of what it leads to; ino
 * 0: that is not known. */
bool tree_made(const struct inode_table *t, const struct tree_directory *directory,
               struct bytes name, struct wire_attr *ret);
/* There is no such name in the directory. */
bool tree_lacks(struct inode_table *t, struct tree_directory *directory, struct bytes name);
/* Something was made that is not among the entries. */
bool tree_was_added_to(const struct tree_directory *directory);
/* Or the attributes of many were taken away: it is to be asked for anew. */
bool tree_is_stale(const struct tree_directory *directory);

/* It does not have all entries, but room for more, which follow tree_cookie. */
bool tree_can_go_on(const struct tree_directory *directory);
uint64_t tree_cookie(const struct tree_directory *directory);

/* A subdirectory, the entry at index, is opened that has no listing: true when it is not the first,
 * and behind the one before: somebody goes through them all. */
bool tree_walks(struct tree_directory *directory, size_t index);
/* Nodes of the subdirectories from index on that have no listing, at most max; returns how many. */
size_t tree_unread(const struct inode_table *t, const struct tree_directory *directory,
                   size_t index, uint64_t *ret, size_t max);

/* The entries have indices from 0, in the directory's own order. Of the one behind that with this
 * cookie (0: the first), near being a guess; -ENOENT: there is none with this cookie. */
size_t tree_count(const struct tree_directory *directory);
ssize_t tree_index(const struct tree_directory *directory, uint64_t cookie, size_t near);
/* Of a name; -ENOENT; -ENOMEM. */
ssize_t tree_named(struct inode_table *t, struct tree_directory *directory, struct bytes name);

/* Decodes an entry; node is 0 when its attributes are not known any more, or not for certain, and
 * so is all of it when its name was removed. */
void tree_read(const struct tree_directory *directory, size_t index, struct wire_dirent *ret);
/* The same, when nobody can be asked: of a file with more names than one they are as it was when it
 * was seen, but for changes that were reported. */
void tree_read_linked(const struct tree_directory *directory, size_t index,
                      struct wire_dirent *ret);
