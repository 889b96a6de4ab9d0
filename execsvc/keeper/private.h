/* The keeper's state, shared by the files that implement keeper.h: keeper.c has the table of
 * commands and the requests, policies.c those about policies, kept.c a command, follower.c whoever
 * follows one. */
#pragma once

#include <sys/queue.h>

#include "base/table.h"
#include "confine/confinement.h"
#include "egress/supervisor.h"
#include "exec/command.h"
#include "exec/termination.h"
#include "keeper/expired.h"
#include "keeper/keeper.h"
#include "keeper/link.h"
#include "keeper/record.h"
#include "keeper/request.h"
#include "keeper/sync.h"
#include "server/held.h"

struct kept;
struct clearing;
struct freeze;

TAILQ_HEAD(kept_list, kept);
TAILQ_HEAD(follower_list, follower);

/* A service that is connected. */
struct peer {
    TAILQ_ENTRY(peer) entry;
    struct keeper *keeper;
    struct link *link;
    struct table by_tag; /* followers */
    struct follower_list followers;
};

struct keeper {
    struct event_base *base;
    int exec;
    int workspaces;
    struct request_user user;
    struct spawn_limits limits;
    struct supervisor *proxies;
    struct confinement *confinement;
    struct syncer *syncer;
    struct table commands;  /* the first of each chain, by hash of workspace and ID */
    struct expired expired; /* those that were forgotten for their age, by hash and slot */
    struct table slots;     /* of workspaces that commands were started in, see clear_earlier */
    struct kept_list all;   /* by serial */
    struct kept_list ended;
    size_t running;
    size_t left; /* that have ended, and whose leader has left something behind */
    size_t ended_count;
    uint64_t ended_bytes;
    uint64_t last_serial;
    uint64_t keep_ns;
    struct event *tick;
    struct event *look; /* at those that are left */
    struct event *soon; /* at those that have just ended */
    struct kept_list fresh;
    struct event *stop; /* NULL: it goes on */
    uint64_t stop_latest_ns;
    bool untidy;         /* directories may be empty */
    struct event *clear; /* looks at what is to be cleared */
    TAILQ_HEAD(, clearing) clearings;
    TAILQ_HEAD(, freeze) freezes;
    TAILQ_HEAD(, peer) peers;
    void (*idle)(void *context, bool idle);
    void *context;
};

enum kept_state { KEPT_STARTING, KEPT_RUNNING, KEPT_ENDED };

/* Who waits for the receipt of a kill. */
struct killer {
    TAILQ_ENTRY(killer) entry;
    struct peer *peer; /* NULL: it has gone */
    uint64_t tag;
};

/* A command. */
struct kept {
    TAILQ_ENTRY(kept) entry;       /* in keeper.all */
    TAILQ_ENTRY(kept) ended_entry; /* in keeper.ended, the oldest first */
    TAILQ_ENTRY(kept) fresh_entry; /* in keeper.fresh, if it is */
    bool fresh;
    struct kept *same; /* the next with this hash */
    uint64_t hash;
    struct keeper *keeper;
    enum kept_state state;
    bool ran;                         /* execve has succeeded */
    bool unsaved;                     /* its verdict is not on the disk yet */
    bool nameless;                    /* its ID was made here, and is told when it has started */
    char *path;                       /* where it sees its workspace; NULL: not known */
    char path_text[FAILURE_TEXT_MAX]; /* why not where its caller asked for */
    struct buffer storage;            /* what the views of record.command point into, but text */
    struct record record;             /* its spools' geometry once it has ended */
    char text[1024];                  /* record.command.text */
    int directory;                    /* while it runs or is read */
    struct spool *spools[2];          /* likewise */
    struct buffer request;            /* EXEC, until it is known on the disk that the ID is taken */
    struct sync_job *sync;   /* of that; of the verdict, which nobody is told before its end */
    bool unwanted;           /* it was killed before it started */
    struct command *command; /* while anything of it may live; after its end: it is `left` */
    struct termination *termination; /* of what is left */
    bool forgotten;                  /* to be freed with the last process */
    struct follower_list followers;
    struct follower *input; /* whose input it is given */
    uint64_t input_received;
    uint64_t input_taken;
    uint64_t
        input_debt; /* bytes that were received from earlier ones, for which nothing is granted */
    struct event *linger;
    uint64_t linger_ms;
    bool held; /* nobody holds it, and it waits for somebody who was at hold */
    uint64_t hold[2];
    uint64_t started_ns; /* monotonic */
    uint64_t ended_ns;
    TAILQ_HEAD(, killer) killers;
};

/* An open EXEC or EXEC_ATTACH. */
struct follower {
    TAILQ_ENTRY(follower) entry;      /* in kept.followers */
    TAILQ_ENTRY(follower) peer_entry; /* in peer.followers */
    struct kept *kept;
    struct peer *peer;
    uint64_t tag;
    uint32_t flags;    /* WIRE_ATTACH_… */
    bool starter;      /* the EXEC that started it */
    bool told;         /* EXEC_STARTED was sent */
    bool left;         /* its client is gone for good */
    struct held held;  /* what came before the command was started */
    uint64_t at[2];    /* sent up to here */
    uint64_t until[2]; /* without FOLLOW: what was there when it came */
};

/* --- kept.c ---------------------------------------------------------------------------------- */

/* Starts a command of that workspace and ID, of which there is none. A negative errno and the
 * refusal; nothing is kept then. */
int kept_start(struct keeper *k, const struct wire_exec *exec, struct bytes id, struct kept **ret,
               struct command_verdict *refusal);

/* One that an earlier keeper has left. Takes the storage. -ENOMEM. */
int kept_restore(struct keeper *k, struct buffer *storage, const struct record *record,
                 struct kept **ret);

/* By which it is found in keeper.commands. */
uint64_t kept_hash(struct bytes workspace, struct bytes id);

/* Ends what lives of it and forgets it; with `remove`, on the disk too. Its followers must be gone.
 */
void kept_free(struct kept *c, bool remove);

/* Its ID is being taken on the disk: it was not started yet. */
bool kept_is_claimed(const struct kept *c);

/* It has ended, and nobody may be told how as long as that is on its way to the disk. */
bool kept_is_settling(const struct kept *c);

/* Replaces its record. */
void kept_save(struct kept *c);

/* Its directory and spools can be used; -errno. kept_rest gives back what nobody uses. */
int kept_open(struct kept *c);
void kept_rest(struct kept *c);

/* Somebody has gone or come who held it. */
void kept_holders_changed(struct kept *c, const struct follower *gone);

/* How many processes that belong to it live. */
size_t kept_processes(struct kept *c);

/* Ends everything that belongs to it; the killer is told. -ESRCH: nothing lives. */
int kept_kill(struct kept *c, const char *by, uint64_t grace_ms, struct killer *killer);

/* Looks whether what its leader has left behind still lives; true when there is nothing left. */
bool kept_look(struct kept *c);

struct wire_exec_exit kept_exit(const struct kept *c);

/* --- follower.c ------------------------------------------------------------------------------ */

/* -ENOMEM. */
int follower_new(struct kept *c, struct peer *peer, uint64_t tag, uint32_t flags,
                 struct follower **ret);
void follower_free(struct follower *f);

/* Sends what there is to send; the follower may have gone afterwards. */
void follower_pump(struct follower *f);

/* All of a command's. */
void followers_pump(struct kept *c);

/* The command was started: what came for it before that is passed on. */
void followers_begin(struct kept *c);

/* A message within its call. It may have gone afterwards. */
void follower_message(struct follower *f, const struct wire_message *m);

/* --- freeze.c -------------------------------------------------------------------------------- */

/* SNAPSHOT_CREATE on a link: keeper.h. */
void freeze_handle(struct keeper *k, struct peer *p, uint64_t tag,
                   const struct wire_snapshot_create *m);
/* What stands still for it goes on. */
void freeze_peer_gone(struct keeper *k, const struct peer *p);

/* --- clear.c --------------------------------------------------------------------------------- */

int clear_new(struct keeper *k);
void clear_free_all(struct keeper *k);

/* A WORKSPACE_REMOVE, which is answered when nothing of the workspace's commands is left. */
void clear_begin(struct keeper *k, struct peer *p, uint64_t tag,
                 const struct wire_workspace_remove *m);

/* Nobody waits for the answers any more. */
void clear_peer_gone(struct keeper *k, const struct peer *p);

/* Something of it lives, or has a verdict that nobody has been told yet. */
bool clear_is_alive(struct kept *c);

/* A command is to be started in the workspace of that slot. Ends and forgets those of earlier
 * workspaces with its thread ID, of which nobody has told that they were removed. -ESTALE: this one
 * is the earlier one. */
int clear_earlier(struct keeper *k, struct bytes workspace, uint32_t slot);

/* --- policies.c ------------------------------------------------------------------------------ */

void policy_tell(struct keeper *k, struct peer *p, uint64_t tag, const struct wire_exec_policy *m);
void policy_set(struct keeper *k, struct peer *p, uint64_t tag,
                const struct wire_exec_policy_set *m);
void policy_lift(struct keeper *k, struct peer *p, uint64_t tag, const struct wire_exec_lift *m);

/* --- usage.c --------------------------------------------------------------------------------- */

/* EXEC_USAGE on a link. */
void usage_tell(struct keeper *k, struct peer *p, uint64_t tag, const struct wire_exec_usage *m);

/* --- keeper.c -------------------------------------------------------------------------------- */

void peer_send(struct peer *p, uint64_t tag, const struct wire_message *m);
void peer_send_error(struct peer *p, uint64_t tag, int error, const char *text);

/* Was it started in the workspace of that slot? */
bool kept_is_of(const struct kept *c, struct bytes workspace, uint32_t slot);

/* It has started, ended, or lost its last process. */
void keeper_changed(struct keeper *k);
