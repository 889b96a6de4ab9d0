/* What the files of the service's end of exec (exec_service.h) share. */
#pragma once

#include <sys/queue.h>

#include "base/table.h"
#include "exec/exec_service.h"
#include "keeper/link.h"
#include "server/held.h"

/* A call of a client, and of ours at the keeper. */
struct relay {
    TAILQ_ENTRY(relay) entry;
    struct exec_service *service;
    struct call *call; /* NULL: the client is gone */
    enum wire_type type;
    uint64_t tag;             /* at the keeper; 0: the request was not sent yet */
    struct buffer request;    /* until nothing would be done, or told, twice by sending it again */
    struct held held;         /* what came within the call until then */
    size_t window;            /* item bytes that were granted to the keeper and have not come */
    size_t input_window;      /* item bytes that the client may still send */
    struct wire_frame *reply; /* waits for the barrier */
    struct barrier *barrier;
    uint32_t waits_for;           /* EXEC: this workspace's hold, 0: for none */
    struct exec_hold *hold;       /* that asks; there is no call then */
    struct exec_removal *removal; /* WORKSPACE_REMOVE */
    bool own;                     /* there never was a call */
    exec_cleared *cleared;
    void *context;
};

struct exec_hold {
    LIST_ENTRY(exec_hold) entry;
    struct exec_service *service; /* NULL: it has gone */
    struct relay *relay;          /* its question to the keeper, while that is open */
    uint32_t slot;
    bool frozen; /* the keeper is to be told of its end */
    void (*held)(void *context, int error, const char *text);
    void *context;
};

struct exec_removal {
    LIST_ENTRY(exec_removal) entry;
    struct exec_service *service; /* NULL: it has gone */
    uint32_t slot;
    bool stops;
};

/* Of exec_service_ask_idle. */
struct exec_question {
    LIST_ENTRY(exec_question) entry;
    struct exec_service *service;
    struct exec_hold *hold;
    uint32_t slot;
    exec_idle_fn *idle;
    void *context;
};

TAILQ_HEAD(relay_list, relay);

struct exec_service {
    struct event_base *base;
    struct store *store;
    struct subscribers *subscribers; /* NULL: nobody is waited for */
    char name[64];
    int (*connect)(void *context, const char *name, int *ret_fd, struct failure *ret_failure);
    void *context;
    struct link *link; /* NULL: not connected */
    bool ready;
    unsigned tries;
    struct event *again;
    struct relay_list relays;
    LIST_HEAD(, exec_removal) removals;
    LIST_HEAD(, exec_hold) holds;
    LIST_HEAD(, exec_question) questions;
    struct table by_tag; /* those that were sent */
    size_t running;
    uint64_t started;
    uint64_t refused;
};

/* A call to be made at the keeper: call is answered with what comes of it, NULL: nobody is. It is
 * sent by exec_relay_begin, when there is a keeper. NULL: no memory. */
struct relay *exec_relay_new(struct exec_service *s, struct call *call,
                             const struct wire_message *request);
void exec_relay_begin(struct relay *r);
void exec_relay_free(struct relay *r);

/* Whether the keeper may know of commands of the workspace of this name. */
bool exec_has_commands(const struct exec_service *s, const char *name);

/* Answers for the end of the service. */
void exec_end_questions(struct exec_service *s);

/* Whether commands of this workspace wait for the end of a hold. */
bool exec_is_held(const struct exec_service *s, uint32_t slot);
