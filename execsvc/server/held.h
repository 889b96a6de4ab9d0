/* Messages within a call that come before there is somebody to take them. */
#pragma once

#include <sys/queue.h>

#include "wire/wire.h"

struct held_message;

struct held {
    STAILQ_HEAD(, held_message) messages;
    size_t size;
};

void held_init(struct held *h);
void held_release(struct held *h);

/* Keeps a copy. What comes when there is too much is not kept. -ENOMEM. */
int held_add(struct held *h, const struct wire_message *m);

/* The first one, in order, which is owned by the caller then (held_message_free); NULL: none. */
struct held_message *held_take(struct held *h);
void held_message_free(struct held_message *m);

/* What it holds: views last as long as it does. False: it cannot be read. */
bool held_message_read(const struct held_message *m, struct wire_message *ret);
