/* Commands as clients see them, on the service's event loop: EXEC and its like, passed on to the
 * keeper of commands (keeper/keeper.h) and back. Whoever is told that a command has ended finds
 * what it did on every mount. A client that does not take a command's output stops that command
 * alone. */
#pragma once

#include <event2/event.h>
#include <jansson.h>

#include "exec/spawn.h"
#include "server/call.h"
#include "server/subscribers.h"
#include "store/store.h"

struct exec_service;

struct exec_service_options {
    struct store *store;             /* borrowed for the service's life, as the next */
    struct subscribers *subscribers; /* NULL: verdicts wait for nobody */
    /* A stream to the keeper, which is started if there is none; name: the service's, in names of
     * its own on this machine. */
    int (*connect)(void *context, const char *name, int *ret_fd, struct failure *ret_failure);
    void *context;
};

/* The process must ignore SIGPIPE. -ENOMEM. */
int exec_service_new(struct event_base *base, const struct exec_service_options *options,
                     struct exec_service **ret);

/* All calls must have ended. Commands go on. NULL is allowed. */
void exec_service_free(struct exec_service *s);

/* Takes the call and always ends it: with EXEC_EXIT, whatever happens to the command. The
 * views of the request last for this function only. synced: it is known to see all that was written
 * before it; if not, the verdict says so. */
void exec_service_start(struct exec_service *s, struct call *call,
                        const struct wire_message *request, bool synced);

/* EXEC_ATTACH, EXEC_LIST, EXEC_KILL, EXEC_POLICY, EXEC_LIFT, EXEC_POLICY_SET, EXEC_USAGE; and
 * EXEC_FORGET, which has no call. */
void exec_service_ask(struct exec_service *s, struct call *call,
                      const struct wire_message *request);

/* Answers from the log of the proxy, if there is one. */
void exec_service_egress(struct exec_service *s, struct call *call,
                         const struct wire_egress_log *m);

/* While a workspace is being removed or stopped: no command is started in it. */
struct exec_removal;

enum exec_clear {
    EXEC_CLEAR_ENDED, /* -EBUSY when something of its commands lives; else they are forgotten */
    EXEC_CLEAR_FORCE, /* what lives is ended, and all are forgotten */
    EXEC_CLEAR_STOP,  /* what lives is ended */
};

/* ended: how many were. removal NULL: the call was answered with an error, or has gone. */
typedef void exec_cleared(void *context, struct exec_removal *removal, uint64_t ended);

/* Before that: does so with the commands of the workspace that is found as by WORKSPACE_OPEN. Then
 * `cleared` is called with the removal, which exec_removal_end ends; it may be called before this
 * returns. False: there is no such workspace, and nothing was done. */
bool exec_service_clear(struct exec_service *s, struct call *call, struct bytes key,
                        uint32_t workspace_flags, enum exec_clear how, exec_cleared *cleared,
                        void *context);

/* The same with EXEC_CLEAR_ENDED for one that nobody uses and whose time is over; this is no use of
 * it. Nobody has called: cleared tells alone. */
void exec_service_clear_over(struct exec_service *s, const struct index_over *over,
                             exec_cleared *cleared, void *context);

/* May outlive the service. NULL is allowed. */
void exec_removal_end(struct exec_removal *removal);

/* While the files of a workspace are copied, or replaced as a whole. Commands that are to be
 * started in it wait until it has ended. */
struct exec_hold;

struct exec_hold_options {
    struct bytes workspace;
    uint32_t workspace_flags;
    bool freeze; /* what lives of its commands stands still; else there must be none */
    /* May be called before exec_service_hold returns. error: 0, also when there is no such
     * workspace; -EBUSY: commands live that were not to, or one is just being started; -EOPNOTSUPP:
     * they cannot be made to stand still. text: may be NULL. */
    void (*held)(void *context, int error, const char *text);
    void *context;
};

/* *ret: to be ended in any case but an error; it is set before `held` is called. NULL: nothing is
 * held. */
void exec_service_hold(struct exec_service *s, const struct exec_hold_options *options,
                       struct exec_hold **ret);

/* They go on. May be called before `held` was, which then is not. May outlive the service. NULL is
 * allowed. */
void exec_hold_end(struct exec_hold *hold);

/* Whether no command of the workspace lives or is about to be started. idle is called once, which
 * may be before this returns; what it does comes before any command that is started later. No
 * keeper is started for this: what one of another service's life has left counts as living. */
typedef void exec_idle_fn(void *context, bool idle);
void exec_service_ask_idle(struct exec_service *s, const struct workspace *workspace,
                           exec_idle_fn *idle, void *context);

/* Adds "exec": {"running", "started", "refused"} to object: EXECs that are open, and what became of
 * those of this service's life; "fenced" (fences_list); and what the last keeper found that
 * confines commands (confinement_status), and "egress", what its proxy has done (egress/counts.h).
 * -ENOMEM. */
int exec_service_status(struct exec_service *s, json_t *object);
