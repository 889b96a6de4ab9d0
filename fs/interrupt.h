/* Programs that are killed while they wait for an answer. The kernel tells of a signal, but not of
 * which, and only once; a system call that a handled signal interrupts must go on, since whether
 * it has had its effect is not known. Who has a SIGKILL pending (as everybody has who dies of a
 * signal) sees no result any more, and is let go at once, whatever the service does. */
#pragma once

#include "request.h"

/* For each request of the kernel, in its handler. */
void interrupt_watch(struct request *r);

/* A signal came for who waits for r; called by whoever else has asked libfuse to be told. */
void interrupt_signalled(struct request *r);

/* Another request answers the kernel instead of this one. */
void interrupt_pass(struct request *from, struct request *to);

/* The request ends. */
void interrupt_forget(struct request *r);

void interrupt_release(struct driver *d);
