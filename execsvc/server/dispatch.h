/* Who handles which message. One table, made from the rows of the message table: requests of
 * the classes 0x01xx and 0x02xx run on workers (store_handle), the others here on the loop.
 * The session has checked direction, phase and bounds before a message comes here; whether the
 * client may send it is checked here (access/permit.h). */
#pragma once

#include "server/connection.h"

/* Checks that every message a client may send has a handler. -ENOSYS names the first without
 * one in the log: a programming error. */
int dispatch_check(void);

/* Handles a message; takes the frame. May end the connection. */
void dispatch_frame(struct connection *c, struct wire_frame *frame);

/* Gives the frame, of an open call or (NULL) a notice's, to the workers; takes it. */
void dispatch_submit(struct connection *c, struct call *call, struct wire_frame *frame);

/* A worker has done a job; takes it. c: NULL when the connection is gone. */
void dispatch_done(struct connection *c, struct job *job);
