/* Both ends of a connection without a socket, for unit tests. */
#pragma once

#include "unit.h"

#include "wire/session.h"

struct pair {
    struct session *client;
    struct session *server;
};

#define PAIR_WINDOW 1000
#define PAIR_MAX_CALLS 8

/* Two new sessions, not yet talking, then changed by what the test sets. */
struct session_config pair_client_config(uint64_t features);
struct session_config pair_server_config(uint64_t features);
void pair_new(struct pair *p, const struct session_config *client,
              const struct session_config *server);

/* A pair after HELLO and WELCOME. */
void pair_start(struct pair *p, uint64_t features);
void pair_free(struct pair *p);

/* Moves all output of one to the other, in pieces of at most `piece` bytes (0: all at once),
 * and fails the test unless it is accepted. */
void session_move(struct session *from, struct session *to, size_t piece);

/* Both ways until nothing is left. */
void pair_move(struct pair *p);

/* The next frame, which must be of this type; wire_frame_free() it. */
struct wire_frame *session_expect(struct session *s, enum wire_type type);
void session_expect_nothing(struct session *s);

/* A request that must go out; its tag. */
uint64_t session_must_request(struct session *s, const struct wire_message *m);

/* Appends a frame as it is told, right or wrong. */
void frame_append(struct buffer *b, uint16_t type, uint16_t flags, uint64_t tag,
                  const void *payload, size_t len);

/* Appends a well-made frame of a message. */
void frame_append_message(struct buffer *b, uint64_t tag, const struct wire_message *m);

extern const struct wire_message message_ping;
extern const struct wire_message message_pong;
extern const struct wire_message message_exec;
