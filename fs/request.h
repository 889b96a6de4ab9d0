/* A request of the kernel (or of the driver itself) on its way through the service.
 *
 * It is sent at once when there is a connection and what it names is known there. If not, it
 * waits: for a connection, until the mount's timeout since the loss is over (then, for one attempt
 * to connect), and for the inodes and handles it names to be found again. When the connection is
 * lost before the answer and the session goes on on another, it is carried out once, and answered;
 * but not later than the mount's timeout, after which it fails with EIO. When the session is lost
 * too, a request that only reads is sent once more; one that changes something fails with EIO. Its
 * done function is called exactly once, which may be from within request_send. */
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "driver.h"

/* error 0: reply holds the answer during the call. error < 0: a Linux errno that may be given
 * to a program (never EINTR, ENOSYS or an unknown number); reply is NULL. The function ends
 * the request with request_free (or one of the request_reply_… functions). */
typedef void request_done_fn(struct request *r, int error, const struct wire_message *reply);

/* Answers r with attributes of a file, or (NULL) with r->error, and frees it. */
typedef void request_attr_fn(struct request *r, struct inode *inode, const struct wire_attr *attr);

struct request {
    struct driver *driver;
    fuse_req_t fuse; /* NULL: the driver's own */
    request_done_fn *done;
    void *context;

    /* What message names, pinned; their wire numbers are filled in when it is sent. */
    struct inode *inode;
    struct inode *target; /* new parent of RENAME, parent of LINK */
    struct handle *handle;
    struct handle *output; /* handle_out of COPY */
    struct inode *victim;  /* file that loses its name: opened before, where a handle is not yet */

    struct wire_message message; /* bytes point into names, storage, or the kernel's buffer */
    struct buffer storage;       /* data that had to be kept because the request waits */
    uint32_t connection;         /* on which it was sent; 0: it was not */

    uint64_t unique; /* the kernel's number of it */
    bool watched;    /* see interrupt.h */

    struct request *next;
    struct request *behind; /* see pipeline.c, and handle.reads */
    uint64_t deadline_ns;
    uint64_t deferred_ns;
    bool deferred;
    bool overdue; /* waits for one attempt to connect alone */
    bool repeated;
    bool urgent;      /* does not wait until locks have been taken again */
    bool once;        /* on the connection that is set already, or it fails with -ENOTCONN */
    bool waits;       /* for a lock: sent again after each lost connection, until cancelled */
    bool interrupted; /* request_cancel was called */
    bool joins;       /* not sent: waits in pipeline.c alone */
    uint64_t tag;     /* of a `waits` request in flight; 0: not in flight */

    /* For done */
    size_t size;
    uint64_t offset;
    uint64_t position;
    uint64_t stamp; /* inode_table.stamp when it was sent */
    bool plus;
    bool quiet;  /* no caller waits for it */
    bool direct; /* OPEN, CREATE: past the kernel's page cache */
    bool reads;  /* READ: into it, one of its handle's reads */
    bool held;   /* it has its answer, but the kernel does not yet: read_answer */
    int error;   /* FLUSH, WRITE: of the part that is done; see request_attr_fn */
    request_attr_fn *reply;
    void (*then)(struct request *r); /* READTREE: what goes on when its answer has been taken */

    uint8_t name_len;
    uint8_t new_name_len;
    char names[]; /* name NUL new_name NUL */
};

/* In the handler of a request of the kernel: whose it is (in a joined mount, of which member). */
struct driver *request_driver(fuse_req_t fuse);

/* A request with copies of up to two names (NULL: none). -ENOMEM; -ENAMETOOLONG. */
int request_new(struct driver *d, fuse_req_t fuse, enum wire_type type, const char *name,
                const char *new_name, struct request **ret);

/* As request_new, but on failure answers the kernel and returns NULL. */
struct request *request_start(fuse_req_t fuse, enum wire_type type, const char *name,
                              const char *new_name);

static inline struct bytes request_name(const struct request *r)
{
    return bytes_of(r->names, r->name_len);
}

static inline struct bytes request_new_name(const struct request *r)
{
    return bytes_of(r->names + r->name_len + 1, r->new_name_len);
}

/* Sets what the request works on; NULL or unknown IDs answer the kernel with ESTALE or EBADF,
 * free the request and return false. */
bool request_set_inode(struct request *r, fuse_ino_t id);
bool request_set_target(struct request *r, fuse_ino_t id);
bool request_set_handle(struct request *r, const struct fuse_file_info *fi);

/* With owner=server, what this message makes is for the calling user. */
#define REQUEST_SET_MAKER(r, part)                                   \
    do {                                                             \
        if ((r)->driver->options->owner_server) {                    \
            const struct fuse_ctx *caller = fuse_req_ctx((r)->fuse); \
            (r)->message.part.make = WIRE_MAKE_OWNER;                \
            (r)->message.part.uid = caller->uid;                     \
            (r)->message.part.gid = caller->gid;                     \
        }                                                            \
    } while (0)

/* False: it has certainly not been carried out. */
static inline bool request_was_sent(const struct request *r)
{
    return r->connection != 0;
}

/* Sends the request, now or when it can be. */
void request_send(struct request *r, request_done_fn *done);

/* Ends a `waits` request with -ECANCELED, unless it is answered before. */
void request_cancel(struct request *r);

/* Answers the kernel (if it asked) with an error and frees the request. */
void request_fail(struct request *r, int error);
void request_reply_ok(struct request *r);
void request_reply_attr(struct request *r, struct inode *inode, const struct wire_attr *attr);

/* Calls reply with attr; or, if these were asked for before a change of this mount's that they may
 * not show, with others that are asked for now. The kernel would believe them, and cut cached pages
 * at the old size. */
void request_with_attributes(struct request *r, struct inode *inode, const struct wire_attr *attr,
                             request_attr_fn *reply);

/* Answers with an entry that counts one reference of the kernel, and frees the request. */
void request_reply_entry(struct request *r, struct inode *inode, const struct wire_attr *attr);

/* A LOOKUP, or a WORKSPACE_OPEN by name: without the service, by what the kernel has been told of
 * what it names, if that is what there is to go by (coherence_serving). False: it is not. */
bool request_reply_told(struct request *r);

/* After a LOOKUP, or a WORKSPACE_OPEN by name, has failed: when it is not known what the name
 * leads to, a directory that the kernel has there is told again, for no time at all. What is asked
 * of it fails; but the kernel would take an error for a sign that it has gone, and leave those in
 * it without a path. False: it is known, or there is none. */
bool request_reply_unsure(struct request *r, int error);

void request_free(struct request *r);

/* A done function for requests answered by OK. */
void request_done_ok(struct request *r, int error, const struct wire_message *reply);

/* Sends all requests that wait for a connection; called when there is one. */
void request_resume_all(struct driver *d);

/* An attempt to connect, begun then, has failed. */
void request_attempt_failed(struct driver *d, uint64_t begun_ns);

/* Fails all that waits; for the end. */
void request_fail_all(struct driver *d, int error);

/* Timer callback (context: driver): fails what has waited for a connection too long. */
void request_waiting_expired(evutil_socket_t fd, short what, void *context);

/* struct stat of a file as this mount shows it. */
void request_stat(const struct driver *d, const struct wire_attr *attr, struct stat *ret);
/* stamp: inode_table.stamp when attr was asked for. */
void request_entry(struct driver *d, const struct inode *parent, struct inode *inode,
                   const struct wire_attr *attr, uint64_t stamp, struct fuse_entry_param *ret);

/* errno a program may see; see request_done_fn. */
int request_errno(int error);
