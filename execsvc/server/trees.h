/* Requests that move whole trees (store/transfer.h): each on a thread of its own, for as long as
 * there are files, with its items on their way through here. What programs on mounts have been told
 * is written is there before a tree is read, and its commands stand still meanwhile unless they are
 * not to; what a restore changed is seen by all before it is answered. */
#pragma once

#include "server/server.h"
#include "wire/session.h"

/* Threads at a time, in all and for one credential. Stop clients from taking all memory, and the
 * disk from all others, by many transfers. */
#define TREES_MAX 16
#define TREES_OF_IDENTITY_MAX 8

/* Bytes of items of one transfer that wait in either direction. */
#define TREES_WINDOW ((size_t)4 << 20)

struct trees;
struct call;

/* -ENOMEM, and others of the descriptor. */
int trees_new(struct server *s, struct trees **ret);

/* All calls have ended. Waits for the threads, which are told to end. NULL is allowed. */
void trees_free(struct trees *t);

/* Takes call and frame. */
void trees_begin(struct trees *t, struct call *call, struct wire_frame *frame);

/* How many run. */
size_t trees_count(const struct trees *t);
