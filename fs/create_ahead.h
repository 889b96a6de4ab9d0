/* Files of which the kernel is told that they are made before the service has named them, so that
 * making a small file costs one round trip, that of its close(), and not two.
 *
 * Names. While this mount alone makes names in a workspace (DELEGATION), a name that is known to
 * lead to nothing will not lead to anything until we make it. So open() with O_CREAT and O_EXCL may
 * return at once. What else could tell that it is not made yet waits until it is: look-ups of the
 * name, listings and attributes of the directory, and other changes of names.
 *
 * Files. The kernel has to be told number and attributes, and what is written has to go somewhere.
 * So files without a name (UNNAMED) are made at the service in advance, a spare or two for each set
 * of directories in which a new file comes to be alike (its group, and its ACL), which are a
 * directory and those that this mount has made in it. PLACE names one, in the order of the changes
 * through its handle (pipeline.h).
 *
 * Errors (the name is there after all, the delegation was lost with the connection, ENOSPC) are
 * told as those of writes are: by write, fsync and close.
 *
 * Where the way to the service is short the two round trips cost less than the second request. */
#pragma once

#include "request.h"

/* At the shortest round trip to the service there was. */
#define CREATE_AHEAD_PING_US 1000

/* Files without a name that one set of directories has at the service, as many as a program that
 * makes one after the other uses. */
#define CREATE_AHEAD_SPARES 2

/* They are given back when no file was made for so long. */
#define CREATE_AHEAD_IDLE_MS 5000

/* Directories known to be alike. Bounds memory; those beyond it have none. */
#define CREATE_AHEAD_DIRECTORIES_MAX 4096

/* Workspaces that are delegated at a time; more than the service gives. */
#define CREATE_AHEAD_DELEGATIONS_MAX 64

struct create_ahead;

void create_ahead_free(struct driver *d);

/* DELEGATION has come; and SYNC. */
void create_ahead_delegated(struct driver *d, uint32_t slot, uint64_t number);
void create_ahead_revoked(struct driver *d);

/* The session goes on after a loss of its connection: SYNC may be on its way. And it has answered
 * what it was asked at asked_ns. */
void create_ahead_resumed(struct driver *d);
void create_ahead_confirmed(struct driver *d, uint64_t asked_ns);

/* Answers a CREATE before the service has, and takes it. False: it has to be sent. */
bool create_ahead(struct request *r);

/* A CREATE, or MKDIR (made: the directory), was answered by the service. directory: as in MADE. */
void create_ahead_created(const struct request *r, const struct wire_attr *directory);
void create_ahead_made_directory(const struct request *r, const struct inode *made,
                                 const struct wire_attr *attr);
/* Files made in this directory may not be like those in others any more. */
void create_ahead_forget(struct driver *d, const struct inode *directory);

/* A PLACE that pipeline.c has sent is answered; and has left its file. */
void create_ahead_placed(struct request *r, int error, const struct wire_message *reply);
void create_ahead_go_on(struct driver *d);

/* True when r, which is not sent yet, could tell that a name is not made. */
bool create_ahead_holds(const struct request *r);
/* Sends it, or (again not NULL) calls again(r, 0, NULL), when something has changed about that. */
void create_ahead_wait(struct request *r, request_done_fn *again);
/* What is known here of these is not right at the moment. */
bool create_ahead_in(const struct driver *d, const struct inode *directory);
bool create_ahead_at(const struct driver *d, const struct inode *directory, struct bytes name);
