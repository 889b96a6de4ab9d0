/* Reading ahead in files that are read from one end to the other.
 *
 * When a handle has been read three times, each time where the time before ended, what follows is
 * asked for in parts of SEQUENCE_PART, as far as the window reaches: it begins with two parts and
 * doubles with each part that was read, up to SEQUENCE_WINDOW_MAX, which keeps a connection of
 * 100 Mbit and 300 ms full. The kernel's own reading ahead has two requests of 128 KiB under way. A
 * READ elsewhere ends it, so nothing is asked for around what is read here and there.
 *
 * A part is right as long as nothing of the file was reported as changed since it was asked for,
 * as are the kernel's pages. */
#pragma once

#include "request.h"

#define SEQUENCE_PART ((size_t)WIRE_CHUNK_MAX)
#define SEQUENCE_WINDOW_MAX ((size_t)4 << 20)

/* Of all handles. Stops many readers, of a service that sends fast, from taking all memory. */
#define SEQUENCE_MEMORY_MAX ((size_t)32 << 20)

struct sequence;

/* Answers a READ, r, or has it wait, if what it wants was asked for already; false: it is to be
 * sent. Asks for what follows. */
bool sequence_read(struct request *r);

/* r is answered from elsewhere: the start of the file is here already. Asks for what follows. */
void sequence_begin(struct request *r);

/* NULL is fine. When no request of the handle is under way. */
void sequence_free(struct sequence *s);
