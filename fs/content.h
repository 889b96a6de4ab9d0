/* Content of small files that the service sent whole (READFILES), and the two ends of larger ones,
 * until somebody opens them and while they are open.
 *
 * A content is right as long as it is found here. It was asked for while changes were reported, and
 * every change of its file, of others or of ours, takes it away: one that is here, and one that is
 * under way, which then is not kept when it comes. So do the end of the lease, and the end of our
 * references on the file (inode.h, tree.h), after which nobody would tell of changes.
 *
 * A handle that was opened by a content keeps it, and is read by it even when the file's attributes
 * have changed, or it was unlinked. Once it may have been rewritten the handle is doubtful: it
 * reads at the service, and by the content only when the file is not to be had there any more.
 *
 * That a content is here also proves that the service lets this mount read the file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/table.h"
#include "wire/wire.h"

struct inode;
struct inode_table;
struct request;

/* Memory of all contents, which the one used longest ago makes room for. Stops a walk over a large
 * tree, or a service that sends without end, from taking all memory. */
#define CONTENT_MEMORY_MAX ((size_t)64 << 20)

/* And of those that open files keep, which cannot be made to go: what is opened past it is opened
 * at the service. Stops programs that open many files. */
#define CONTENT_PINNED_MAX (CONTENT_MEMORY_MAX / 2)

struct content {
    struct content *newer, *older; /* the order of use: of those here that nobody keeps */
    uint64_t ino, generation;
    struct wire_attr attr; /* as right as the content; of what is under way, nothing yet */
    uint8_t *data;
    uint32_t size; /* about, of what is under way */
    uint32_t pins; /* of handles, and of who asked for it */
    bool here;
    bool ends;    /* the first WIRE_FILE_HEAD bytes of the file and the last WIRE_FILE_TAIL */
    bool known;   /* found by identity */
    bool settled; /* WIRE_FILE_SETTLED */
    bool ahead;   /* nobody wanted it when it was asked for */
    bool used;
    uint64_t walk;           /* prefetch.c */
    struct request *waiters; /* open.c: what is to be opened by it, when it is here */
};

struct content_store {
    struct table contents; /* hash of identity -> struct content */
    struct content *newest, *oldest;
    size_t count; /* that are here */
    size_t bytes; /* with what they take beside the data */
    size_t pinned_bytes;
    uint64_t used;   /* fetched ahead and then opened, ever */
    uint64_t unused; /* fetched ahead and gone without, ever */
};

/* The content of a file, which may be under way; NULL: it is neither. */
struct content *content_get(struct inode_table *t, uint64_t ino, uint64_t generation);

/* Somebody opens it now. */
void content_use(struct inode_table *t, struct content *c);

/* There is room for one more that a handle keeps. */
bool content_may_pin(const struct inode_table *t, const struct content *c);
struct content *content_pin(struct inode_table *t, struct content *c);
/* NULL is fine. May free it. */
void content_unpin(struct inode_table *t, struct content *c);

/* Notes that a content is asked for of which content_get knows nothing. It is pinned once, until
 * content_take and then content_unpin. -ENOMEM. */
int content_ask(struct inode_table *t, uint64_t ino, uint64_t generation, bool ahead,
                struct content **ret);

/* Takes over the answer; NULL: there is none. True when the content is here now. keep: changes are
 * reported. */
bool content_take(struct inode_table *t, struct content *c, const struct wire_file *file,
                  bool keep);

/* What a read of size bytes at offset brings, less only at the end of the file. False: it is not
 * here. */
bool content_part(const struct content *c, uint64_t offset, size_t size, struct bytes *ret);

/* The file has no hole, for certain: all of it is here, and a hole would be a sector at least that
 * reads as zeros. Not NULL. */
bool content_is_dense(const struct content *c);

/* A file has changed, at least in its attributes. */
void content_changed(struct inode_table *t, uint64_t ino, uint64_t generation);
/* The service has told these attributes of a file. A content with others is from before a change
 * that nobody could tell was of this file, as a rename of a name that is not where it was seen. */
void content_seen(struct inode_table *t, const struct wire_attr *attr);
/* And what is in it has, or may have: its handles are doubtful. */
void content_rewritten(struct inode *i);
/* Its handles keep nothing. */
void content_let_go(struct inode_table *t, struct inode *i);

/* A reference on a file has been given back; its content goes if that was the last. */
void content_unreferenced(struct inode_table *t, uint64_t ino, uint64_t generation);

/* Anything may have changed. Of what handles keep, content_rewritten or content_let_go is to be
 * told, for each inode. */
void content_forget(struct inode_table *t);

/* Forgets all at the end, when there are no handles any more. */
void content_release(struct inode_table *t);
