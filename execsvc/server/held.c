#include "server/held.h"

#include <stdlib.h>

#include "base/buffer.h"

/* In bytes of their payloads and what each costs: input up to a window, and signals. Stops a client
 * from using up memory with signals. */
#define HELD_MAX (2u * (256u << 10))

struct held_message {
    STAILQ_ENTRY(held_message) link;
    enum wire_type type;
    struct buffer payload;
};

void held_init(struct held *h)
{
    STAILQ_INIT(&h->messages);
    h->size = 0;
}

void held_message_free(struct held_message *m)
{
    if (!m)
        return;
    buffer_release(&m->payload);
    free(m);
}

struct held_message *held_take(struct held *h)
{
    struct held_message *m = STAILQ_FIRST(&h->messages);
    if (!m)
        return NULL;
    STAILQ_REMOVE_HEAD(&h->messages, link);
    h->size -= sizeof *m + m->payload.len;
    return m;
}

void held_release(struct held *h)
{
    struct held_message *m;
    while ((m = held_take(h)))
        held_message_free(m);
}

int held_add(struct held *h, const struct wire_message *m)
{
    if (h->size > HELD_MAX)
        return 0;
    struct held_message *held = calloc(1, sizeof *held);
    if (!held || wire_encode(&held->payload, m) < 0) {
        held_message_free(held);
        return -ENOMEM;
    }
    held->type = m->type;
    h->size += sizeof *held + held->payload.len;
    STAILQ_INSERT_TAIL(&h->messages, held, link);
    return 0;
}

bool held_message_read(const struct held_message *m, struct wire_message *ret)
{
    return wire_decode(m->type, buffer_view(&m->payload), ret) == 0;
}
