#include "fake_client.h"

#include <errno.h>
#include <string.h>

void fake_client_init(struct client *c)
{
    memset(c, 0, sizeof *c);
    c->peer = (struct session_peer){.max_payload = WIRE_PAYLOAD_MAX,
                                    .max_calls = FAKE_CALLS_MAX,
                                    .window = 65536,
                                    .epoch = 7,
                                    .agent = "fake"};
}

static struct fake_call *find(const struct client *c, uint64_t tag)
{
    struct client *all = (struct client *)(uintptr_t)c;
    for (size_t i = 0; i < c->count; i++)
        if (all->calls[i].open && all->calls[i].tag == tag)
            return &all->calls[i];
    return NULL;
}

int client_call(struct client *c, const struct wire_message *request,
                const struct client_call *call, uint64_t *ret_tag)
{
    if (c->count == FAKE_CALLS_MAX)
        return -ENOTCONN;
    struct fake_call *f = &c->calls[c->count];
    *f = (struct fake_call){
        .open = true, .tag = 1000 + c->count, .type = request->type, .call = *call};
    c->count++;
    *ret_tag = f->tag;
    return 0;
}

int client_send(struct client *c, uint64_t tag, const struct wire_message *message)
{
    struct fake_call *f = find(c, tag);
    c->notices += tag == 0;
    if (!f)
        return tag == 0 ? 0 : -ENOENT;
    f->messages++;
    if (message->type == WIRE_CANCEL)
        f->cancel = message->cancel.flags;
    if (message->type == WIRE_EXEC_INPUT)
        f->sent += session_item_cost(message->type, message->exec_input.data.len);
    return 0;
}

int client_grant(struct client *c, uint64_t tag, size_t bytes)
{
    struct fake_call *f = find(c, tag);
    if (!f)
        return -ENOENT;
    f->granted += bytes;
    return 0;
}

size_t client_credit(const struct client *c, uint64_t tag)
{
    const struct fake_call *f = find(c, tag);
    return f ? c->peer.window + c->credit - f->sent : 0;
}

const struct session_peer *client_peer(const struct client *c)
{
    return &c->peer;
}

void fake_client_reply(struct client *c, size_t i, const struct wire_message *m)
{
    struct fake_call *f = &c->calls[i];
    f->open = false;
    f->call.reply(f->call.context, m ? 0 : -ECONNRESET, m);
}

void fake_client_item(struct client *c, size_t i, const struct wire_message *m)
{
    struct fake_call *f = &c->calls[i];
    f->call.item(f->call.context, f->tag, m);
}

void fake_client_end(struct client *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->calls[i].open)
            fake_client_reply(c, i, NULL);
}
