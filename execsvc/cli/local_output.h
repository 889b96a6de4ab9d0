/* Writing to a local descriptor (standard output or error) from an event loop, without ever
 * blocking it, whatever the descriptor is, and without changing flags that it shares with
 * other processes. */
#pragma once

#include <event2/event.h>

#include "base/bytes.h"

struct local_output;

struct local_output_events {
    /* So many bytes were written, or dropped after `broken`. Never from within an append. */
    void (*written)(void *context, size_t bytes);
    /* Writing failed (negative errno; -EPIPE: the reader is gone). Called once. What is
     * queued and what still comes is dropped. */
    void (*broken)(void *context, int error);
    void *context;
};

/* fd is borrowed. A negative errno. */
int local_output_new(struct event_base *base, int fd, const struct local_output_events *events,
                     struct local_output **ret);
void local_output_free(struct local_output *o);

/* Queues bytes; the caller bounds the queue by `written`. -ENOMEM: nothing was queued. */
int local_output_append(struct local_output *o, struct bytes data);

/* True when nothing is queued and `written` has told everything. */
bool local_output_idle(const struct local_output *o);
