/* Changes of open files of which the kernel is told before the service has answered.
 *
 * Order: what is under way for one file goes through one handle, on which the service keeps the
 * order of arrival. Whatever else could see or overtake it, through another handle or by name,
 * waits until it is answered (pipeline_holds); attributes that were asked for meanwhile in another
 * way are asked for again (pipeline_outdates).
 *
 * Errors: kept with each handle of the file, until a write, a new size or fsync through it has
 * reported them. What was under way behind the change that failed is not carried out, so that a
 * full disk cuts a file short and leaves no hole in it. close() reports them too, but keeps them: a
 * child that exits with a copy of the descriptor must not use up what its parent has to hear. After
 * an error the kernel is told nothing early, on the whole mount, until a write has succeeded: on a
 * full disk all but the first fail at once.
 *
 * Commands: before one starts, the service asks for all that is under way (SYNC), if it has to
 * reckon with any. So the kernel is told early only while the service knows that (pipeline_known),
 * and while changes are reported, since it asks on the same way. */
#pragma once

#include "request.h"

/* Data under way for one file, and in all, of which the kernel has been told. Bounds the memory of
 * writers that are faster than the network, what close() waits for, and what others wait behind;
 * beyond it a writer is answered when there is room. */
#define PIPELINE_FILE_MAX ((size_t)4 << 20)
#define PIPELINE_ALL_MAX ((size_t)16 << 20)

/* Requests under way: leaves places among the calls of a connection for everybody else. */
#define PIPELINE_REQUESTS_MAX 256

/* A file that would end further on may be larger than its filesystem can have it, which programs
 * expect to hear at once; ext4 with blocks of 1 KiB has the smallest limit of those in use. */
#define PIPELINE_END_MAX ((uint64_t)16 << 30)

struct pipeline;

/* -ENOMEM */
int pipeline_new(struct driver *d);
/* When all requests have ended. */
void pipeline_free(struct driver *d);

/* Sends a change of r->handle, a WRITE or SETATTR with `size` bytes of data, of which the kernel
 * may be told before it is done. attr: what a SETATTR is to answer then. False: it may not; nothing
 * was done. */
bool pipeline_send(struct request *r, const struct wire_attr *attr);

/* The same for a change of r->handle that the driver makes itself, a PLACE: there is nobody to
 * tell. create_ahead_placed hears of its end. */
bool pipeline_begin(struct request *r);

/* DELEGATION has come: the service knows that we are ahead. */
void pipeline_delegated(struct driver *d);

/* The error of a change of which the kernel was told early, or 0. It is reported once. */
int pipeline_take_error(struct handle *h);
/* True: there is one to report, and r, a WRITE or a new size through r->handle, is answered with it
 * when what is under way is answered. */
bool pipeline_failed(struct request *r);

/* Before r, a WRITE or SETATTR through r->handle, is sent in any way: it is not to be carried out
 * if what is under way before it through that handle fails. */
void pipeline_follow(struct request *r);

/* What a file is like after all that was sent is known to the handle that has opened it for writing
 * (handle.foreseen, for whoever sends to keep right), until anything else changes it: others, or
 * this mount in another way. Of times it is what was set last. */
void pipeline_note_attr(struct driver *d, struct handle *h, const struct wire_attr *attr);
void pipeline_forget_attr(struct inode *inode);

/* A WRITE, CREATE, or OPEN for writing was answered: the service knows that we write. */
void pipeline_known(const struct request *r);
/* A write that the kernel was not told of early succeeded. */
void pipeline_succeeded(struct driver *d);

/* True when r must not be sent before something that is under way is answered; pipeline_wait sends
 * it after that. */
bool pipeline_holds(const struct request *r);
void pipeline_wait(struct request *r);

/* Calls done when all that is under way for r->handle's file is answered. */
void pipeline_join(struct request *r, request_done_fn *done);

/* Something is under way for the file. */
bool pipeline_pending(const struct driver *d, const struct inode *inode);
/* The handle through which it is, or NULL. */
struct handle *pipeline_handle(const struct driver *d, const struct inode *inode);

/* Attributes of the file that were asked for, by its name, when inode_table.stamp was `stamp` may
 * be older than what the kernel has been told since or before. */
bool pipeline_outdates(const struct driver *d, const struct inode *inode, uint64_t stamp);

/* r has asked for attributes through its handle, and so after all that was sent before: an answer
 * to that which came meanwhile does not make them old. */
void pipeline_ordered(struct request *r);

/* SYNC has come on call `tag`. */
void pipeline_sync(struct driver *d, uint64_t tag, uint64_t number);
