/* What the kernel knows: every file it has looked up and not yet forgotten.
 *
 * An inode has a node ID of ours (64 bits, counted up, never used twice, never a pointer) that
 * the kernel speaks of, and the server's identity (ino, generation, type) by which it is found
 * again.
 *
 * A directory or a symbolic link has one more thing, its place: the (parent, name) at which the
 * kernel was told of it. Found at another place, because somebody moved or linked it, it is told
 * to the kernel under another node ID. So what others do never moves a directory in the kernel's
 * tree, only renames on this mount do; and a node ID of a link tells from which directory the
 * kernel follows it. How far its ".." climb is therefore known: inode_depth.
 *
 * For all other files (parent, name) is a hint: where the file was last seen. With either, the
 * file is found again after a lost connection, and identity is always checked then. Parents
 * never form a cycle.
 *
 * Three lifetimes meet here:
 *   nlookup    references of the kernel, counted exactly: one for each entry answered (at 2^32 - 1
 *              it stays for ever)
 *   wire_refs  references on the server's node, one for each ENTRY received; they belong to
 *              one connection and are given back in FORGET notices. None: one is lent to it
 *              (tree.h), and no other inode of the file has none
 *   pins       references of ours: requests in flight, handles, children that name this
 *              inode as their parent
 * It is freed when nlookup and pins are both 0. */
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include "base/buffer.h"
#include "attrs.h"
#include "content.h"
#include "known.h"
#include "pool.h"
#include "tree.h"
#include "wire/wire.h"

struct handle;

enum inode_flags {
    INODE_WORKSPACE = 1, /* root of a workspace: found again by WORKSPACE_OPEN */
    INODE_LOCAL = 2,     /* the mount's root when it lists workspaces: no node at the server */
    INODE_COVERED = 4,   /* changes by others are reported (WIRE_ATTR_COVERED) */
    INODE_CACHED = 8,    /* what the kernel has of its content or listing is right */
    INODE_ALIAS = 16,    /* the file has, or had, another inode here, at another place */
    INODE_MISSED = 32,   /* directories: a name in it was looked up that tree.h did not know */
    INODE_RENAMED = 32,  /* links: see inode_is_displaced */
    INODE_LINKED = 32,   /* files: was told at another name than the one noted, too */
    INODE_ASKED = 64,    /* directories: a READTREE of it is under way */
    INODE_SMALL = 64,    /* files: not larger than WIRE_FILE_MAX, when it was seen last */
    INODE_READ = 128,    /* directories: what is below it was read ahead, once */
    INODE_ALLOWED = 128, /* files: was opened for reading since its attributes changed last */
};

enum inode_index { INODE_BY_ID, INODE_BY_IDENTITY, INODE_BY_NAME, INODE_INDEX_COUNT };

struct inode {
    uint64_t id; /* FUSE node ID */
    uint64_t ino;
    uint64_t generation;
    uint64_t node;  /* the server's, within `connection` */
    uint64_t stamp; /* inode_table.stamp at our own last change of it */
    struct inode *parent;
    struct handle *handles;           /* open ones */
    uint32_t next[INODE_INDEX_COUNT]; /* numbers in inode_table.pool */
    uint32_t nlookup;                 /* at the most that it can hold it stays, and so the inode */
    uint32_t connection;              /* 0: node is not known */
    uint32_t wire_refs;
    uint32_t pins;
    uint32_t name_news;    /* when its name was news to the kernel last: coherence.c */
    uint32_t content_news; /* and when others wrote it last, as far as that was reported */
    uint32_t told;         /* of the version of the attributes that the kernel was told last */
    uint16_t type;         /* S_IFMT part of the mode */
    uint16_t permissions;  /* the rest of it, when it was told last */
    uint8_t flags;
    uint8_t name_len;    /* 0: it has none */
    uint8_t room;        /* for a name, without its NUL */
    bool locked : 1;     /* files: somebody here has asked for a lock by fcntl() */
    bool dense : 1;      /* files: has no hole, if its attributes have not changed since */
    bool name_apart : 1; /* it is not in name, where only a pointer to it is */
    char name[];         /* with its NUL */
};

struct inode_chains {
    uint32_t *heads; /* numbers in inode_table.pool */
    size_t capacity; /* a power of two, at least half as many as there are */
};

/* A rename between directories that may be at work in the kernel. There is one at most, since
 * the kernel does them one after the other. What it moves counts as being at both places, from the
 * request on until the kernel has certainly done it, which is a little after our answer. */
struct inode_move {
    struct inode *from, *to; /* pinned; NULL: there is none */
    uint64_t until_ns;       /* 0: not answered yet; else it is done by then */
    uint64_t number;         /* which one it is */
    bool replaces;           /* the new name was in use */
    bool exchanges;
    uint8_t name_len, new_name_len;
    char name[WIRE_NAME_MAX], new_name[WIRE_NAME_MAX];
};

struct inode_table {
    struct pool pool;
    struct inode_chains chains[INODE_INDEX_COUNT];
    struct inode *root;
    size_t count;
    uint64_t seed; /* against inode numbers chosen to make long chains */
    uint64_t last_id;
    uint64_t stamp;
    uint64_t unknown_stamp; /* at the last change by others of a file that was not known here */
    uint32_t connection;    /* the current one */
    struct buffer forgets;  /* pairs to give back, as in the FORGET message */
    struct inode_move move;
    struct tree_store tree;
    struct content_store content;
    struct known_files known;
    struct wire_attr *attrs; /* attrs.h */
};

/* Makes the table with its root, which has FUSE_ROOT_ID and stays for ever. -ENOMEM. */
int inode_table_init(struct inode_table *t, uint8_t root_flags);
void inode_table_release(struct inode_table *t);

/* Makes the root that of a workspace, from the first connection's answer. -ENOMEM. */
int inode_set_root(struct inode_table *t, uint64_t node, const struct wire_attr *attr,
                   struct bytes name);

/* Takes over what attr says besides attributes. */
void inode_note_attr(struct inode *i, const struct wire_attr *attr);

/* The inodes of a file as the server names it, one after the other: from NULL to NULL. */
struct inode *inode_identified(struct inode_table *t, uint64_t ino, uint64_t generation,
                               const struct inode *after);

/* Iteration in no order, from cursor 0 and NULL. NULL at the end. The table must not change. */
struct inode *inode_next(const struct inode_table *t, size_t *cursor, const struct inode *i);

/* NULL when the kernel names an inode it was never given. */
struct inode *inode_get(struct inode_table *t, uint64_t id);

/* An inode at parent/name, the one told or seen last as far as that is known; or NULL. */
struct inode *inode_named(struct inode_table *t, const struct inode *parent, struct bytes name);
/* Of these the file that is neither directory nor link, or NULL. It may be there without being
 * known as that, when it was seen at another of its names since (INODE_LINKED). */
struct inode *inode_file_named(struct inode_table *t, const struct inode *parent,
                               struct bytes name);
/* The inode by which the kernel knows this file, at parent/name if it has a place; or NULL. */
struct inode *inode_known(struct inode_table *t, const struct wire_attr *attr,
                          const struct inode *parent, struct bytes name);
/* The next one at the name of i, or NULL. */
struct inode *inode_named_after(struct inode_table *t, const struct inode *i,
                                const struct inode *parent, struct bytes name);

/* Takes an ENTRY of the current connection: finds or makes its inode (of this place, where it has
 * one), takes over the wire reference, and notes where it was seen. Neither nlookup nor pins rise:
 * a new inode lives only once the caller raises one of them (or calls inode_drop). On failure
 * (-ENOMEM) the wire reference is given back. */
int inode_enter(struct inode_table *t, uint64_t node, const struct wire_attr *attr, uint8_t flags,
                struct inode *parent, struct bytes name, struct inode **ret);

/* As inode_enter, but the reference stays the caller's, who has lent it to the inode until it calls
 * inode_lent_back. -EEXIST: not possible now, because of another inode of this file; -ENOMEM. */
int inode_lend(struct inode_table *t, uint64_t node, const struct wire_attr *attr,
               struct inode *parent, struct bytes name, struct inode **ret);

/* One of an inode's own references becomes the caller's, as if it had been lent. False: not
 * possible now. */
bool inode_lend_own(struct inode_table *t, struct inode *i);

/* Takes over a reference that may have been lent: it is given to the inode that lives by it, or
 * back to the server. */
void inode_lent_back(struct inode_table *t, uint64_t node, uint64_t ino, uint64_t generation);

/* Its name, with a NUL behind it, as long as it has that; NULL: it has none. */
static inline const char *inode_name(const struct inode *i)
{
    const char *apart;
    if (!i->name_apart)
        return i->name_len ? i->name : NULL;
    memcpy(&apart, i->name, sizeof apart);
    return apart;
}

static inline struct bytes inode_name_bytes(const struct inode *i)
{
    return bytes_of(inode_name(i), i->name_len);
}

/* True when attr is of this very file. */
bool inode_is(const struct inode *i, const struct wire_attr *attr);

/* A link that a rename here has put into another directory. The node ID is of the old place: the
 * kernel must look it up at the new one before it may follow it, and the ID is not given again. */
static inline bool inode_is_displaced(const struct inode *i)
{
    return i->type == S_IFLNK && (i->flags & INODE_RENAMED);
}

/* Sets the server's node after it was found again; takes over one wire reference. */
void inode_adopt(struct inode_table *t, struct inode *i, uint64_t node);

/* The name was removed: forgets hints to it. */
void inode_removed(struct inode_table *t, struct inode *parent, struct bytes name);

/* A rename is asked for; and was done (the kernel moves what is there once it is told so), or
 * failed, at now_ns. */
void inode_rename_begin(struct inode_table *t, struct inode *from, struct bytes name,
                        struct inode *to, struct bytes new_name, bool exchange);
void inode_rename_end(struct inode_table *t, struct inode *from, struct bytes name,
                      struct inode *to, struct bytes new_name, bool done, bool exchange,
                      uint64_t now_ns);

/* True when what the rename under way moves comes nearer to the root. */
bool inode_rename_climbs(const struct inode_table *t);

/* True when `directory` is at parent/name, or below. */
bool inode_below_named(const struct inode *directory, const struct inode *parent,
                       struct bytes name);

/* The kernel has done the rename of that number, if it is the current one. */
void inode_rename_settled(struct inode_table *t, uint64_t number);

/* True while a rename has been answered and may not have been done. */
bool inode_rename_unsettled(const struct inode_table *t);

/* The kernel asks what is at parent/name. It holds such questions back while a rename puts
 * something there, so that one is done. */
void inode_asked(struct inode_table *t, const struct inode *parent, struct bytes name);

static inline struct inode *inode_pin(struct inode *i)
{
    i->pins++;
    return i;
}

/* NULL is fine. May free i. */
void inode_unpin(struct inode_table *t, struct inode *i);

static inline void inode_looked_up(struct inode *i)
{
    i->nlookup += i->nlookup < UINT32_MAX;
}

/* The kernel gives back n references. May free i. */
void inode_forget(struct inode_table *t, struct inode *i, uint64_t n);

/* Frees i if nothing refers to it. */
void inode_drop(struct inode_table *t, struct inode *i);

/* Gives references on a node of the current connection back to the server. If memory is short
 * they stay with the server until the connection ends. */
void inode_give_back(struct inode_table *t, uint64_t node, uint64_t count);

/* How many directories `directory` is below the root of its workspace, which is *ret, in the
 * kernel's tree; at least, while it is being moved. -1: it is in none (the root of a mount that
 * lists workspaces). */
int inode_depth(struct inode_table *t, const struct inode *directory, uint64_t now_ns,
                const struct inode **ret_workspace);

/* Notes a change, so that attributes asked for before it are not shown after it: of attributes
 * alone, or of anything. */
void inode_attr_changed(struct inode_table *t, struct inode *i);
void inode_changed(struct inode_table *t, struct inode *i);

/* Of a name, not to be foreseen by whoever chooses it. */
uint64_t inode_hash_name(const struct inode_table *t, struct bytes name);
