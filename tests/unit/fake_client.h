/* In place of client/client.h, for what passes calls on: a connection that sends nothing. Its calls
 * stay open until the test ends them. */
#pragma once

#include "client/client.h"

#define FAKE_CALLS_MAX 256

struct fake_call {
    bool open;
    uint64_t tag;
    enum wire_type type;
    struct client_call call;
    size_t granted;  /* to the service, beyond CLIENT_WINDOW */
    size_t sent;     /* item bytes that came for it */
    size_t messages; /* that came for it */
    uint32_t cancel; /* flags of the CANCEL that came, or 0 */
};

struct client {
    struct session_peer peer;
    struct fake_call calls[FAKE_CALLS_MAX];
    size_t count;
    size_t notices;
    size_t credit; /* that the service has given each call, beyond the window */
};

/* max_payload and window as of a service. */
void fake_client_init(struct client *c);

/* Answers a call; NULL: the connection is lost. */
void fake_client_reply(struct client *c, size_t i, const struct wire_message *m);
void fake_client_item(struct client *c, size_t i, const struct wire_message *m);

/* Answers all that are open with NULL. */
void fake_client_end(struct client *c);
