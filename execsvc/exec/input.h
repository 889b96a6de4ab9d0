/* Standard input of a command: bytes kept until the command's pipe or terminal takes them. */
#pragma once

#include <event2/event.h>

#include "base/bytes.h"

struct input;

/* taken: so many bytes were passed on, or dropped because nobody reads any more. Never called
 * from within input_append. */
typedef void input_taken_fn(void *context, size_t bytes);

/* The process must ignore SIGPIPE: a reader that goes away is no error.
 *
 * fd (non-blocking) is owned from now on, on success only. terminal: the end of input is the
 * terminal's end-of-file character, since closing it would hang it up. -ENOMEM. */
int input_new(struct event_base *base, int fd, bool terminal, input_taken_fn *taken, void *context,
              struct input **ret);
void input_free(struct input *in);

/* Takes bytes over; end: nothing follows them (whatever comes later is dropped). -ENOMEM:
 * nothing was taken over. */
int input_append(struct input *in, struct bytes data, bool end);
