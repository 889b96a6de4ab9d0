/* Open files and directories. A handle has a number of ours (fi->fh) and the server's, which
 * belongs to one connection; after another connection it is opened again. */
#pragma once

#include "base/table.h"
#include "inode.h"
#include "listing.h"

struct sequence;

struct handle {
    uint64_t id;
    uint64_t wire;
    struct inode *inode; /* pinned */
    struct handle *next; /* of the same inode */
    uint32_t connection;
    uint32_t flags;             /* WIRE_OPEN_…, for opening it again */
    bool lost;                  /* its lock is: nothing more may be done through it */
    bool dirty;                 /* written since the last FLUSH or FSYNC that succeeded */
    int error;                  /* of a change that was not reported yet; or 0 */
    uint64_t sent_stamp;        /* inode's stamp at the last change sent by pipeline.c */
    uint64_t answered_stamp;    /* and answered */
    uint64_t others_stamp;      /* and at the last one before that was none of these */
    struct wire_attr *foreseen; /* see pipeline_note_attr; or NULL */
    uint32_t pins;              /* requests in flight, and 1 until it is released */
    struct listing *listing;    /* directories: entries read ahead, or NULL */
    struct content *content;    /* files: what it was opened by, pinned; or NULL */
    struct wire_attr attr;      /* when it was opened here; ino 0: at the service */
    struct sequence *sequence;  /* files: what is read ahead, or NULL */
    uint64_t size;              /* files: when it was opened for reading; 0: not to be read ahead */
    bool doubtful;              /* content may have been rewritten */
    bool direct;                /* the kernel reads past its cache */
    struct request *reads;      /* READs in flight, if it does not */
    struct handle *newer, *older;         /* of those not opened at the service (open.c) */
    uint64_t opened_ns;                   /* 0: not one of these */
    size_t tree_index;                    /* where it went on last in a listing of tree.h */
    struct workspace_listing *workspaces; /* the mount's root, or NULL */
};

struct handle_table {
    struct table by_id;
    struct inode_table *inodes;
    uint64_t last_id;
    struct handle *newest, *oldest; /* not opened at the service, and since when */
    struct buffer releases; /* u64 wire handles of this connection that nothing uses any more */
};

/* A handle with one pin, which handle_release takes. -ENOMEM. */
int handle_new(struct handle_table *t, struct inode *inode, uint64_t wire, uint32_t connection,
               uint32_t flags, struct handle **ret);

/* Puts it among those that are not opened at the service, as the newest; and takes it out, if it is
 * one. */
void handle_list_unopened(struct handle_table *t, struct handle *h, uint64_t now_ns);
void handle_unlist_unopened(struct handle_table *t, struct handle *h);

/* NULL when there is no such handle. */
struct handle *handle_get(struct handle_table *t, uint64_t id);

static inline struct handle *handle_pin(struct handle *h)
{
    h->pins++;
    return h;
}

/* NULL is fine. May free h, and its inode; its wire handle is then due for release. */
void handle_unpin(struct handle_table *t, struct handle *h);

/* The kernel has done with the handle: it is not found any more, and freed with its last pin. */
void handle_release(struct handle_table *t, struct handle *h);

/* A handle of the inode with all these WIRE_OPEN_… flags and none of the others, on this
 * connection; or NULL. */
struct handle *handle_of(const struct inode *inode, uint32_t connection, uint32_t with,
                         uint32_t without);

/* Frees all handles, whatever pins there are. */
void handle_table_release(struct handle_table *t);
