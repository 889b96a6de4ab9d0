/* Within join*.c. */
#pragma once

#include "config/services.h"
#include "join.h"
#include "options.h"
#include "slots.h"

enum member_state {
    MEMBER_IDLE,       /* not used yet */
    MEMBER_WAITING,    /* for its turn to connect */
    MEMBER_CONNECTING, /* for the first time */
    MEMBER_CONNECTED,
    MEMBER_LOST,    /* is being connected again */
    MEMBER_REFUSED, /* cannot be used: why */
    MEMBER_GONE,    /* its place was removed; what is open of it fails */
};

struct member {
    struct driver driver;
    struct client_settings settings;
    struct join *join;
    uint32_t number;
    uint64_t serial; /* nobody else's in the life of the mount */
    char *name;
    bool is_place; /* one workspace, called `name`, made by a provider */
    char *provider;
    bool quiet;
    bool seen;            /* by the scan of places that is under way */
    bool greeted;         /* service_id is known */
    char *same;           /* the member that is used for it: it has the same URL and credentials */
    uint64_t replaced_ns; /* when another service was noticed in its place; 0: never */
    uint64_t wait_ns;     /* it is not connected before */
    enum member_state state;
    time_t since;
    char *why;
    uint8_t service_id[16]; /* as it says: another one may say the same */
    struct slots_service numbers;
    bool listing;                      /* its workspaces are being asked for, */
    struct listed_waiter *listed_next; /* and after that for these */
    struct table names; /* hash -> struct known_name: workspaces it is known to have */
};

struct known_name {
    uint32_t slot;
    char name[];
};

struct join {
    struct driver *hub;
    struct join_options options;
    struct slots *slots;
    struct member **members; /* in order */
    size_t count;
    struct table by_number; /* those that have gone, too, until the kernel has forgotten them */
    uint32_t last_number;
    uint64_t last_serial;
    struct table owners; /* hash of a name -> struct owner */
    bool started, ready, stopping;
    struct event *settle;
    struct event *reap;
    struct event *later; /* somebody's wait_ns */
    struct places_watch *places;
};

/* join.c */
void member_set_state(struct member *m, enum member_state state, const char *why);
const char *member_state_name(enum member_state state);
/* It is wanted: connected, if it is not. */
void member_use(struct member *m);
static inline bool member_is_there(const struct member *m)
{
    return m->state != MEMBER_REFUSED && m->state != MEMBER_GONE;
}
/* Whether it is worth asking what it is not known to have: it is connected, or will be for the
 * first time in a moment. */
static inline bool member_answers(const struct member *m)
{
    return m->driver.client || (!m->join->ready && !m->why && !m->is_place &&
                                (m->state == MEMBER_WAITING || m->state == MEMBER_CONNECTING));
}
/* Takes the settings over. -E2BIG, -ENOMEM. */
int member_add(struct join *j, const char *name, struct client_settings *settings, bool is_place,
               struct member **ret);
/* It has gone: what is open fails, and when the kernel has forgotten all of it, it is freed. */
void member_retire(struct join *j, struct member *m);

/* Once, after JOIN_ANSWER_MS. -ENOMEM. */
int join_timer(struct join *j, event_callback_fn fn, void *context, struct event **ret);

/* names */
const struct known_name *member_knows(const struct member *m, struct bytes name);
void member_learn_one(struct member *m, struct bytes name, uint32_t slot);
void member_unlearn(struct member *m, struct bytes name);
struct member *join_owner(const struct join *j, struct bytes name);
void join_set_owner(struct join *j, struct bytes name, struct member *m);
void join_owners_release(struct join *j);
uint64_t join_slot(const struct member *m, uint64_t slot);
/* Asks a member for its workspaces, and learns them: one listing at a time, however many ask, so
 * that one that lists for ever has the memory of one. done (NULL allowed): NULL: they are not
 * known. It may be called at once. -ENOMEM: it is not called. */
typedef void member_listed_fn(void *context, const struct workspace_listing *l);
int member_list(struct member *m, member_listed_fn *done, void *context);

/* join_places.c */
int places_watch_new(struct join *j, struct places_watch **ret);
void places_watch_free(struct places_watch *w);
