/* The keeper of a service's commands: it owns them, their output and their verdicts, and answers
 * EXEC, EXEC_ATTACH, EXEC_LIST, EXEC_KILL, EXEC_POLICY, EXEC_LIFT, EXEC_POLICY_SET, EXEC_USAGE,
 * EXEC_FORGET and WORKSPACE_REMOVE on links (link.h). It knows nothing of networks, and lives in a
 * process of its own (process.h), so that commands go on when the service ends, and nobody on a
 * network is near the process that owns them.
 *
 * Requests name workspaces by thread ID, and have the workspace's slot in workspace_flags: it never
 * comes again, and tells the workspace from others that had this ID before. WORKSPACE_REMOVE is
 * answered when nothing of a workspace's commands lives and all of them are forgotten, or with
 * KEEPER_STOP kept; seq of its OK is how many were ended. Its flags are the slot and KEEPER_….
 * SNAPSHOT_CREATE makes a workspace's commands stand still (flags: one of KEEPER_FREEZE,
 * KEEPER_THAW and KEEPER_QUIET), also when they have ended and left something behind. Each command
 * has a directory (record.h); what is there when a keeper starts was kept by an earlier one. */
#pragma once

#include <event2/event.h>

#include "base/failure.h"
#include "exec/spawn.h"

/* In the directory where commands are kept: what confinement_status says, for the service. */
#define KEEPER_CONFINEMENT ".confinement.json"

/* End what lives; without either, -EBUSY. Slots have 24 bits. */
#define KEEPER_FORCE (UINT32_C(1) << 31)
#define KEEPER_STOP (UINT32_C(1) << 30)

/* SNAPSHOT_CREATE's flags on a link: they stand still when it is answered, until THAW or the link's
 * end, which is counted; they go on; there are none that live, else -EBUSY. */
#define KEEPER_FREEZE UINT32_C(1)
#define KEEPER_THAW UINT32_C(2)
#define KEEPER_QUIET UINT32_C(4)

/* EXEC's flags on a link: the command may not see all that was written before it. For as long as it
 * is known its EXEC_EXIT has coherence UNKNOWN, and otherwise SEEN. */
#define KEEPER_UNSYNCED (UINT32_C(1) << 31)

/* Likewise: the workspace is stopped. What was started before is attached to, nothing is started.
 */
#define KEEPER_STOPPED (UINT32_C(1) << 30)

/* CANCEL's flag on a link, with LEAVE: the client's connection is lost, and it may come back.
 * Without it, it is gone for good. */
#define KEEPER_LOST (UINT32_C(1) << 31)

/* Commands at a time: stops one client from using up the machine's processes and our
 * descriptors (up to eight each) for all others. */
#define KEEPER_RUNNING_MAX 512

/* Verdicts that are kept, and the output that is kept with them; the oldest make room. Stops
 * somebody who runs commands all day from filling the disk. */
#define KEEPER_ENDED_MAX 10000
#define KEEPER_BYTES_MAX (UINT64_C(4) << 30)

/* How long a command goes on that nobody holds any more, when nobody says otherwise: time for a
 * client that was cut off, or whose service is restarted, to come back. The most, whatever its
 * request said, when the client is gone for good. */
#define KEEPER_LINGER_MS 5000

struct keeper;

struct keeper_options {
    int root;                  /* the service's directory; borrowed for keeper_new only */
    int exec;                  /* where commands are kept; borrowed for the keeper's life */
    const char *name;          /* of the service, in names of its own on this machine */
    const char *cgroup_parent; /* see cgroup_base_open; NULL: found */
    uint64_t keep_s;
    const struct spawn_limits *limits;
    /* NULL, or: there is nothing to keep alive for any more, or there is again. */
    void (*idle)(void *context, bool idle);
    void *context;
};

/* Reads what earlier keepers have left. -ENOMEM, and others of its directories. */
int keeper_new(struct event_base *base, const struct keeper_options *options, struct keeper **ret,
               struct failure *ret_failure);

/* Kills what runs, tells those who follow it, and then, or when that takes too long, ends the loop.
 * Nothing is started any more. */
void keeper_stop(struct keeper *k);

/* Kills what runs; verdicts say so. */
void keeper_free(struct keeper *k);

/* Takes *fd, a stream of a service's. -ENOMEM. */
int keeper_accept(struct keeper *k, int *fd);
